/* Which journal file this is, and where its batches are: checks of headers.  Every input may be
 * hostile. */
#include "base/journal_header.h"

#include "base/checksum.h"

uint32_t
fbk_journal_file_header_crc(const struct fbk_journal_file_header *header)
{
    return fbk_crc32c(0, header, offsetof(struct fbk_journal_file_header, crc));
}

static bool
file_header_ok(const struct fbk_journal_file_header *header)
{
    uint32_t block = header->block_size_bytes;
    return header->version > 0 && header->version <= FBK_JOURNAL_VERSION &&
           fbk_journal_file_header_crc(header) == header->crc && block >= FBK_PAGE_BYTES &&
           block <= FBK_BLOCK_BYTES_MAX && (block & (block - 1)) == 0 && header->file_id != 0 &&
           header->predecessor_sequence != UINT64_MAX &&
           header->first_sequence == header->predecessor_sequence + 1;
}

static bool
is_zero(const uint8_t *bytes, uint64_t size_bytes)
{
    for (uint64_t i = 0; i < size_bytes; i++)
        if (bytes[i])
            return false;
    return true;
}

/* FBK_HEADER_* of the block at `place`, or FBK_E_TOO_NEW. */
static int32_t
file_header_at(const uint8_t *bytes, uint64_t size_bytes, uint64_t place,
               struct fbk_journal_file_header *header)
{
    struct fbk_journal_file_header copy;
    if (place + sizeof copy > size_bytes)
        return FBK_HEADER_UNUSED;
    memcpy(&copy, bytes + place, sizeof copy);
    if (copy.magic == FBK_JOURNAL_MAGIC && file_header_ok(&copy) &&
        (place == 0 || place == copy.block_size_bytes)) {
        *header = copy;
        return FBK_HEADER_VALID;
    }
    if (copy.magic == FBK_JOURNAL_MAGIC && copy.version > FBK_JOURNAL_VERSION)
        return FBK_E_TOO_NEW;
    return is_zero(bytes + place, sizeof copy) ? FBK_HEADER_UNUSED : FBK_HEADER_DAMAGED;
}

int32_t
fbk_journal_file_header_find(const uint8_t *bytes, uint64_t size_bytes,
                             struct fbk_journal_file_header *header)
{
    int32_t first = file_header_at(bytes, size_bytes, 0, header);
    if (first == FBK_HEADER_VALID) {
        struct fbk_journal_file_header second;
        if (file_header_at(bytes, size_bytes, header->block_size_bytes, &second) ==
                FBK_HEADER_VALID &&
            second.file_id > header->file_id)
            *header = second;
        return FBK_HEADER_VALID;
    }
    int32_t second = file_header_at(bytes, size_bytes, FBK_PAGE_BYTES, header);
    /* The place of the second one depends on the block size, which only a valid header tells.
     * Smallest first: from the third block on there may be anything that a client sent. */
    for (uint64_t place = 2 * FBK_PAGE_BYTES;
         second != FBK_HEADER_VALID && place <= FBK_BLOCK_BYTES_MAX; place *= 2)
        if (file_header_at(bytes, size_bytes, place, header) == FBK_HEADER_VALID)
            return FBK_HEADER_VALID;
    if (second == FBK_HEADER_VALID)
        return FBK_HEADER_VALID;
    if (first == FBK_E_TOO_NEW || second == FBK_E_TOO_NEW)
        return FBK_E_TOO_NEW;
    return first == FBK_HEADER_DAMAGED || second == FBK_HEADER_DAMAGED ? FBK_HEADER_DAMAGED
                                                                       : FBK_HEADER_UNUSED;
}

uint32_t
fbk_batch_header_crc(const struct fbk_batch_header *header)
{
    return fbk_crc32c(0, header, offsetof(struct fbk_batch_header, header_crc));
}

bool
fbk_batch_header_ok(const struct fbk_batch_header *header, uint64_t file_id, uint64_t salt,
                    uint64_t offset_bytes, uint64_t remaining_bytes, uint32_t block_size_bytes)
{
    if (header->magic != FBK_BATCH_MAGIC || header->file_id != file_id || header->salt != salt ||
        header->offset_bytes != offset_bytes || fbk_batch_header_crc(header) != header->header_crc)
        return false;
    uint64_t content = header->content_bytes;
    uint64_t padded = header->padded_bytes;
    return content >= sizeof *header && padded == fbk_round_up(content, block_size_bytes) &&
           padded <= remaining_bytes && padded <= FBK_BATCH_BYTES_MAX &&
           (content - sizeof *header) / sizeof(struct fbk_record) >= header->record_count;
}

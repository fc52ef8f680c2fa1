/* Checks of the journal's structs.  No state, no allocation; every input may be hostile. */

#include "journal/format.h"

#include "base/checksum.h"

uint32_t
fbk_record_header_crc(const struct fbk_record *record)
{
    return fbk_crc32c(0, record, offsetof(struct fbk_record, header_crc));
}

bool
fbk_record_shape_ok(const struct fbk_record *record, uint64_t available_bytes,
                    uint64_t size_bytes_max)
{
    uint64_t size = record->size_bytes;
    uint64_t payload = record->payload_bytes;
    if (size < sizeof *record || size > available_bytes || size > size_bytes_max)
        return false;
    if (size != fbk_round_up(sizeof *record + payload, 8))
        return false;
    switch (record->kind) {
    case FBK_KIND_ADD: return record->entry_count == 1 && payload >= FBK_ENTRY_HEADER_BYTES;
    case FBK_KIND_ADD_BATCH:
        return record->entry_count >= 1 &&
               payload / (sizeof(struct fbk_batch_item) + FBK_ENTRY_HEADER_BYTES) >=
                   record->entry_count;
    case FBK_KIND_FENCE:
    case FBK_KIND_FORCE: return record->entry_count == 0;
    default: return false;
    }
}

bool
fbk_record_ids_ok(const struct fbk_record *record)
{
    if (record->ledger_id < 0)
        return false;
    switch (record->kind) {
    case FBK_KIND_ADD: return record->entry_id >= 0;
    case FBK_KIND_ADD_BATCH:
        return record->entry_id >= 0 &&
               record->entry_id <= INT64_MAX - ((int64_t)record->entry_count - 1);
    default: return record->entry_id >= -1;
    }
}

/* The table is ours already (copied or in a private buffer). */
static bool
items_ok(const struct fbk_record *record, const uint8_t *items, uint64_t table_bytes)
{
    uint64_t sum = table_bytes;
    for (uint32_t i = 0; i < record->entry_count; i++) {
        uint32_t size = fbk_load_u32(items + (uint64_t)i * sizeof(struct fbk_batch_item));
        if (size < FBK_ENTRY_HEADER_BYTES)
            return false;
        sum += size; /* at most 2^32 times 2^32 */
    }
    return sum == record->payload_bytes;
}

static uint32_t
item_size(const uint8_t *items, uint32_t i)
{
    return fbk_load_u32(items + (uint64_t)i * sizeof(struct fbk_batch_item));
}

static uint32_t
item_crc(const uint8_t *items, uint32_t i)
{
    return fbk_load_u32(items + (uint64_t)i * sizeof(struct fbk_batch_item) +
                        offsetof(struct fbk_batch_item, crc));
}

bool
fbk_record_body_ok(const struct fbk_record *record, const uint8_t *payload)
{
    if (record->kind != FBK_KIND_ADD_BATCH)
        return fbk_crc32c(0, payload, record->payload_bytes) == record->body_crc;
    uint64_t table_bytes = (uint64_t)record->entry_count * sizeof(struct fbk_batch_item);
    if (fbk_crc32c(0, payload, table_bytes) != record->body_crc ||
        !items_ok(record, payload, table_bytes))
        return false;
    const uint8_t *entry = payload + table_bytes;
    for (uint32_t i = 0; i < record->entry_count; i++) {
        if (fbk_crc32c(0, entry, item_size(payload, i)) != item_crc(payload, i))
            return false;
        entry += item_size(payload, i);
    }
    return true;
}

bool
fbk_record_copy_body(const struct fbk_record *record, uint8_t *to, const uint8_t *from)
{
    if (record->kind != FBK_KIND_ADD_BATCH)
        return fbk_crc32c_copy(0, to, from, record->payload_bytes) == record->body_crc;
    uint64_t table_bytes = (uint64_t)record->entry_count * sizeof(struct fbk_batch_item);
    if (fbk_crc32c_copy(0, to, from, table_bytes) != record->body_crc ||
        !items_ok(record, to, table_bytes))
        return false;
    uint64_t done = table_bytes;
    for (uint32_t i = 0; i < record->entry_count; i++) {
        uint32_t size = item_size(to, i);
        if (fbk_crc32c_copy(0, to + done, from + done, size) != item_crc(to, i))
            return false;
        done += size;
    }
    return true;
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

bool
fbk_batch_records_ok(const struct fbk_batch_header *header, const uint8_t *batch)
{
    uint64_t offset = sizeof *header;
    uint64_t end = header->content_bytes;
    uint32_t crc = 0;
    for (uint32_t i = 0; i < header->record_count; i++) {
        struct fbk_record record;
        if (end - offset < sizeof record)
            return false;
        memcpy(&record, batch + offset, sizeof record);
        if (fbk_record_header_crc(&record) != record.header_crc ||
            !fbk_record_shape_ok(&record, end - offset, FBK_BATCH_BYTES_MAX) ||
            !fbk_record_ids_ok(&record) || record.kind == FBK_KIND_FORCE ||
            record.sequence != header->first_record_sequence + i ||
            !fbk_record_body_ok(&record, batch + offset + sizeof record))
            return false;
        crc = fbk_crc32c(crc, batch + offset, sizeof record);
        offset += record.size_bytes;
    }
    if (offset != end)
        return false;
    crc = fbk_crc32c(crc, batch + end, header->padded_bytes - end);
    return crc == header->records_crc;
}

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

/* FBK_HEADER_* of the block at `at`, or FBK_E_TOO_NEW. */
static int32_t
file_header_at(const uint8_t *bytes, uint64_t size_bytes, uint64_t at,
               struct fbk_journal_file_header *header)
{
    struct fbk_journal_file_header one;
    if (at + sizeof one > size_bytes)
        return FBK_HEADER_UNUSED;
    memcpy(&one, bytes + at, sizeof one);
    if (one.magic == FBK_JOURNAL_MAGIC && file_header_ok(&one) &&
        (at == 0 || at == one.block_size_bytes)) {
        *header = one;
        return FBK_HEADER_VALID;
    }
    if (one.magic == FBK_JOURNAL_MAGIC && one.version > FBK_JOURNAL_VERSION)
        return FBK_E_TOO_NEW;
    return is_zero(bytes + at, sizeof one) ? FBK_HEADER_UNUSED : FBK_HEADER_DAMAGED;
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
    for (uint64_t at = 2 * FBK_PAGE_BYTES; second != FBK_HEADER_VALID && at <= FBK_BLOCK_BYTES_MAX;
         at *= 2)
        if (file_header_at(bytes, size_bytes, at, header) == FBK_HEADER_VALID)
            return FBK_HEADER_VALID;
    if (second == FBK_HEADER_VALID)
        return FBK_HEADER_VALID;
    if (first == FBK_E_TOO_NEW || second == FBK_E_TOO_NEW)
        return FBK_E_TOO_NEW;
    return first == FBK_HEADER_DAMAGED || second == FBK_HEADER_DAMAGED ? FBK_HEADER_DAMAGED
                                                                       : FBK_HEADER_UNUSED;
}

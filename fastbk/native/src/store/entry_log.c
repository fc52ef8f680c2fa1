#include "store/entry_log.h"

#include "base/checksum.h"
#include "base/segment.h"

static uint32_t
count_items(const struct fbk_flush_item *items, uint64_t item_count, uint64_t *size_bytes)
{
    uint64_t limit = item_count < FBK_RUN_ENTRIES_MAX ? item_count : FBK_RUN_ENTRIES_MAX;
    uint64_t size = sizeof(struct fbk_run_header);
    uint32_t count = 0;
    while (count < limit) {
        const struct fbk_flush_item *item = &items[count];
        uint64_t more = sizeof(struct fbk_run_item) + fbk_round_up(item->size_bytes, 8);
        if (item->size_bytes == 0 || item->entry_id < 0 || item->ledger_id < 0)
            break; /* said by -EINVAL when it comes first */
        if (count > 0) {
            if (item->ledger_id != items[0].ledger_id ||
                item->entry_id - items[0].entry_id >= FBK_RUN_SPAN_MAX ||
                size + more > FBK_RUN_BYTES_MAX)
                break;
            FBK_ASSERT(item->entry_id > items[count - 1].entry_id);
        }
        size += more;
        count++;
    }
    *size_bytes = size;
    return count;
}

int32_t
fbk_run_put(struct fbk_file_writer *writer, const struct fbk_flush_item *items, uint64_t item_count,
            uint64_t log_id, uint64_t log_salt, struct fbk_location *location)
{
    struct {
        struct fbk_run_header header;
        struct fbk_run_item items[FBK_RUN_ENTRIES_MAX];
    } front;
    uint64_t size_bytes;
    uint32_t count = count_items(items, item_count, &size_bytes);
    if (count == 0 || size_bytes > FBK_RUN_READ_BYTES_MAX)
        return -EINVAL;
    uint64_t at = sizeof front.header + (uint64_t)count * sizeof(struct fbk_run_item);
    for (uint32_t i = 0; i < count; i++) {
        front.items[i] = (struct fbk_run_item){
            .entry_id = items[i].entry_id,
            .offset_bytes = (uint32_t)at,
            .size_bytes = items[i].size_bytes,
            .crc = items[i].crc,
        };
        at += fbk_round_up(items[i].size_bytes, 8);
    }
    FBK_ASSERT(at == size_bytes);
    fbk_run_head((uint8_t *)&front, items[0].ledger_id, count, (uint32_t)size_bytes,
                 fbk_file_writer_position(writer), log_id, log_salt, location);
    fbk_file_writer_put(writer, &front, sizeof front.header + count * sizeof(struct fbk_run_item));
    for (uint32_t i = 0; i < count; i++) {
        /* Entries lie in the cache in the order they came: of many ledgers, the next one is
         * somewhere else. */
        if (i + 2 < count)
            __builtin_prefetch(items[i + 2].data);
        fbk_file_writer_put(writer, items[i].data, items[i].size_bytes);
        fbk_file_writer_zeros(writer, fbk_round_up(items[i].size_bytes, 8) - items[i].size_bytes);
    }
    return (int32_t)count;
}

void
fbk_log_header_fill(uint8_t *block, const struct fbk_log_header *values)
{
    struct fbk_log_header header = *values;
    header.magic = FBK_LOG_MAGIC;
    header.version = FBK_LOG_VERSION;
    header.reserved = 0;
    header.reserved2 = 0;
    header.crc = fbk_crc32c(0, &header, offsetof(struct fbk_log_header, crc));
    memset(block, 0, FBK_PAGE_BYTES);
    memcpy(block, &header, sizeof header);
}

int32_t
fbk_log_header_check(const uint8_t *block, uint64_t log_id, uint64_t incarnation,
                     struct fbk_log_header *header)
{
    memcpy(header, block, sizeof *header);
    if (header->magic != FBK_LOG_MAGIC)
        return FBK_E_CORRUPT;
    if (header->crc != fbk_crc32c(0, header, offsetof(struct fbk_log_header, crc)))
        return FBK_E_CORRUPT;
    if (header->version != FBK_LOG_VERSION)
        return header->version > FBK_LOG_VERSION ? FBK_E_TOO_NEW : FBK_E_CORRUPT;
    if (header->log_id != log_id || header->incarnation != incarnation)
        return FBK_E_CORRUPT;
    return 0;
}

static int32_t
find_in_journal_file(const uint8_t *bytes, uint64_t size_bytes, uint64_t log_id,
                     uint64_t incarnation, struct fbk_log_front *front)
{
    struct fbk_journal_file_header header;
    int32_t state = fbk_journal_file_header_find(bytes, size_bytes, &header);
    if (state < 0)
        return state;
    /* Only files of this version have runs. */
    if (state != FBK_HEADER_VALID || header.version < FBK_JOURNAL_VERSION ||
        (header.file_id | FBK_LOG_JOURNAL) != log_id || header.incarnation != incarnation)
        return FBK_E_CORRUPT;
    front->salt = header.salt;
    front->runs_at_bytes = (uint64_t)FBK_JOURNAL_HEADER_BLOCKS * header.block_size_bytes;
    return 0;
}

int32_t
fbk_log_front_find(const uint8_t *bytes, uint64_t size_bytes, uint64_t log_id, uint64_t incarnation,
                   struct fbk_log_front *front)
{
    struct fbk_log_header header;
    if (log_id & FBK_LOG_JOURNAL)
        return find_in_journal_file(bytes, size_bytes, log_id, incarnation, front);
    if (size_bytes < FBK_PAGE_BYTES)
        return FBK_E_CORRUPT;
    int32_t result = fbk_log_header_check(bytes, log_id, incarnation, &header);
    if (result >= 0)
        *front = (struct fbk_log_front){header.salt, FBK_PAGE_BYTES};
    return result;
}

int32_t
fbk_log_read_salt(struct fbk_io *io, int32_t handle, uint64_t log_id, uint64_t incarnation,
                  uint64_t *salt)
{
    const uint64_t block =
        io->block_size_bytes > FBK_PAGE_BYTES ? io->block_size_bytes : FBK_PAGE_BYTES;
    const uint64_t front_bytes = log_id & FBK_LOG_JOURNAL ? FBK_BLOCK_BYTES_MAX + block : block;
    struct fbk_log_front front = {0};
    uint8_t *bytes = fbk_memory_take(front_bytes);
    if (!bytes)
        return -ENOMEM;
    (void)io->operations->read(io, handle, bytes, (uint32_t)block, 0);
    int32_t result = fbk_log_front_find(bytes, block, log_id, incarnation, &front);
    if (result < 0 && front_bytes > block) {
        /* The second copy lies one block further on, whatever a block was when it was written. */
        for (uint64_t at = block; at <= FBK_BLOCK_BYTES_MAX; at *= 2)
            (void)io->operations->read(io, handle, bytes + at, (uint32_t)block, at);
        result = fbk_log_front_find(bytes, front_bytes, log_id, incarnation, &front);
    }
    fbk_memory_give_back(bytes, front_bytes);
    *salt = front.salt;
    return result;
}

uint32_t
fbk_run_lower_bound(const struct fbk_run *run, int64_t entry_id)
{
    const struct fbk_run_item *items = fbk_run_items(run);
    if (entry_id <= run->first_entry_id)
        return 0;
    if (entry_id > run->last_entry_id)
        return run->entry_count;
    /* Without gaps the place is known. */
    uint64_t dense = (uint64_t)(entry_id - run->first_entry_id);
    if (dense < run->entry_count && items[dense].entry_id == entry_id)
        return (uint32_t)dense;
    uint32_t low = 0, high = run->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (items[middle].entry_id < entry_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const struct fbk_run_item *
fbk_run_find(const struct fbk_run *run, int64_t entry_id)
{
    uint32_t index = fbk_run_lower_bound(run, entry_id);
    const struct fbk_run_item *items = fbk_run_items(run);
    if (index == run->entry_count || items[index].entry_id != entry_id ||
        items[index].size_bytes == 0)
        return NULL;
    return &items[index];
}

const uint8_t *
fbk_run_entry(const struct fbk_run *run, int64_t entry_id, uint32_t *size_bytes)
{
    const struct fbk_run_item *item = fbk_run_find(run, entry_id);
    if (!item)
        return NULL;
    *size_bytes = item->size_bytes;
    return run->bytes + item->offset_bytes;
}

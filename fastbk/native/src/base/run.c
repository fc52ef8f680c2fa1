/* Runs: making their headers, and checking what a disk gave back; see base/run.h. */
#include "base/run.h"

#include "base/checksum.h"

void
fbk_run_head(uint8_t *bytes, int64_t ledger_id, uint32_t entry_count, uint32_t size_bytes,
             uint64_t offset_bytes, uint64_t log_id, uint64_t log_salt,
             struct fbk_location *location)
{
    const struct fbk_run_item *items =
        (const struct fbk_run_item *)(const void *)(bytes + sizeof(struct fbk_run_header));
    struct fbk_run_header header = {
        .magic = FBK_RUN_MAGIC,
        .entry_count = entry_count,
        .log_id = log_id,
        .salt = log_salt,
        .offset_bytes = offset_bytes,
        .ledger_id = ledger_id,
        .first_entry_id = items[0].entry_id,
        .last_entry_id = items[entry_count - 1].entry_id,
        .size_bytes = size_bytes,
        .items_crc = fbk_crc32c(0, items, entry_count * sizeof(struct fbk_run_item)),
    };
    header.header_crc = fbk_crc32c(0, &header, offsetof(struct fbk_run_header, header_crc));
    memcpy(bytes, &header, sizeof header);
    *location = (struct fbk_location){
        .ledger_id = ledger_id,
        .first_entry_id = header.first_entry_id,
        .last_entry_id = header.last_entry_id,
        .log_id = log_id,
        .offset_bytes = offset_bytes,
        .size_bytes = size_bytes,
        .entry_count = entry_count,
    };
}

bool
fbk_location_is_sane(const struct fbk_location *location)
{
    return location->ledger_id >= 0 && location->first_entry_id >= 0 &&
           location->last_entry_id >= location->first_entry_id &&
           location->last_entry_id - location->first_entry_id < FBK_RUN_SPAN_MAX &&
           location->last_entry_id_max >= location->last_entry_id && location->entry_count >= 1 &&
           location->entry_count <= FBK_RUN_ENTRIES_MAX &&
           location->entry_count <= location->last_entry_id - location->first_entry_id + 1 &&
           location->offset_bytes % 8 == 0 && location->offset_bytes >= FBK_PAGE_BYTES &&
           location->offset_bytes < (uint64_t)1 << 62 && location->size_bytes % 8 == 0 &&
           location->size_bytes <= FBK_RUN_READ_BYTES_MAX &&
           location->size_bytes >=
               sizeof(struct fbk_run_header) + location->entry_count * sizeof(struct fbk_run_item);
}

static bool
header_agrees(const struct fbk_run_header *header, const struct fbk_location *location,
              const uint64_t *salt)
{
    return header->magic == FBK_RUN_MAGIC &&
           header->header_crc ==
               fbk_crc32c(0, header, offsetof(struct fbk_run_header, header_crc)) &&
           header->entry_count == location->entry_count && header->log_id == location->log_id &&
           (salt == NULL || header->salt == *salt) &&
           header->offset_bytes == location->offset_bytes &&
           header->ledger_id == location->ledger_id &&
           header->first_entry_id == location->first_entry_id &&
           header->last_entry_id == location->last_entry_id &&
           header->size_bytes == location->size_bytes;
}

int32_t
fbk_run_table_check(const uint8_t *bytes, const struct fbk_location *location, const uint64_t *salt)
{
    struct fbk_run_header header;
    memcpy(&header, bytes, sizeof header);
    if (!header_agrees(&header, location, salt))
        return FBK_E_CORRUPT;
    const struct fbk_run_item *items =
        (const struct fbk_run_item *)(const void *)(bytes + sizeof header);
    uint64_t table_bytes = header.entry_count * sizeof(struct fbk_run_item);
    if (header.items_crc != fbk_crc32c(0, items, table_bytes))
        return FBK_E_CORRUPT;

    uint64_t end_bytes = sizeof header + table_bytes;
    int64_t previous = -1;
    for (uint32_t i = 0; i < header.entry_count; i++) {
        const struct fbk_run_item *item = &items[i];
        if (item->entry_id <= previous || item->offset_bytes != end_bytes ||
            item->size_bytes == 0 ||
            end_bytes + fbk_round_up(item->size_bytes, 8) > header.size_bytes)
            return FBK_E_CORRUPT;
        previous = item->entry_id;
        end_bytes += fbk_round_up(item->size_bytes, 8);
    }
    bool agrees = items[0].entry_id == header.first_entry_id && previous == header.last_entry_id &&
                  end_bytes == header.size_bytes;
    return agrees ? 0 : FBK_E_CORRUPT;
}

int32_t
fbk_run_check(uint8_t *bytes, uint32_t size_bytes, const struct fbk_location *location,
              const uint64_t *salt)
{
    if (!fbk_location_is_sane(location) || size_bytes != location->size_bytes)
        return FBK_E_CORRUPT;
    int32_t result = fbk_run_table_check(bytes, location, salt);
    if (result < 0)
        return result;
    struct fbk_run_item *items =
        (struct fbk_run_item *)(void *)(bytes + sizeof(struct fbk_run_header));
    int32_t damaged = 0;
    for (uint32_t i = 0; i < location->entry_count; i++) {
        struct fbk_run_item *item = &items[i];
        if (fbk_crc32c(0, bytes + item->offset_bytes, item->size_bytes) == item->crc)
            continue;
        /* The others are good and are served; this one can't be, by anyone who only looks at the
         * item. */
        item->offset_bytes = 0;
        item->size_bytes = 0;
        damaged++;
    }
    return damaged;
}

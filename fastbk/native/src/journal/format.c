/* Checks of the journal's structs.  No state, no allocation; every input may be hostile. */

#include "journal/format.h"

#include "base/checksum.h"
#include "base/run.h"

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

bool
fbk_record_items_ok(const struct fbk_record *record, const uint8_t *items)
{
    uint64_t sum = (uint64_t)record->entry_count * sizeof(struct fbk_batch_item);
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
        !fbk_record_items_ok(record, payload))
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
        !fbk_record_items_ok(record, to))
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

/* Whether the record, whose own header is whole, holds the run that its header says: the front and
 * each entry are whole, and it lies where it should. */
static bool
run_ok(const struct fbk_batch_header *header, const struct fbk_record *record,
       uint64_t offset_bytes, const uint8_t *run)
{
    struct fbk_run_header front;
    if (record->payload_bytes < sizeof front || record->entry_count == 0 ||
        record->entry_count > FBK_RUN_ENTRIES_MAX ||
        fbk_run_front_bytes(record->entry_count) > record->payload_bytes)
        return false;
    memcpy(&front, run, sizeof front);
    const struct fbk_location location = {
        .ledger_id = record->ledger_id,
        .first_entry_id = record->entry_id,
        .last_entry_id = front.last_entry_id,
        .last_entry_id_max = front.last_entry_id,
        .log_id = FBK_LOG_JOURNAL | header->file_id,
        .offset_bytes = header->offset_bytes + offset_bytes,
        .size_bytes = record->payload_bytes,
        .entry_count = record->entry_count,
    };
    if (!fbk_location_is_sane(&location) ||
        fbk_crc32c(0, run, fbk_run_front_bytes(record->entry_count)) != record->body_crc ||
        fbk_run_table_check(run, &location, &header->salt) < 0)
        return false;
    for (uint32_t i = 0; i < record->entry_count; i++) {
        struct fbk_run_item item;
        memcpy(&item, run + sizeof front + i * sizeof item, sizeof item);
        if (item.size_bytes < FBK_ENTRY_HEADER_BYTES ||
            fbk_crc32c(0, run + item.offset_bytes, item.size_bytes) != item.crc)
            return false;
    }
    return true;
}

static bool
record_ok(const struct fbk_batch_header *header, const struct fbk_record *record,
          uint64_t offset_bytes, uint64_t available_bytes, const uint8_t *payload)
{
    if (record->kind == FBK_KIND_RUN)
        return record->size_bytes <= available_bytes &&
               record->size_bytes == sizeof *record + (uint64_t)record->payload_bytes &&
               run_ok(header, record, offset_bytes + sizeof *record, payload);
    return fbk_record_shape_ok(record, available_bytes, FBK_BATCH_BYTES_MAX) &&
           fbk_record_ids_ok(record) && record->kind != FBK_KIND_FORCE &&
           fbk_record_body_ok(record, payload);
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
            record.sequence != header->first_record_sequence + i ||
            !record_ok(header, &record, offset, end - offset, batch + offset + sizeof record))
            return false;
        crc = fbk_crc32c(crc, batch + offset, sizeof record);
        offset += record.size_bytes;
    }
    if (offset != end)
        return false;
    crc = fbk_crc32c(crc, batch + end, header->padded_bytes - end);
    return crc == header->records_crc;
}

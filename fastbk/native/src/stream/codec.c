/* Entries of streams: many records into one entry, many entries into rows that point at their
 * records. */
#include "stream/stream.h"
#include "stream/varint.h"

#define HEAD FBK_STREAM_HEAD_BYTES
#define VARINT_BYTES_MAX 10u

enum {
    CODEC_NONE,
    CODEC_LZ4,
    CODEC_ZSTD
};

/* ------------ heads */

static bool
is_possible(const struct fbk_stream_head *head)
{
    if (head->codec > CODEC_ZSTD || head->first_record < 0 || head->first_txid < -1 ||
        head->last_txid < head->first_txid || head->time_us < 0 || head->raw_bytes > INT32_MAX)
        return false;
    if (head->codec == CODEC_NONE && head->raw_bytes != head->stored_bytes)
        return false;
    if (head->kind == FBK_STREAM_KIND_INDEX)
        return head->record_count == 0 && head->provenance_bytes == 0;
    if (head->kind == FBK_STREAM_KIND_PROVENANCE)
        return head->record_count == 0 && head->provenance_bytes != 0 && head->raw_bytes == 0 &&
               head->stored_bytes == 0 &&
               (head->first_record == 0) == (head->records_distance == 0);
    return head->kind == FBK_STREAM_KIND_RECORDS && head->record_count != 0 &&
           head->first_txid >= 0 &&
           head->record_count <= head->raw_bytes / FBK_STREAM_RECORD_BYTES_MIN &&
           head->first_record <= INT64_MAX - (int64_t)head->record_count;
}

int32_t
fbk_stream_read_head(const uint8_t *entry, uint64_t entry_bytes, struct fbk_stream_head *head)
{
    if (entry_bytes < HEAD || entry[0] != FBK_STREAM_VERSION ||
        (entry[3] & ~FBK_STREAM_FLAG_PROVENANCE) != 0)
        return FBK_E_PROTOCOL;
    uint32_t block_bytes = 0;
    if (entry[3] != 0) {
        if (entry_bytes - HEAD < FBK_STREAM_PROVENANCE_BYTES_MIN)
            return FBK_E_PROTOCOL;
        block_bytes = fbk_load_u32(entry + HEAD);
        if (block_bytes < FBK_STREAM_PROVENANCE_BYTES_MIN || block_bytes > entry_bytes - HEAD)
            return FBK_E_PROTOCOL;
    }
    const uint32_t distance = fbk_load_u32(entry + 12);
    if (distance != 0 && entry[1] == FBK_STREAM_KIND_RECORDS)
        return FBK_E_PROTOCOL;
    *head = (struct fbk_stream_head){
        .kind = entry[1],
        .codec = entry[2],
        .epoch = fbk_load_u32(entry + 4),
        .record_count = fbk_load_u32(entry + 8),
        .first_record = (int64_t)fbk_load_u64(entry + 16),
        .first_txid = (int64_t)fbk_load_u64(entry + 24),
        .last_txid = (int64_t)fbk_load_u64(entry + 32),
        .time_us = (int64_t)fbk_load_u64(entry + 40),
        .raw_bytes = fbk_load_u32(entry + 48),
        .stored_bytes = fbk_load_u32(entry + 52),
        .provenance_bytes = block_bytes,
        .records_distance = distance,
    };
    return is_possible(head) && head->stored_bytes == entry_bytes - HEAD - block_bytes
               ? 0
               : FBK_E_PROTOCOL;
}

void
fbk_stream_put_head(uint8_t *entry, const struct fbk_stream_head *head)
{
    entry[0] = FBK_STREAM_VERSION;
    entry[1] = (uint8_t)head->kind;
    entry[2] = (uint8_t)head->codec;
    entry[3] = head->provenance_bytes == 0 ? 0 : FBK_STREAM_FLAG_PROVENANCE;
    fbk_store_u32(entry + 4, head->epoch);
    fbk_store_u32(entry + 8, head->record_count);
    fbk_store_u32(entry + 12, head->records_distance);
    fbk_store_u64(entry + 16, (uint64_t)head->first_record);
    fbk_store_u64(entry + 24, (uint64_t)head->first_txid);
    fbk_store_u64(entry + 32, (uint64_t)head->last_txid);
    fbk_store_u64(entry + 40, (uint64_t)head->time_us);
    fbk_store_u32(entry + 48, head->raw_bytes);
    fbk_store_u32(entry + 52, head->stored_bytes);
}

/* ------------ varints */

/* NULL: it does not end before `end`, or is more than 64 bits. */
static inline const uint8_t *
get_varint(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
    if (FBK_LIKELY(at < end && *at < 0x80)) {
        *value = *at;
        return at + 1;
    }
    uint64_t found = 0;
    for (uint32_t i = 0; i < VARINT_BYTES_MAX && at < end; i++) {
        const uint64_t byte = *at++;
        if (i == VARINT_BYTES_MAX - 1 && byte > 1)
            return NULL;
        found |= (byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = found;
            return at;
        }
    }
    return NULL;
}

/* ------------ records into an entry */

int64_t
fbk_stream_encode(struct fbk_stream_head *head, const uint8_t *pieces,
                  const uint32_t *payload_sizes, const int32_t *key_sizes,
                  const uint32_t *header_sizes, const int64_t *txids, uint32_t count, uint8_t *out,
                  uint64_t out_bytes)
{
    if (count == 0 || out_bytes < HEAD)
        return FBK_E_PROTOCOL;
    uint8_t *at = out + HEAD;
    const uint8_t *end = out + (out_bytes < INT32_MAX ? out_bytes : INT32_MAX);
    int64_t previous = txids[0];
    if (previous < 0)
        return FBK_E_PROTOCOL;
    for (uint32_t i = 0; i < count; i++) {
        const int64_t key_bytes = key_sizes == NULL ? -1 : key_sizes[i];
        const uint64_t headers_bytes = header_sizes == NULL ? 0 : header_sizes[i];
        const uint64_t piece_bytes =
            payload_sizes[i] + headers_bytes + (key_bytes < 0 ? 0 : (uint64_t)key_bytes);
        if (txids[i] < previous || key_bytes < -1)
            return FBK_E_PROTOCOL;
        if (piece_bytes + FBK_STREAM_RECORD_OVERHEAD_BYTES_MAX > (uint64_t)(end - at))
            return FBK_E_FULL;
        at = fbk_stream_put_varint(at, (uint64_t)(txids[i] - previous));
        at = fbk_stream_put_varint(at, payload_sizes[i]);
        at = fbk_stream_put_varint(at, (uint64_t)(key_bytes + 1));
        at = fbk_stream_put_varint(at, headers_bytes);
        if (piece_bytes != 0)
            memcpy(at, pieces, piece_bytes);
        at += piece_bytes;
        pieces += piece_bytes;
        previous = txids[i];
    }
    head->codec = CODEC_NONE;
    head->record_count = count;
    head->first_txid = txids[0];
    head->last_txid = previous;
    head->raw_bytes = head->stored_bytes = (uint32_t)(at - out) - HEAD;
    head->provenance_bytes = head->records_distance = 0;
    fbk_stream_put_head(out, head);
    return at - out;
}

/* ------------ entries into rows */

/* One entry's row in the table of heads; `records`: how many rows the entries before it have. */
static bool
put_entry_head(const uint8_t *entry, uint64_t entry_bytes, int64_t *out, int64_t *records)
{
    struct fbk_stream_head head;
    if (fbk_stream_read_head(entry, entry_bytes, &head) != 0 || head.codec != CODEC_NONE)
        return false;
    out[0] = head.kind;
    out[1] = head.epoch;
    out[2] = head.record_count;
    out[3] = head.first_record;
    out[4] = head.first_txid;
    out[5] = head.last_txid;
    out[6] = head.time_us;
    out[7] = *records;
    *records += head.record_count;
    return true;
}

int64_t
fbk_stream_heads(const uint8_t *entries, const uint32_t *entry_sizes, uint32_t entry_count,
                 int64_t *heads, uint32_t *bad)
{
    int64_t records = 0;
    for (uint32_t i = 0; i < entry_count; i++) {
        *bad = i;
        if (!put_entry_head(entries, entry_sizes[i], heads + (uint64_t)FBK_STREAM_HEAD_WORDS * i,
                            &records))
            return FBK_E_PROTOCOL;
        entries += entry_sizes[i];
    }
    return records;
}

/* One record's row; NULL: it does not fit, or its txid overflows. */
static const uint8_t *
get_row(const uint8_t *at, const uint8_t *end, const uint8_t *base, int64_t *txid, int64_t *row)
{
    uint64_t delta, payload_bytes, key, headers_bytes;
    if ((at = get_varint(at, end, &delta)) == NULL ||
        (at = get_varint(at, end, &payload_bytes)) == NULL ||
        (at = get_varint(at, end, &key)) == NULL ||
        (at = get_varint(at, end, &headers_bytes)) == NULL)
        return NULL;
    const uint64_t left = (uint64_t)(end - at);
    const uint64_t key_bytes = key == 0 ? 0 : key - 1;
    if (delta > (uint64_t)(INT64_MAX - *txid) || key_bytes > left ||
        headers_bytes > left - key_bytes || payload_bytes > left - key_bytes - headers_bytes)
        return NULL;
    *txid += (int64_t)delta;
    row[2] = at - base;
    row[3] = key == 0 ? -1 : (int64_t)key_bytes;
    at += key_bytes;
    row[4] = at - base;
    row[5] = (int64_t)headers_bytes;
    at += headers_bytes;
    row[0] = at - base;
    row[1] = (int64_t)payload_bytes;
    row[6] = *txid;
    return at + payload_bytes;
}

/* All rows of entry `i`, places counted from `base`; returns behind them, NULL: the records are not
 * what the head says. */
static int64_t *
put_entry_rows(const uint8_t *entry, uint64_t entry_bytes, const uint8_t *base, uint32_t i,
               int64_t *rows)
{
    struct fbk_stream_head head;
    if (fbk_stream_read_head(entry, entry_bytes, &head) != 0 || head.codec != CODEC_NONE)
        return NULL;
    const uint8_t *at = entry + HEAD + head.provenance_bytes;
    const uint8_t *end = entry + entry_bytes;
    int64_t txid = head.first_txid;
    for (uint32_t slot = 0; slot < head.record_count; slot++) {
        at = get_row(at, end, base, &txid, rows);
        if (at == NULL || (slot == 0 && txid != head.first_txid))
            return NULL;
        rows[7] = (int64_t)((uint64_t)i << 32 | slot);
        rows += FBK_STREAM_ROW_WORDS;
    }
    return head.kind == FBK_STREAM_KIND_RECORDS && (at != end || txid != head.last_txid) ? NULL
                                                                                         : rows;
}

int32_t
fbk_stream_check_body(const uint8_t *body, uint64_t body_bytes, uint32_t count, uint32_t skip,
                      uint64_t *skipped)
{
    const uint8_t *at = body, *end = body + body_bytes;
    int64_t txid = 0;
    int64_t row[FBK_STREAM_ROW_WORDS];
    if (count == 0 || skip > count || count > body_bytes / FBK_STREAM_RECORD_BYTES_MIN)
        return FBK_E_PROTOCOL;
    for (uint32_t i = 0; i < count; i++) {
        if (i == skip)
            *skipped = (uint64_t)(at - body);
        /* Of one byte, so that whoever puts the body behind others can change it in its place. */
        if (at == end || *at != (i != 0) || (at = get_row(at, end, body, &txid, row)) == NULL)
            return FBK_E_PROTOCOL;
    }
    if (skip == count)
        *skipped = body_bytes;
    return at == end ? 0 : FBK_E_PROTOCOL;
}

int32_t
fbk_stream_rows(const uint8_t *entries, const uint32_t *entry_sizes, uint32_t entry_count,
                int64_t *rows, uint32_t *bad)
{
    const uint8_t *entry = entries;
    for (uint32_t i = 0; i < entry_count; i++) {
        *bad = i;
        rows = put_entry_rows(entry, entry_sizes[i], entries, i, rows);
        if (rows == NULL)
            return FBK_E_PROTOCOL;
        entry += entry_sizes[i];
    }
    return 0;
}

/* ------------ entries where they were received */

/* Where entry `i` of a table lies; NULL: not in these bytes. */
static const uint8_t *
entry_at(const uint8_t *data, uint64_t data_bytes, const int64_t *found, uint32_t i,
         uint64_t *entry_bytes)
{
    const int64_t *entry = found + (uint64_t)FBK_STREAM_TABLE_WORDS * i;
    const uint64_t at = (uint64_t)entry[3], bytes = (uint64_t)entry[4];
    *entry_bytes = bytes;
    return at <= data_bytes && bytes <= data_bytes - at ? data + at : NULL;
}

int64_t
fbk_stream_table_heads(const uint8_t *data, uint64_t data_bytes, const int64_t *found,
                       uint32_t entry_count, int64_t *heads, uint32_t *bad)
{
    int64_t records = 0;
    for (uint32_t i = 0; i < entry_count; i++) {
        uint64_t bytes;
        const uint8_t *entry = entry_at(data, data_bytes, found, i, &bytes);
        *bad = i;
        if (entry == NULL ||
            !put_entry_head(entry, bytes, heads + (uint64_t)FBK_STREAM_HEAD_WORDS * i, &records))
            return FBK_E_PROTOCOL;
    }
    return records;
}

int32_t
fbk_stream_table_rows(const uint8_t *data, uint64_t data_bytes, const int64_t *found,
                      uint32_t entry_count, int64_t *rows, uint32_t *bad)
{
    for (uint32_t i = 0; i < entry_count; i++) {
        uint64_t bytes;
        const uint8_t *entry = entry_at(data, data_bytes, found, i, &bytes);
        *bad = i;
        if (entry == NULL || (rows = put_entry_rows(entry, bytes, data, i, rows)) == NULL)
            return FBK_E_PROTOCOL;
    }
    return 0;
}

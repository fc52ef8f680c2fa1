/* Entries of streams: many records into one entry, many entries into rows that point at their records. */
#include "fbk_stream.h"
#include "fbk_stream_varint.h"

#define HEAD FBK_STREAM_HEAD_BYTES
#define VARINT_BYTES_MAX 10u

enum { CODEC_NONE, CODEC_LZ4, CODEC_ZSTD };

/* ------------------------------------------------------------------ heads */

static bool
is_possible(const struct fbk_stream_head *head)
{
    const bool is_index = head->kind == FBK_STREAM_KIND_INDEX;
    if ((head->kind != FBK_STREAM_KIND_RECORDS && !is_index) || head->codec > CODEC_ZSTD || head->first_record < 0 ||
        head->first_txid < -1 || head->last_txid < head->first_txid || head->time_us < 0 || head->raw_bytes > INT32_MAX)
        return false;
    if (head->codec == CODEC_NONE && head->raw_bytes != head->stored_bytes)
        return false;
    if (is_index)
        return head->record_count == 0;
    return head->record_count != 0 && head->first_txid >= 0 &&
           head->record_count <= head->raw_bytes / FBK_STREAM_RECORD_BYTES_MIN &&
           head->first_record <= INT64_MAX - (int64_t)head->record_count;
}

int32_t
fbk_stream_read_head(const uint8_t *entry, uint64_t entry_bytes, struct fbk_stream_head *head)
{
    if (entry_bytes < HEAD || entry[0] != FBK_STREAM_VERSION || entry[3] != 0 || fbk_load_u32(entry + 12) != 0)
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
    };
    return is_possible(head) && head->stored_bytes == entry_bytes - HEAD ? 0 : FBK_E_PROTOCOL;
}

void
fbk_stream_put_head(uint8_t *entry, const struct fbk_stream_head *head)
{
    entry[0] = FBK_STREAM_VERSION;
    entry[1] = (uint8_t)head->kind;
    entry[2] = (uint8_t)head->codec;
    entry[3] = 0;
    fbk_store_u32(entry + 4, head->epoch);
    fbk_store_u32(entry + 8, head->record_count);
    fbk_store_u32(entry + 12, 0);
    fbk_store_u64(entry + 16, (uint64_t)head->first_record);
    fbk_store_u64(entry + 24, (uint64_t)head->first_txid);
    fbk_store_u64(entry + 32, (uint64_t)head->last_txid);
    fbk_store_u64(entry + 40, (uint64_t)head->time_us);
    fbk_store_u32(entry + 48, head->raw_bytes);
    fbk_store_u32(entry + 52, head->stored_bytes);
}

/* ------------------------------------------------------------------ varints */

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

/* ------------------------------------------------------------------ records into an entry */

int64_t
fbk_stream_encode(struct fbk_stream_head *head, const uint8_t *pieces, const uint32_t *payload_sizes, const int32_t *key_sizes,
                  const uint32_t *header_sizes, const int64_t *txids, uint32_t count, uint8_t *out, uint64_t out_bytes)
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
        const uint64_t piece_bytes = payload_sizes[i] + headers_bytes + (key_bytes < 0 ? 0 : (uint64_t)key_bytes);
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
    fbk_stream_put_head(out, head);
    return at - out;
}

/* ------------------------------------------------------------------ entries into rows */

int64_t
fbk_stream_heads(const uint8_t *entries, const uint32_t *entry_sizes, uint32_t entry_count, int64_t *heads, uint32_t *bad)
{
    int64_t records = 0;
    for (uint32_t i = 0; i < entry_count; i++) {
        struct fbk_stream_head head;
        *bad = i;
        if (fbk_stream_read_head(entries, entry_sizes[i], &head) != 0 || head.codec != CODEC_NONE)
            return FBK_E_PROTOCOL;
        int64_t *out = heads + (uint64_t)FBK_STREAM_HEAD_WORDS * i;
        out[0] = head.kind;
        out[1] = head.epoch;
        out[2] = head.record_count;
        out[3] = head.first_record;
        out[4] = head.first_txid;
        out[5] = head.last_txid;
        out[6] = head.time_us;
        out[7] = records;
        records += head.record_count;
        entries += entry_sizes[i];
    }
    return records;
}

/* One record's row; NULL: it does not fit, or its txid overflows. */
static const uint8_t *
get_row(const uint8_t *at, const uint8_t *end, const uint8_t *base, int64_t *txid, int64_t *row)
{
    uint64_t delta, payload_bytes, key, headers_bytes;
    if ((at = get_varint(at, end, &delta)) == NULL || (at = get_varint(at, end, &payload_bytes)) == NULL ||
        (at = get_varint(at, end, &key)) == NULL || (at = get_varint(at, end, &headers_bytes)) == NULL)
        return NULL;
    const uint64_t left = (uint64_t)(end - at);
    const uint64_t key_bytes = key == 0 ? 0 : key - 1;
    if (delta > (uint64_t)(INT64_MAX - *txid) || key_bytes > left || headers_bytes > left - key_bytes ||
        payload_bytes > left - key_bytes - headers_bytes)
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

int32_t
fbk_stream_rows(const uint8_t *entries, const uint32_t *entry_sizes, uint32_t entry_count, int64_t *rows, uint32_t *bad)
{
    const uint8_t *entry = entries;
    for (uint32_t i = 0; i < entry_count; i++) {
        struct fbk_stream_head head;
        *bad = i;
        if (fbk_stream_read_head(entry, entry_sizes[i], &head) != 0 || head.codec != CODEC_NONE)
            return FBK_E_PROTOCOL;
        const uint8_t *at = entry + HEAD;
        const uint8_t *end = entry + entry_sizes[i];
        int64_t txid = head.first_txid;
        for (uint32_t slot = 0; slot < head.record_count; slot++) {
            at = get_row(at, end, entries, &txid, rows);
            if (at == NULL || (slot == 0 && txid != head.first_txid))
                return FBK_E_PROTOCOL;
            rows[7] = (int64_t)((uint64_t)i << 32 | slot);
            rows += FBK_STREAM_ROW_WORDS;
        }
        if (head.kind == FBK_STREAM_KIND_RECORDS && (at != end || txid != head.last_txid))
            return FBK_E_PROTOCOL;
        entry = end;
    }
    return 0;
}

/* Rows of Arrow's columns into entries of a stream: see boundary/stream_gather.h. */
#include "stream/stream.h"
#include "stream/varint.h"

#include "boundary/stream_gather.h"

#define HEAD FBK_STREAM_HEAD_BYTES
#define NAME_BYTES_MAX 0xffffu
#define HEADER_OVERHEAD_BYTES 6u

/* One record's parts. */
struct parts {
    const uint8_t *value;
    const uint8_t *key; /* NULL: it has none */
    uint64_t value_bytes;
    uint64_t key_bytes;
    uint64_t headers_bytes;
    uint64_t first_header;
    uint64_t end_header;
};

static inline bool
is_null(const struct fbk_stream_column *column, uint64_t item)
{
    if (column->validity == NULL)
        return false;
    const uint64_t bit = (uint64_t)column->first_bit + item;
    return (column->validity[bit / 8] >> (bit % 8) & 1) == 0;
}

static inline bool
find_range(const struct fbk_stream_column *column, uint64_t item, uint64_t size, uint64_t *begin,
           uint64_t *end)
{
    const int64_t a = column->offsets[item], b = column->offsets[item + 1];
    if (FBK_UNLIKELY(a < 0 || b < a || (uint64_t)b > size))
        return false;
    *begin = (uint64_t)a;
    *end = (uint64_t)b;
    return true;
}

/* NULL: its offsets make no sense. */
static inline const uint8_t *
find_item(const struct fbk_stream_column *column, uint64_t item, uint64_t *size_bytes)
{
    static const uint8_t nothing[1];
    uint64_t begin, end;
    if (!find_range(column, item, column->size_bytes, &begin, &end))
        return NULL;
    *size_bytes = end - begin;
    return end == begin ? nothing : column->bytes + begin;
}

static const uint8_t *
find_header_value(const struct fbk_stream_table *table, uint64_t header, uint64_t *size_bytes)
{
    const uint8_t *value = find_item(&table->header_values, header, size_bytes);
    if (value != NULL && is_null(&table->header_values, header))
        *size_bytes = 0;
    return value;
}

static bool
measure_headers(const struct fbk_stream_table *table, uint32_t row, struct parts *parts)
{
    if (is_null(&table->headers, row))
        return true;
    if (!find_range(&table->headers, row, table->header_count, &parts->first_header,
                    &parts->end_header))
        return false;
    for (uint64_t i = parts->first_header; i < parts->end_header; i++) {
        uint64_t name_bytes, value_bytes;
        if (find_item(&table->header_names, i, &name_bytes) == NULL ||
            find_header_value(table, i, &value_bytes) == NULL || name_bytes > NAME_BYTES_MAX)
            return false;
        parts->headers_bytes += HEADER_OVERHEAD_BYTES + name_bytes + value_bytes;
    }
    return true;
}

static bool
measure(const struct fbk_stream_table *table, uint32_t row, struct parts *parts)
{
    *parts = (struct parts){0};
    if ((parts->value = find_item(&table->values, row, &parts->value_bytes)) == NULL)
        return false;
    if (table->keys.offsets != NULL && !is_null(&table->keys, row) &&
        (parts->key = find_item(&table->keys, row, &parts->key_bytes)) == NULL)
        return false;
    return table->headers.offsets == NULL || measure_headers(table, row, parts);
}

static inline uint8_t *
put_bytes(uint8_t *at, const uint8_t *bytes, uint64_t size_bytes)
{
    memcpy(at, bytes, size_bytes);
    return at + size_bytes;
}

static uint8_t *
put_headers(uint8_t *at, const struct fbk_stream_table *table, const struct parts *parts)
{
    for (uint64_t i = parts->first_header; i < parts->end_header; i++) {
        uint64_t name_bytes = 0, value_bytes = 0;
        const uint8_t *name = find_item(&table->header_names, i, &name_bytes);
        const uint8_t *value = find_header_value(table, i, &value_bytes);
        at[0] = (uint8_t)name_bytes;
        at[1] = (uint8_t)(name_bytes >> 8);
        at = put_bytes(at + 2, name, name_bytes);
        fbk_store_u32(at, (uint32_t)value_bytes);
        at = put_bytes(at + 4, value, value_bytes);
    }
    return at;
}

int64_t
fbk_stream_gather(struct fbk_stream_head *head, const struct fbk_stream_table *table,
                  uint32_t first, uint32_t end, uint64_t body_bytes_wanted, uint8_t *out,
                  uint64_t out_bytes, uint32_t *taken)
{
    *taken = 0;
    if (first >= end || out_bytes < HEAD || head->first_record < 0 ||
        head->first_record > INT64_MAX - 1 - (int64_t)end)
        return FBK_E_PROTOCOL;
    const uint64_t room = (out_bytes < INT32_MAX ? out_bytes : INT32_MAX) - HEAD;
    uint8_t *const body = out + HEAD;
    uint8_t *at = body;
    uint32_t row = first;
    for (; row < end; row++) {
        struct parts parts;
        if (!measure(table, row, &parts))
            return FBK_E_PROTOCOL;
        const uint64_t used = (uint64_t)(at - body);
        const uint64_t bytes = parts.value_bytes + parts.key_bytes + parts.headers_bytes +
                               FBK_STREAM_RECORD_OVERHEAD_BYTES_MAX;
        if (bytes > room - used || (row != first && used + bytes > body_bytes_wanted))
            break;
        at = fbk_stream_put_varint(at, row != first);
        at = fbk_stream_put_varint(at, parts.value_bytes);
        at = fbk_stream_put_varint(at, parts.key == NULL ? 0 : parts.key_bytes + 1);
        at = fbk_stream_put_varint(at, parts.headers_bytes);
        if (parts.key != NULL)
            at = put_bytes(at, parts.key, parts.key_bytes);
        at = put_headers(at, table, &parts);
        at = put_bytes(at, parts.value, parts.value_bytes);
    }
    if (row == first)
        return FBK_E_FULL;
    *taken = row - first;
    head->kind = FBK_STREAM_KIND_RECORDS;
    head->codec = 0;
    head->record_count = *taken;
    head->first_txid = head->first_record + 1;
    head->last_txid = head->first_record + *taken;
    head->raw_bytes = head->stored_bytes = (uint32_t)(at - body);
    fbk_stream_put_head(out, head);
    return at - out;
}

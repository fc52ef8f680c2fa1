/* Records of streams into Arrow's buffers: see boundary/stream_columns.h.  Rows are checked again:
 * they came through Python. */
#include "stream/stream.h"

#define NAME_SIZE_BYTES 2u
#define VALUE_SIZE_BYTES 4u

/* A part of the entries that a row names. */
struct span {
    const uint8_t *at;
    uint64_t bytes;
};

static inline bool
get_span(const struct fbk_column_source *from, int64_t at, int64_t bytes, struct span *out)
{
    if (FBK_UNLIKELY(at < 0 || bytes < 0 || (uint64_t)at > from->entries_bytes ||
                     (uint64_t)bytes > from->entries_bytes - (uint64_t)at))
        return false;
    *out = (struct span){from->entries + at, (uint64_t)bytes};
    return true;
}

static inline const int64_t *
row_of(const struct fbk_column_source *from, uint64_t i)
{
    return from->rows + i * FBK_STREAM_ROW_WORDS;
}

/* ------------ headers */

/* How many bytes the UTF-8 character at `at` has; 0: it is none. */
static uint32_t
character_bytes(const uint8_t *at, const uint8_t *end)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const uint32_t bytes = *at < 0x80   ? 1
                           : *at < 0xc0 ? 0
                           : *at < 0xe0 ? 2
                           : *at < 0xf0 ? 3
                           : *at < 0xf8 ? 4
                                        : 0;
    if (bytes < 2)
        return bytes;
    if ((uint64_t)(end - at) < bytes)
        return 0;
    uint32_t code = *at & (0x7fu >> bytes);
    for (uint32_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3fu);
    }
    return code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : bytes;
}

static bool
is_text(struct span span)
{
    const uint8_t *end = span.at + span.bytes;
    while (span.at < end) {
        const uint32_t bytes = character_bytes(span.at, end);
        if (bytes == 0)
            return false;
        span.at += bytes;
    }
    return true;
}

/* Takes one header off the front of `left`. */
static bool
take_header(struct span *left, struct span *name, struct span *value)
{
    if (left->bytes < NAME_SIZE_BYTES)
        return false;
    *name = (struct span){left->at + NAME_SIZE_BYTES, fbk_load_u16(left->at)};
    if (left->bytes - NAME_SIZE_BYTES < name->bytes + VALUE_SIZE_BYTES)
        return false;
    const uint8_t *at = name->at + name->bytes;
    *value = (struct span){at + VALUE_SIZE_BYTES, fbk_load_u32(at)};
    const uint64_t passed = NAME_SIZE_BYTES + name->bytes + VALUE_SIZE_BYTES;
    if (left->bytes - passed < value->bytes)
        return false;
    *left = (struct span){value->at + value->bytes, left->bytes - passed - value->bytes};
    return true;
}

int32_t
fbk_stream_column_sizes(const struct fbk_column_source *from, uint32_t with_headers,
                        struct fbk_column_sizes *sizes, uint64_t *bad)
{
    struct fbk_column_sizes sum = *sizes;
    for (uint64_t i = 0; i < from->row_count; i++) {
        const int64_t *row = row_of(from, i);
        struct span payload, key = {NULL, 0}, left;
        *bad = i;
        if (!get_span(from, row[0], row[1], &payload) ||
            (row[3] >= 0 && !get_span(from, row[2], row[3], &key)) ||
            !get_span(from, row[4], row[5], &left))
            return FBK_E_PROTOCOL;
        sum.value_bytes += payload.bytes;
        sum.key_bytes += key.bytes;
        while (with_headers && left.bytes != 0) {
            struct span name, value;
            if (!take_header(&left, &name, &value) || !is_text(name))
                return FBK_E_PROTOCOL;
            sum.headers++;
            sum.name_bytes += name.bytes;
            sum.header_value_bytes += value.bytes;
        }
    }
    *sizes = sum;
    return 0;
}

/* ------------ columns */

static inline bool
is_room(uint64_t filled, uint64_t more, uint64_t room)
{
    return filled <= room && more <= room - filled && filled + more <= INT32_MAX;
}

/* Puts bytes behind those that are there, and where they end behind the offsets that are there. */
static inline bool
put_bytes(uint8_t *values, uint64_t *filled, uint64_t room, int32_t *offset_behind,
          struct span from)
{
    if (FBK_UNLIKELY(!is_room(*filled, from.bytes, room)))
        return false;
    if (from.bytes != 0)
        memcpy(values + *filled, from.at, from.bytes);
    *filled += from.bytes;
    *offset_behind = (int32_t)*filled;
    return true;
}

static int32_t
fill_numbers(const struct fbk_columns *to, const struct fbk_column_source *from, uint64_t *bad)
{
    for (uint64_t i = 0; i < from->row_count; i++) {
        const int64_t *row = row_of(from, i);
        const uint64_t entry = (uint64_t)row[7] >> 32, at = to->rows + i;
        if (FBK_UNLIKELY(entry >= from->head_count)) {
            *bad = i;
            return FBK_E_PROTOCOL;
        }
        if (to->segments != NULL)
            to->segments[at] = from->segment;
        if (to->entries != NULL)
            to->entries[at] = (int64_t)((uint64_t)from->first_entry_id + entry);
        if (to->slots != NULL)
            to->slots[at] = (int32_t)(row[7] & INT32_MAX);
        if (to->seqs != NULL)
            to->seqs[at] = (int64_t)((uint64_t)from->first_seq + i);
        if (to->txids != NULL)
            to->txids[at] = (int64_t)((uint64_t)from->base_txid + (uint64_t)row[6]);
        if (to->times_us != NULL)
            to->times_us[at] = from->heads[entry * FBK_STREAM_HEAD_WORDS + 6];
    }
    return 0;
}

static int32_t
fill_values(struct fbk_columns *to, const struct fbk_column_source *from, uint64_t *bad)
{
    for (uint64_t i = 0; i < from->row_count; i++) {
        const int64_t *row = row_of(from, i);
        struct span payload;
        *bad = i;
        if (!get_span(from, row[0], row[1], &payload))
            return FBK_E_PROTOCOL;
        if (!put_bytes(to->values, &to->filled.value_bytes, to->room.value_bytes,
                       to->value_offsets + to->rows + i + 1, payload))
            return FBK_E_FULL;
    }
    return 0;
}

static int32_t
fill_keys(struct fbk_columns *to, const struct fbk_column_source *from, uint64_t *bad)
{
    for (uint64_t i = 0; i < from->row_count; i++) {
        const int64_t *row = row_of(from, i);
        const uint64_t at = to->rows + i;
        const bool is_there = row[3] >= 0;
        struct span key = {NULL, 0};
        *bad = i;
        if (is_there && !get_span(from, row[2], row[3], &key))
            return FBK_E_PROTOCOL;
        if (at % 8 == 0)
            to->key_bits[at / 8] = 0; /* the buffer's memory held anything */
        to->key_bits[at / 8] |= (uint8_t)((uint32_t)is_there << at % 8);
        if (!put_bytes(to->keys, &to->filled.key_bytes, to->room.key_bytes,
                       to->key_offsets + at + 1, key))
            return FBK_E_FULL;
    }
    return 0;
}

static int32_t
fill_headers(struct fbk_columns *to, const struct fbk_column_source *from, uint64_t *bad)
{
    struct fbk_column_sizes *filled = &to->filled;
    for (uint64_t i = 0; i < from->row_count; i++) {
        const int64_t *row = row_of(from, i);
        struct span left, name, value;
        *bad = i;
        if (!get_span(from, row[4], row[5], &left))
            return FBK_E_PROTOCOL;
        while (left.bytes != 0) {
            if (!take_header(&left, &name, &value) || !is_text(name))
                return FBK_E_PROTOCOL;
            const uint64_t at = filled->headers;
            if (!is_room(at, 1, to->room.headers) ||
                !put_bytes(to->names, &filled->name_bytes, to->room.name_bytes,
                           to->name_offsets + at + 1, name) ||
                !put_bytes(to->header_values, &filled->header_value_bytes,
                           to->room.header_value_bytes, to->header_value_offsets + at + 1, value))
                return FBK_E_FULL;
            filled->headers = at + 1;
        }
        to->header_offsets[to->rows + i + 1] = (int32_t)filled->headers;
    }
    return 0;
}

/* The first offset of each column, before any row is there. */
static void
begin_offsets(const struct fbk_columns *to)
{
    int32_t *const all[] = {to->key_offsets, to->value_offsets, to->header_offsets,
                            to->name_offsets, to->header_value_offsets};
    for (uint32_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (all[i] != NULL)
            *all[i] = 0;
}

int32_t
fbk_stream_fill_columns(struct fbk_columns *to, const struct fbk_column_source *from, uint64_t *bad)
{
    *bad = 0;
    if (!is_room(to->rows, from->row_count, to->rows_max))
        return FBK_E_FULL;
    if (to->rows == 0)
        begin_offsets(to);
    int32_t status = fill_numbers(to, from, bad);
    if (status == 0 && to->value_offsets != NULL)
        status = fill_values(to, from, bad);
    if (status == 0 && to->key_offsets != NULL)
        status = fill_keys(to, from, bad);
    if (status == 0 && to->header_offsets != NULL)
        status = fill_headers(to, from, bad);
    if (status == 0)
        to->rows += from->row_count;
    return status;
}

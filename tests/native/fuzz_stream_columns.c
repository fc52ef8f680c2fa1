/* Any bytes as entries of a stream, and any rows of them, into columns: buffers of exactly the size
 * that was asked for are enough, what does not fit or is not there is refused, and nothing outside
 * is touched (ASan watches the buffers' ends). */
#include "stream/stream.h"

#define RECORDS_MAX 512u
#define PARTS_MAX 3u

static int64_t head[FBK_STREAM_HEAD_WORDS];
static int64_t rows[RECORDS_MAX * FBK_STREAM_ROW_WORDS];

static void *
room_for(uint64_t bytes)
{
    void *made = malloc(bytes == 0 ? 1 : bytes);
    FBK_ASSERT(made != NULL);
    memset(made, 0xa5, bytes); /* as memory that was used before */
    return made;
}

static void
make_columns(struct fbk_columns *out, uint64_t rows_max, const struct fbk_column_sizes *sizes,
             uint32_t with_headers)
{
    *out = (struct fbk_columns){
        .rows_max = rows_max,
        .room = *sizes,
        .segments = room_for(rows_max * 8),
        .entries = room_for(rows_max * 8),
        .slots = room_for(rows_max * 4),
        .seqs = room_for(rows_max * 8),
        .txids = room_for(rows_max * 8),
        .times_us = room_for(rows_max * 8),
        .key_bits = room_for((rows_max + 7) / 8),
        .key_offsets = room_for((rows_max + 1) * 4),
        .keys = room_for(sizes->key_bytes),
        .value_offsets = room_for((rows_max + 1) * 4),
        .values = room_for(sizes->value_bytes),
    };
    if (with_headers) {
        out->header_offsets = room_for((rows_max + 1) * 4);
        out->name_offsets = room_for((sizes->headers + 1) * 4);
        out->names = room_for(sizes->name_bytes);
        out->header_value_offsets = room_for((sizes->headers + 1) * 4);
        out->header_values = room_for(sizes->header_value_bytes);
    }
}

static void
free_columns(struct fbk_columns *columns)
{
    void *const all[] = {
        columns->segments,      columns->entries,     columns->slots,
        columns->seqs,          columns->txids,       columns->times_us,
        columns->key_bits,      columns->key_offsets, columns->keys,
        columns->value_offsets, columns->values,      columns->header_offsets,
        columns->name_offsets,  columns->names,       columns->header_value_offsets,
        columns->header_values};
    for (uint32_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

static void
check_offsets(const int32_t *offsets, uint64_t count, uint64_t end)
{
    FBK_ASSERT(offsets[0] == 0 && (uint64_t)offsets[count] == end);
    for (uint64_t i = 0; i < count; i++)
        FBK_ASSERT(offsets[i] <= offsets[i + 1]);
}

static void
check_columns(const struct fbk_columns *columns, const struct fbk_column_source *from,
              uint64_t parts)
{
    const uint64_t count = from->row_count * parts;
    FBK_ASSERT(columns->rows == count &&
               memcmp(&columns->filled, &columns->room, sizeof(columns->room)) == 0);
    check_offsets(columns->value_offsets, count, columns->room.value_bytes);
    check_offsets(columns->key_offsets, count, columns->room.key_bytes);
    if (columns->header_offsets != NULL) {
        check_offsets(columns->header_offsets, count, columns->room.headers);
        check_offsets(columns->name_offsets, columns->room.headers, columns->room.name_bytes);
        check_offsets(columns->header_value_offsets, columns->room.headers,
                      columns->room.header_value_bytes);
    }
    for (uint64_t i = 0; i < count; i++) {
        const int64_t *row = from->rows + i % from->row_count * FBK_STREAM_ROW_WORDS;
        const bool has_key = columns->key_bits[i / 8] >> i % 8 & 1;
        FBK_ASSERT(has_key == (row[3] >= 0));
        FBK_ASSERT(columns->value_offsets[i + 1] - columns->value_offsets[i] == row[1]);
        FBK_ASSERT(memcmp(columns->values + columns->value_offsets[i], from->entries + row[0],
                          (size_t)row[1]) == 0);
        if (has_key)
            FBK_ASSERT(memcmp(columns->keys + columns->key_offsets[i], from->entries + row[2],
                              (size_t)row[3]) == 0);
        FBK_ASSERT(columns->segments[i] == from->segment && columns->times_us[i] == from->heads[6]);
    }
}

/* The same records `parts` times, as that many chunks would be. */
static void
go(const struct fbk_column_source *from, uint64_t parts, uint32_t with_headers, uint64_t too_little)
{
    struct fbk_column_sizes sizes = {0};
    uint64_t bad = 0;
    for (uint64_t i = 0; i < parts; i++) {
        const struct fbk_column_sizes before = sizes;
        if (fbk_stream_column_sizes(from, with_headers, &sizes, &bad) != 0) {
            FBK_ASSERT(bad < from->row_count && memcmp(&before, &sizes, sizeof(sizes)) == 0);
            return;
        }
    }
    if (sizes.value_bytes > 1 << 20 || sizes.key_bytes > 1 << 20)
        return; /* rows that name the same bytes again and again */
    const bool cut = too_little != 0 && sizes.value_bytes != 0;
    if (cut)
        sizes.value_bytes -= 1 + too_little % sizes.value_bytes;
    struct fbk_columns columns;
    make_columns(&columns, from->row_count * parts, &sizes, with_headers);
    int32_t status = 0;
    for (uint64_t i = 0; i < parts && status == 0; i++)
        status = fbk_stream_fill_columns(&columns, from, &bad);
    FBK_ASSERT(status == 0 || status == FBK_E_FULL || status == FBK_E_PROTOCOL);
    if (cut)
        FBK_ASSERT(status != 0);
    if (status == 0) {
        check_columns(&columns, from, parts);
        FBK_ASSERT(from->row_count == 0 ||
                   fbk_stream_fill_columns(&columns, from, &bad) == FBK_E_FULL);
    }
    free_columns(&columns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    const uint64_t parts = 1 + data[0] % PARTS_MAX, too_little = data[2] % 4 == 0 ? 1 + data[3] : 0;
    const uint32_t with_headers = data[1] & 1;
    const bool is_torn = data[1] & 2;
    data += 4, size -= 4;
    const uint32_t bytes = (uint32_t)size;
    uint32_t bad = 0;
    int64_t records = fbk_stream_heads(data, &bytes, 1, head, &bad);
    if (records < 0 || records > RECORDS_MAX || fbk_stream_rows(data, &bytes, 1, rows, &bad) != 0) {
        /* No entry: then its bytes are rows of themselves, sizes and places of any value. */
        records = (int64_t)(size / 8 / FBK_STREAM_ROW_WORDS);
        records = records > RECORDS_MAX ? RECORDS_MAX : records;
        memcpy(rows, data, (size_t)records * 8 * FBK_STREAM_ROW_WORDS);
        for (int64_t i = 0; i < records * FBK_STREAM_ROW_WORDS; i++)
            if (is_torn)
                /* mostly within the bytes and heads */
                rows[i] &= i % FBK_STREAM_ROW_WORDS == 7 ? 0x10000003f : 0x3f;
    }
    struct fbk_column_source from = {data, size, head, 1, rows, (uint64_t)records, 7, 40, 1000, 10};
    go(&from, parts, with_headers, too_little);
    return 0;
}

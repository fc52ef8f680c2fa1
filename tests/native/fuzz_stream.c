/* Any bytes as entries of a stream: what is accepted lies inside what was given, and fits to its
 * head. */
#include "stream/stream.h"

#include <string.h>

#define ENTRIES_MAX 4u
#define RECORDS_MAX 4096u

static int64_t heads[ENTRIES_MAX * FBK_STREAM_HEAD_WORDS];
static int64_t rows[RECORDS_MAX * FBK_STREAM_ROW_WORDS];
static int64_t table_heads[ENTRIES_MAX * FBK_STREAM_HEAD_WORDS];
static int64_t table_rows[RECORDS_MAX * FBK_STREAM_ROW_WORDS];

static void
check_part(int64_t at, int64_t bytes, uint64_t size_bytes)
{
    FBK_ASSERT(at >= 0 && bytes >= 0 && (uint64_t)at <= size_bytes &&
               (uint64_t)bytes <= size_bytes - (uint64_t)at);
}

/* Entries named by a table give the same, and a table that lies about where they are gives nothing
 * from outside. */
static void
check_table(const uint8_t *data, size_t size, const uint32_t *sizes, uint32_t count,
            int64_t records, bool are_rows_good)
{
    int64_t table[ENTRIES_MAX * FBK_STREAM_TABLE_WORDS] = {0}, at = 0;
    uint32_t bad = 0;
    for (uint32_t i = 0; i < count; i++, at += sizes[i - 1]) {
        table[i * FBK_STREAM_TABLE_WORDS + 3] = at;
        table[i * FBK_STREAM_TABLE_WORDS + 4] = sizes[i];
    }
    FBK_ASSERT(fbk_stream_table_heads(data, size, table, count, table_heads, &bad) == records);
    if (records < 0 || records > RECORDS_MAX)
        return;
    FBK_ASSERT(memcmp(heads, table_heads, sizeof(int64_t) * FBK_STREAM_HEAD_WORDS * count) == 0);
    FBK_ASSERT((fbk_stream_table_rows(data, size, table, count, table_rows, &bad) == 0) ==
               are_rows_good);
    if (are_rows_good)
        FBK_ASSERT(memcmp(rows, table_rows,
                          sizeof(int64_t) * FBK_STREAM_ROW_WORDS * (size_t)records) == 0);
    const uint32_t word = 3 + (size & 1), lying = (uint32_t)(size / 2) % count;
    table[lying * FBK_STREAM_TABLE_WORDS + word] +=
        size % 3 == 0 ? -1 - (int64_t)size : (int64_t)size + 1;
    FBK_ASSERT(fbk_stream_table_heads(data, size, table, count, table_heads, &bad) < 0);
    FBK_ASSERT(bad <= lying);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    const uint32_t count = 1 + data[0] % ENTRIES_MAX;
    data++, size--;
    uint32_t sizes[ENTRIES_MAX], bad = 0;
    uint64_t left = size;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t part = i + 1 == count ? left : left / (count - i);
        struct fbk_stream_head head;
        uint64_t skipped = 0;
        if (left >= FBK_STREAM_HEAD_BYTES &&
            fbk_load_u32(data + (size - left) + 52) <= left - FBK_STREAM_HEAD_BYTES &&
            i + 1 != count)
            part = FBK_STREAM_HEAD_BYTES + fbk_load_u32(data + (size - left) + 52);
        if (fbk_stream_read_head(data + (size - left), part, &head) == 0) {
            const uint64_t before = FBK_STREAM_HEAD_BYTES + (uint64_t)head.provenance_bytes;
            FBK_ASSERT(before + head.stored_bytes == part);
            /* What is taken as a producer's records is whole, and can be cut between two of them.
             */
            if (fbk_stream_check_body(data + (size - left) + before, head.stored_bytes,
                                      head.record_count, (uint32_t)(part % 7), &skipped) == 0)
                FBK_ASSERT(skipped <= head.stored_bytes);
        }
        sizes[i] = (uint32_t)part;
        left -= part;
    }
    const int64_t records = fbk_stream_heads(data, sizes, count, heads, &bad);
    FBK_ASSERT(records < 0 || (uint64_t)records <= size / FBK_STREAM_RECORD_BYTES_MIN);
    const bool is_room = records >= 0 && records <= RECORDS_MAX;
    const bool are_rows_good = is_room && fbk_stream_rows(data, sizes, count, rows, &bad) == 0;
    const uint32_t bad_of_rows = bad;
    check_table(data, size, sizes, count, records, are_rows_good);
    bad = bad_of_rows;
    if (!are_rows_good) {
        FBK_ASSERT(bad < count);
        return 0;
    }
    for (int64_t i = 0; i < records; i++) {
        const int64_t *row = rows + i * FBK_STREAM_ROW_WORDS;
        check_part(row[0], row[1], size);
        if (row[3] >= 0)
            check_part(row[2], row[3], size);
        check_part(row[4], row[5], size);
        FBK_ASSERT((uint64_t)row[7] >> 32 < count);
        FBK_ASSERT(row[6] >= 0);
    }
    return 0;
}

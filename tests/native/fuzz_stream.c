/* Any bytes as entries of a stream: what is accepted lies inside what was given, and fits to its head. */
#include "fbk_stream.h"

#define ENTRIES_MAX 4u
#define RECORDS_MAX 4096u

static int64_t heads[ENTRIES_MAX * FBK_STREAM_HEAD_WORDS];
static int64_t rows[RECORDS_MAX * FBK_STREAM_ROW_WORDS];

static void
check_part(int64_t at, int64_t bytes, uint64_t size_bytes)
{
    FBK_ASSERT(at >= 0 && bytes >= 0 && (uint64_t)at <= size_bytes && (uint64_t)bytes <= size_bytes - (uint64_t)at);
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
        if (left >= FBK_STREAM_HEAD_BYTES && fbk_load_u32(data + (size - left) + 52) <= left - FBK_STREAM_HEAD_BYTES && i + 1 != count)
            part = FBK_STREAM_HEAD_BYTES + fbk_load_u32(data + (size - left) + 52);
        (void)fbk_stream_read_head(data + (size - left), part, &head);
        sizes[i] = (uint32_t)part;
        left -= part;
    }
    const int64_t records = fbk_stream_heads(data, sizes, count, heads, &bad);
    FBK_ASSERT(records < 0 || (uint64_t)records <= size / FBK_STREAM_RECORD_BYTES_MIN);
    if (records < 0 || records > RECORDS_MAX || fbk_stream_rows(data, sizes, count, rows, &bad) != 0) {
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

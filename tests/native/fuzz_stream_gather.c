/* Any offsets, bits and bytes as Arrow's columns: what becomes an entry is one, with as many rows
 * as are said, within its room. */
#include "stream/stream.h"

#include "boundary/stream_gather.h"

#define ROWS_MAX 24u
#define HEADERS_MAX 48u
#define OUT_BYTES 4096u

static int64_t heads[FBK_STREAM_HEAD_WORDS];
static int64_t rows[ROWS_MAX * FBK_STREAM_ROW_WORDS];
static uint8_t out[OUT_BYTES];

/* What the columns are made of, byte by byte; zeros behind the end. */
struct input {
    const uint8_t *at;
    const uint8_t *end;
};

static uint8_t
next(struct input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

/* Mostly offsets that rise; now and then any. */
static void
fill(struct input *input, int32_t *offsets, uint32_t items)
{
    int32_t offset = 0;
    for (uint32_t i = 0; i <= items; i++) {
        const uint8_t step = next(input);
        offset = step == 0xff ? (int32_t)(0x01010101u * next(input)) : offset + step % 16;
        offsets[i] = offset;
    }
}

static struct fbk_stream_column
column(struct input *input, int32_t *offsets, uint8_t *validity, uint32_t items,
       const uint8_t *bytes, uint64_t size_bytes)
{
    fill(input, offsets, items);
    for (uint32_t i = 0; i < HEADERS_MAX / 8 + 1; i++)
        validity[i] = next(input);
    return (struct fbk_stream_column){
        .offsets = offsets,
        .bytes = bytes,
        .size_bytes = size_bytes,
        .validity = next(input) % 2 ? validity : NULL,
        .first_bit = next(input) % 8,
    };
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {data, data + size};
    int32_t offsets[5][HEADERS_MAX + 1];
    uint8_t validity[5][HEADERS_MAX / 8 + 1];
    const uint32_t count = next(&input) % (ROWS_MAX + 1);
    const uint8_t kinds = next(&input);
    struct fbk_stream_table table = {0};
    table.values = column(&input, offsets[0], validity[0], count, data, size);
    table.values.validity = NULL;
    if (kinds & 1)
        table.keys = column(&input, offsets[1], validity[1], count, data, size);
    if (kinds & 2) {
        table.header_count = next(&input) % (HEADERS_MAX + 1);
        table.headers = column(&input, offsets[2], validity[2], count, NULL, 0);
        table.header_names = column(&input, offsets[3], validity[3], HEADERS_MAX, data, size);
        table.header_values = column(&input, offsets[4], validity[4], HEADERS_MAX, data, size);
    }
    const uint64_t out_bytes = OUT_BYTES >> next(&input) % 8;
    const uint64_t wanted = (uint64_t)next(&input) * 8;
    uint32_t first = 0;
    while (first < count) {
        struct fbk_stream_head head = {.first_record = first, .time_us = 7};
        uint32_t taken, bad;
        const int64_t bytes =
            fbk_stream_gather(&head, &table, first, count, wanted, out, out_bytes, &taken);
        if (bytes < 0) {
            FBK_ASSERT(bytes == FBK_E_FULL || bytes == FBK_E_PROTOCOL);
            return 0;
        }
        FBK_ASSERT((uint64_t)bytes <= out_bytes && taken >= 1 && taken <= count - first);
        const uint32_t entry_bytes = (uint32_t)bytes;
        FBK_ASSERT(fbk_stream_heads(out, &entry_bytes, 1, heads, &bad) == taken);
        FBK_ASSERT(fbk_stream_rows(out, &entry_bytes, 1, rows, &bad) == 0);
        for (uint32_t i = 0; i < taken; i++) {
            const int64_t *row = rows + i * FBK_STREAM_ROW_WORDS;
            const int32_t *value = table.values.offsets + first + i;
            FBK_ASSERT(row[1] == value[1] - value[0] && row[6] == (int64_t)first + i + 1);
            FBK_ASSERT(memcmp(out + row[0], data + value[0], (size_t)row[1]) == 0);
            FBK_ASSERT((kinds & 1) || row[3] == -1);
            FBK_ASSERT((kinds & 2) || row[5] == 0);
        }
        first += taken;
    }
    return 0;
}

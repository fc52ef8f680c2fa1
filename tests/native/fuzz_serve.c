/* Frames of producers: any bytes, as they are and as the records and numbers of frames that are
 * valid otherwise.  What is taken lies within its frame, and is as many records as it says. */
#include "serve/serve.h"

#include "boundary/status.h"
#include "stream/stream.h"
#include "wire/client.h"
#include "wire/verify.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define EVENTS_MAX 16u
static volatile uint64_t sink;

static const uint8_t *
inside(const uint8_t *bytes, uint32_t size_bytes, uint64_t place, uint64_t unit_bytes)
{
    const uint64_t at = place >> 32, bytes_there = (place & UINT32_MAX) * unit_bytes;
    FBK_ASSERT(at <= size_bytes && bytes_there <= size_bytes - at);
    for (uint64_t i = 0; i < bytes_there; i++)
        sink += bytes[at + i];
    return bytes + at;
}

static void
check_produce(const uint8_t *bytes, uint32_t size_bytes, const uint64_t *event)
{
    const uint32_t count = (uint32_t)event[5];
    const uint8_t *records = inside(bytes, size_bytes, event[7], 1);
    uint64_t begins_at;
    FBK_ASSERT(count > 0 && fbk_stream_check_body(records, event[7] & UINT32_MAX, count, count / 2,
                                                  &begins_at) == 0);
    FBK_ASSERT(begins_at <= (event[7] & UINT32_MAX));
    int64_t previous = (int64_t)event[3];
    FBK_ASSERT((int64_t)event[4] > previous);
    if (event[6] == 0)
        return;
    const uint8_t *numbers = inside(bytes, size_bytes, event[6], 8);
    FBK_ASSERT((event[6] & UINT32_MAX) == count);
    for (uint32_t i = 0; i < count; i++) {
        const int64_t number = (int64_t)fbk_load_u64(numbers + 8ull * i);
        FBK_ASSERT(number > previous);
        previous = number;
    }
}

static void
parse(const uint8_t *bytes, uint32_t size_bytes)
{
    uint64_t events[EVENTS_MAX * FBK_SERVE_EVENT_WORDS];
    uint32_t at = 0, consumed, wanted;
    for (;;) {
        const int32_t count = fbk_serve_parse(bytes + at, size_bytes - at, 1 << 20, events,
                                              EVENTS_MAX, &consumed, &wanted);
        if (count <= 0)
            return;
        for (int32_t i = 0; i < count; i++) {
            const uint64_t *event = events + (size_t)FBK_SERVE_EVENT_WORDS * (size_t)i;
            const uint8_t *frame = inside(bytes + at, size_bytes - at, event[8], 1);
            FBK_ASSERT(fbk_verify(frame, event[8] & UINT32_MAX, FBK_VERIFY_REQUEST));
            if ((event[0] & 0xffff) == FBK_REQUEST_BODY_PRODUCE && event[0] >> 16 == FBK_S_OK)
                check_produce(bytes + at, size_bytes - at, event);
        }
        FBK_ASSERT(consumed > 0 && consumed <= size_bytes - at);
        at += consumed;
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 1u << 16)
        return 0;
    uint8_t *bytes = malloc(size + 1);
    if (bytes == NULL)
        return 0;
    memcpy(bytes, data, size);
    parse(bytes, (uint32_t)size);
    if (size >= 4) {
        fbk_store_u32(bytes, (uint32_t)size - 4);
        parse(bytes, (uint32_t)size);
    }
    free(bytes);
    if (size < 24)
        return 0;
    /* The first bytes are counts and numbers, the others records. */
    const uint32_t count = data[0] % 5u, records_bytes = (uint32_t)size - 24;
    int64_t numbers[4];
    for (uint32_t i = 0; i < 4; i++)
        numbers[i] = (int8_t)data[2 + i];
    const bool has_numbers = count > 0 && data[1] % 2 != 0;
    bytes = malloc(fbk_wire_produce_size(has_numbers ? count : 0, records_bytes));
    if (bytes == NULL)
        return 0;
    const uint32_t frame_bytes =
        fbk_wire_put_produce(bytes, 1, 2, (int8_t)data[6], (int64_t)fbk_load_u64(data + 8), count,
                             has_numbers ? numbers : NULL, data + 24, records_bytes);
    parse(bytes, frame_bytes);
    free(bytes);
    return 0;
}

/* What a write service is sent, and answers: what Python is handed grows with the number of frames,
 * not of records. */
#include "serve/serve.h"

#include "stream/stream.h"
#include "wire/schema.h"
#include "wire/wire.h"

_Static_assert(FBK_SERVE_ANSWER_BYTES_MAX == FBK_WIRE_PRODUCE_REPLY_BYTES, "one size, two headers");

/* Whether the numbers rise, from above `follows` on.  The highest number is never used, so that
 * there is always a next one. */
static bool
numbers_rise(const struct fbk_produce *produce)
{
    int64_t previous = produce->follows;
    if (previous < -1)
        return false;
    if (produce->number_count == 0)
        return produce->first_number > previous &&
               produce->first_number < INT64_MAX - (int64_t)produce->record_count;
    if (produce->number_count != produce->record_count)
        return false;
    for (uint32_t i = 0; i < produce->number_count; i++) {
        const int64_t number = (int64_t)fbk_load_u64(produce->numbers + 8ull * i);
        if (number <= previous)
            return false;
        previous = number;
    }
    return previous < INT64_MAX;
}

static bool
is_good(const struct fbk_produce *produce)
{
    uint64_t begins_at;
    return produce->record_count != 0 && numbers_rise(produce) &&
           fbk_stream_check_body(produce->records, produce->records_bytes, produce->record_count, 0,
                                 &begins_at) == 0;
}

static void
put_produce(uint64_t *event, const uint8_t *bytes, const struct fbk_produce *produce)
{
    event[0] |= (uint64_t)(is_good(produce) ? FBK_S_OK : FBK_S_BAD_REQUEST) << 16;
    event[2] = produce->producer;
    event[3] = (uint64_t)produce->follows;
    event[4] = produce->number_count == 0 ? (uint64_t)produce->first_number
                                          : fbk_load_u64(produce->numbers);
    event[5] = produce->record_count;
    event[6] = produce->number_count == 0
                   ? 0
                   : (uint64_t)(produce->numbers - bytes) << 32 | produce->number_count;
    event[7] = (uint64_t)(produce->records - bytes) << 32 | produce->records_bytes;
}

int32_t
fbk_serve_parse(const uint8_t *bytes, uint32_t size_bytes, uint32_t frame_size_bytes_max,
                uint64_t *events, uint32_t event_count_max, uint32_t *consumed, uint32_t *wanted)
{
    uint32_t at = 0, count = 0;
    *wanted = 0;
    while (size_bytes - at >= 4 && count < event_count_max) {
        const uint64_t frame_bytes = 4 + (uint64_t)fbk_load_u32(bytes + at);
        uint64_t *event = events + (size_t)FBK_SERVE_EVENT_WORDS * count;
        struct fbk_produce produce;
        int32_t kind = FBK_E_PROTOCOL;
        if (frame_bytes <= frame_size_bytes_max) {
            if (frame_bytes > size_bytes - at) {
                *wanted = (uint32_t)frame_bytes;
                break;
            }
            kind = fbk_wire_read_service_request(bytes + at, (uint32_t)frame_bytes, &event[1],
                                                 &produce);
        }
        if (kind < 0) {
            /* What came before it is served first. */
            if (count == 0)
                return FBK_E_PROTOCOL;
            break;
        }
        event[0] = (uint64_t)kind;
        event[8] = (uint64_t)at << 32 | frame_bytes;
        if (kind == FBK_REQUEST_BODY_PRODUCE)
            put_produce(event, bytes, &produce);
        else
            memset(event + 2, 0, 6 * sizeof *event);
        count++;
        at += (uint32_t)frame_bytes;
    }
    *consumed = at;
    return (int32_t)count;
}

uint64_t
fbk_serve_put_answers(uint8_t *out, const uint64_t *answers, uint32_t count)
{
    uint8_t *end = out;
    for (uint32_t i = 0; i < count; i++, answers += FBK_SERVE_ANSWER_WORDS) {
        if (answers[1] != FBK_S_OK)
            end += fbk_wire_put_status(end, answers[0], (uint32_t)answers[1]);
        else
            end += fbk_wire_put_produce_reply(end, answers[0], (uint32_t)(answers[2] >> 32),
                                              (int64_t)answers[3], (uint32_t)answers[2]);
    }
    return (uint64_t)(end - out);
}

uint32_t
fbk_serve_put_status(uint8_t *out, uint64_t request_id, uint32_t status)
{
    return fbk_wire_put_status(out, request_id, status);
}

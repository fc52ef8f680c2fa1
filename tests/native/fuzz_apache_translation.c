/* A lane between our client and one of Apache's bookies: requests of ours in any order, answers to
 * any of them and to none, noise.  Whatever comes, what the client is told are answers of ours. */
#include "apache/apache.h"
#include "wire/client.h"

#include "boundary/apache_translation.h"
#include "boundary/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUEST_BYTES 256u
#define LANE_IDS (0xffffffull << 40)

struct input {
    const uint8_t *at;
    const uint8_t *end;
};

static uint32_t
next(struct input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

static void
check_answers(struct fbk_apache_translation *lane)
{
    const uint8_t *at;
    uint64_t left = fbk_apache_translation_answers(lane, &at);
    while (left != 0) {
        struct fbk_response response;
        FBK_ASSERT(left >= 4 && 4 + (uint64_t)fbk_load_u32(at) <= left);
        const uint32_t frame_bytes = 4 + fbk_load_u32(at);
        FBK_ASSERT(fbk_wire_read_response(at, frame_bytes, &response) == 0);
        at += frame_bytes;
        left -= frame_bytes;
    }
    fbk_apache_translation_output(lane, &at);
}

static int32_t
ask(struct fbk_apache_translation *lane, struct input *input)
{
    static const uint8_t key[20] = {1}, body[40] = {0};
    uint8_t frame[REQUEST_BYTES];
    const uint32_t which = next(input), request_id = 1 + next(input), number = next(input);
    const int64_t first = (int64_t)next(input) - 1;
    uint32_t size_bytes;
    switch (which % 8) {
    case 0:
        size_bytes = fbk_wire_put_add(frame, request_id, 5, first, number & 3, 0, key, body,
                                      sizeof body, NULL);
        break;
    case 1:
        size_bytes = fbk_wire_put_read_request(frame, request_id, 5, first, number & 3, key);
        break;
    case 2:
        size_bytes = fbk_wire_put_read_batch_request(frame, request_id, 5, first, first + number,
                                                     1 + which, 4 * number);
        break;
    case 3:
        size_bytes =
            fbk_wire_put_read_lac_request(frame, request_id, 5, first, number & 7, number >> 7);
        break;
    case 4: size_bytes = fbk_wire_put_list_request(frame, request_id, 5, first, number); break;
    case 5: size_bytes = fbk_wire_put_write_lac(frame, request_id, 5, first, key, body, 20); break;
    case 6: size_bytes = fbk_wire_put_hello(frame, request_id, 1, 1, key, 3); break;
    default:
        size_bytes = (number & 1) != 0 ? fbk_wire_put_info(frame, request_id)
                                       : fbk_wire_put_force(frame, request_id, 5);
    }
    return fbk_apache_translation_send(lane, frame, size_bytes);
}

/* An answer that a bookie could give, to a request that may have been asked. */
static int32_t
answer(struct fbk_apache_translation *lane, struct input *input, uint32_t version)
{
    static const uint32_t statuses[] = {FBK_APACHE_EOK, FBK_APACHE_EOK, FBK_APACHE_ENOENTRY,
                                        FBK_APACHE_EIO};
    const uint32_t number = next(input), part = next(input), shape = next(input),
                   content_bytes = next(input);
    const uint32_t left_bytes = (uint32_t)(input->end - input->at);
    const uint32_t taken_bytes = content_bytes < left_bytes ? content_bytes : left_bytes;
    uint8_t sizes[8], frame[1024];
    fbk_store_u32(sizes, taken_bytes / 2);
    fbk_store_u32(sizes + 4, taken_bytes - taken_bytes / 2);
    const struct fbk_apache_reply reply = {
        .echo = {.protocol = (uint8_t)version,
                 .version = (uint8_t)version,
                 .operation = (uint16_t)(1 + shape % 12),
                 .transaction_id =
                     (number & 1) != 0 ? 1 + part : LANE_IDS | (uint64_t)(number >> 1) << 16 | part,
                 .ledger_id = 5,
                 .entry_id = (int64_t)part - 1},
        .status = statuses[shape >> 4 & 3],
        .entry = input->at,
        .entry_bytes = taken_bytes,
        .lac_body = (shape & 64) != 0 ? input->at : NULL,
        .lac_body_bytes = taken_bytes,
        .entry_count = 2,
        .entry_sizes = sizes,
        .lac = (int64_t)number,
        .lac_time_ms = FBK_APACHE_ABSENT,
        .total_bytes = (int64_t)number,
        .free_bytes = FBK_APACHE_ABSENT,
        .blob = input->at,
        .blob_bytes = taken_bytes,
        .plugin = input->at,
        .plugin_bytes = taken_bytes,
    };
    const uint64_t size_bytes = fbk_apache_reply_size(&reply);
    if (size_bytes == 0 || size_bytes > sizeof frame)
        return 0;
    fbk_apache_put_reply(frame, &reply);
    input->at += taken_bytes;
    const uint64_t first_bytes = (shape & 128) != 0 ? size_bytes / 2 : 0;
    const int32_t error = fbk_apache_translation_receive(lane, frame, first_bytes);
    return error != 0 ? error
                      : fbk_apache_translation_receive(lane, frame + first_bytes,
                                                       size_bytes - first_bytes);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {.at = data, .end = data + size};
    const uint32_t kind = next(&input), version = 2 + (kind & 1);
    struct fbk_apache_translation *lane =
        fbk_apache_translation_new(version, 4096, (kind & 2) != 0);
    FBK_ASSERT(lane != NULL);
    int32_t error = 0;
    while (error == 0 && input.at < input.end) {
        const uint32_t step = next(&input), noise_bytes = step >> 3;
        const uint8_t *from = input.at;
        if ((step & 7) < 3) {
            error = ask(lane, &input);
        } else if ((step & 7) < 6) {
            error = answer(lane, &input, version);
        } else if ((step & 7) == 6) {
            fbk_apache_translation_forget(lane, 1 + next(&input));
        } else if (noise_bytes <= (uint64_t)(input.end - from)) {
            input.at += noise_bytes;
            error = fbk_apache_translation_receive(lane, from, noise_bytes);
        }
        check_answers(lane);
    }
    fbk_apache_translation_free(lane);
    return 0;
}

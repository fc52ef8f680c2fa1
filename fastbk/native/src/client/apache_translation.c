/* A lane itself: made and freed, its contexts, and how one request of Apache's leaves it. */
#include "client/apache_translation.h"

/* What a request takes beside the bytes of its body, at most. */
#define REQUEST_BYTES_MAX 160u

/* ------------------------------------------------------------------ making and freeing */

struct fbk_apache_lane *
fbk_apache_lane_new(uint32_t protocol, uint32_t frame_size_bytes_max, int takes_batches)
{
    FBK_ASSERT(protocol == 2 || protocol == 3);
    struct fbk_apache_lane *lane = calloc(1, sizeof *lane);
    if (lane == NULL)
        return NULL;
    lane->protocol = protocol;
    lane->frame_size_bytes_max = frame_size_bytes_max;
    lane->takes_batches = takes_batches != 0 && protocol == 2;
    lane->contexts = calloc(FBK_LANE_CONTEXTS_MAX, sizeof *lane->contexts);
    if (lane->contexts == NULL) {
        free(lane);
        return NULL;
    }
    return lane;
}

void
fbk_apache_lane_free(struct fbk_apache_lane *lane)
{
    if (lane == NULL)
        return;
    for (uint32_t i = 0; i < lane->context_end; i++)
        fbk_lane_end(&lane->contexts[i]);
    free(lane->contexts);
    free(lane->asked.items);
    free(lane->asked.heads);
    free(lane->asked.tails);
    free(lane->in.bytes);
    free(lane->out.bytes);
    free(lane->answers.bytes);
    free(lane);
}

static uint64_t
hand_out(struct fbk_bytes *buffer, const uint8_t **bytes)
{
    const uint64_t used_bytes = buffer->used_bytes;
    *bytes = buffer->bytes;
    buffer->used_bytes = 0;
    return used_bytes;
}

uint64_t
fbk_apache_lane_output(struct fbk_apache_lane *lane, const uint8_t **bytes)
{
    return hand_out(&lane->out, bytes);
}

uint64_t
fbk_apache_lane_answers(struct fbk_apache_lane *lane, const uint8_t **bytes)
{
    return hand_out(&lane->answers, bytes);
}

uint64_t
fbk_apache_lane_dropped(const struct fbk_apache_lane *lane)
{
    return lane->dropped;
}

int
fbk_apache_lane_batches(const struct fbk_apache_lane *lane)
{
    return lane->has_batch_answer ? 2 : lane->has_batch_request ? 1 : 0;
}

/* ------------------------------------------------------------------ contexts */

struct fbk_lane_context *
fbk_lane_new_context(struct fbk_apache_lane *lane, enum fbk_lane_kind kind, const struct fbk_request *asked)
{
    uint32_t at = 0;
    while (at < lane->context_end && lane->contexts[at].kind != FBK_LANE_FREE)
        at++;
    if (at == FBK_LANE_CONTEXTS_MAX)
        return NULL;
    if (at == lane->context_end)
        lane->context_end++;
    lane->contexts[at] = (struct fbk_lane_context){
        .kind = kind,
        .request_id = asked->request_id,
        .ledger_id = asked->ledger_id,
        .first = asked->entry_id,
        .lac = -1,
    };
    return &lane->contexts[at];
}

void
fbk_lane_end(struct fbk_lane_context *context)
{
    free(context->parts);
    free(context->entries.bytes);
    *context = (struct fbk_lane_context){.kind = FBK_LANE_FREE};
}

uint64_t
fbk_lane_id(const struct fbk_apache_lane *lane, const struct fbk_lane_context *context, uint32_t part)
{
    return FBK_LANE_ID_BASE | (uint64_t)(context - lane->contexts) << FBK_LANE_PART_BITS | part;
}

void
fbk_apache_lane_forget(struct fbk_apache_lane *lane, uint64_t request_id)
{
    for (uint32_t i = 0; i < lane->context_end; i++) {
        struct fbk_lane_context *context = &lane->contexts[i];
        if (context->kind == FBK_LANE_FREE || context->request_id != request_id)
            continue;
        context->is_forgotten = context->is_over = true;
        free(context->entries.bytes);
        context->entries = (struct fbk_bytes){0};
    }
}

int32_t
fbk_lane_answer_status(struct fbk_apache_lane *lane, uint64_t request_id, uint32_t status)
{
    uint8_t *out = fbk_bytes_reserve(&lane->answers, FBK_WIRE_STATUS_BYTES_MAX);
    if (out == NULL)
        return FBK_E_FULL;
    lane->answers.used_bytes += fbk_wire_put_status(out, request_id, status);
    return 0;
}

/* ------------------------------------------------------------------ one request of Apache's */

int32_t
fbk_lane_send(struct fbk_apache_lane *lane, struct fbk_apache_request *request, uint64_t id, uint32_t *status)
{
    const bool is_told_by_entry =
        lane->protocol == 2 && (request->operation == FBK_APACHE_ADD || request->operation == FBK_APACHE_READ);
    request->protocol = (uint8_t)lane->protocol;
    request->version = (uint8_t)lane->protocol;
    request->transaction_id = id;
    const uint64_t room_bytes = REQUEST_BYTES_MAX + (uint64_t)request->body_bytes;
    uint8_t *out = fbk_bytes_reserve(&lane->out, room_bytes);
    if (out == NULL)
        return FBK_E_FULL;
    const uint64_t size_bytes = fbk_apache_put_request(out, room_bytes, request);
    *status = FBK_S_OK;
    if (size_bytes == 0) {
        *status = FBK_S_UNSUPPORTED;
        return 0;
    }
    if (size_bytes > lane->frame_size_bytes_max) {
        *status = FBK_S_TOO_LARGE;
        return 0;
    }
    if (is_told_by_entry && fbk_asked_put(&lane->asked, request->operation, request->ledger_id, request->entry_id, id) != 0) {
        *status = FBK_S_TOO_MANY_REQUESTS;
        return 0;
    }
    lane->out.used_bytes += size_bytes;
    return 0;
}

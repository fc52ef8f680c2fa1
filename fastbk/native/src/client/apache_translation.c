/* One connection of our client to one of Apache's bookies (boundary/apache_translation.h): our
 * frames become requests of Apache's protocols, and the bookie's replies become frames of ours.
 *
 * Version 3 answers carry a number: our request id, or, for what takes several requests of
 * Apache's, that of a *context* and the step in it.  Version 2 answers name the ledger and the
 * entry only: its adds and plain reads are remembered in order (struct fbk_pending_map).  A context
 * whose answer nobody waits for stays until the bookie has answered all of it, so that a late
 * answer can't be taken for another's. */
#include "client/translation.h"

/* ------------ contexts */

struct translation_context *
fbk_translation_context_new(struct fbk_apache_translation *translation, enum translation_kind kind,
                            const struct fbk_request *original)
{
    uint32_t at = 0;
    while (at < translation->context_end && translation->contexts[at].kind != KIND_FREE)
        at++;
    if (at == CONTEXTS_MAX)
        return NULL;
    if (at == translation->context_end)
        translation->context_end++;
    translation->contexts[at] = (struct translation_context){
        .kind = kind,
        .request_id = original->request_id,
        .ledger_id = original->ledger_id,
        .first = original->entry_id,
        .lac = -1,
    };
    return &translation->contexts[at];
}

void
fbk_translation_context_end(struct translation_context *context)
{
    free(context->parts);
    free(context->entries.bytes);
    *context = (struct translation_context){.kind = KIND_FREE};
}

uint64_t
fbk_translation_id(const struct fbk_apache_translation *translation,
                   const struct translation_context *context, uint32_t part)
{
    return ID_BASE | (uint64_t)(context - translation->contexts) << PART_BITS | part;
}

void
fbk_apache_translation_forget(struct fbk_apache_translation *translation, uint64_t request_id)
{
    for (uint32_t i = 0; i < translation->context_end; i++) {
        struct translation_context *context = &translation->contexts[i];
        if (context->kind == KIND_FREE || context->request_id != request_id)
            continue;
        context->is_forgotten = context->is_over = true;
        free(context->entries.bytes);
        context->entries = (struct fbk_bytes){0};
    }
}

int32_t
fbk_translation_answer(struct fbk_apache_translation *translation, uint64_t request_id,
                       uint32_t status)
{
    uint8_t *out = fbk_bytes_reserve(&translation->answers, FBK_WIRE_STATUS_BYTES_MAX);
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes += fbk_wire_put_status(out, request_id, status);
    return 0;
}

/* ------------ making and freeing */

struct fbk_apache_translation *
fbk_apache_translation_new(uint32_t protocol, uint32_t frame_size_bytes_max, int takes_batches)
{
    FBK_ASSERT(protocol == 2 || protocol == 3);
    struct fbk_apache_translation *translation = calloc(1, sizeof *translation);
    if (translation == NULL)
        return NULL;
    translation->protocol = protocol;
    translation->frame_size_bytes_max = frame_size_bytes_max;
    translation->takes_batches = takes_batches != 0 && protocol == 2;
    translation->contexts = calloc(CONTEXTS_MAX, sizeof *translation->contexts);
    if (translation->contexts == NULL) {
        free(translation);
        return NULL;
    }
    return translation;
}

void
fbk_apache_translation_free(struct fbk_apache_translation *translation)
{
    if (translation == NULL)
        return;
    for (uint32_t i = 0; i < translation->context_end; i++)
        fbk_translation_context_end(&translation->contexts[i]);
    free(translation->contexts);
    free(translation->pending.items);
    free(translation->pending.heads);
    free(translation->pending.tails);
    free(translation->in.bytes);
    free(translation->out.bytes);
    free(translation->answers.bytes);
    free(translation);
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
fbk_apache_translation_output(struct fbk_apache_translation *translation, const uint8_t **bytes)
{
    return hand_out(&translation->out, bytes);
}

uint64_t
fbk_apache_translation_answers(struct fbk_apache_translation *translation, const uint8_t **bytes)
{
    return hand_out(&translation->answers, bytes);
}

uint64_t
fbk_apache_translation_dropped(const struct fbk_apache_translation *translation)
{
    return translation->dropped;
}

int
fbk_apache_translation_batches(const struct fbk_apache_translation *translation)
{
    return translation->has_batch_answer ? 2 : translation->has_batch_request ? 1 : 0;
}

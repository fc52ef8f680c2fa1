/* What holds of a worker between any two calls, whatever its clients and indexes did: counted again
 * from nothing. */
#pragma once

#include "check.h"

#include "worker/worker.h"

static inline bool
is_in_line_for(const struct fbk_connection *c, uint32_t why)
{
    switch (why) {
    case FBK_BLOCKED_ADD: return c->line == FBK_LINE_ADD + c->lane;
    case FBK_BLOCKED_REQUEST: return c->line == FBK_LINE_REQUEST + c->lane;
    case FBK_BLOCKED_BUDGET: return c->line == FBK_LINE_BUDGET;
    case FBK_BLOCKED_QUOTA: return c->line == FBK_LINE_QUOTA;
    default: return c->line >= FBK_LINE_CONTEXT && c->line <= FBK_LINE_APACHE_READS;
    }
}

/* Who waits for room stands where room is given out: nobody else would ever wake it. */
static inline void
check_lines(const struct fbk_worker *w)
{
    static const uint32_t reasons[] = {FBK_BLOCKED_ADD, FBK_BLOCKED_REQUEST, FBK_BLOCKED_BUDGET,
                                       FBK_BLOCKED_CONTEXT, FBK_BLOCKED_QUOTA};
    uint32_t counts[FBK_LINE_COUNT] = {0};
    for (uint32_t slot = 0; slot < w->slots_used; slot++) {
        const struct fbk_connection *c = &w->connections[slot];
        counts[c->line]++;
        bool takes_frames = c->state == FBK_CONNECTION_OPEN || c->state == FBK_CONNECTION_HELLO;
        for (uint32_t i = 0; takes_frames && i < sizeof reasons / sizeof reasons[0]; i++)
            if (c->blocked & reasons[i])
                CHECK(is_in_line_for(c, reasons[i]));
    }
    for (uint32_t line = FBK_LINE_NONE + 1; line < FBK_LINE_COUNT; line++) {
        uint32_t count = 0, last = FBK_NO_CONNECTION;
        for (uint32_t slot = w->lines[line].first; slot != FBK_NO_CONNECTION;
             slot = w->connections[slot].next, count++) {
            CHECK(count <= w->slots_used);
            CHECK_EQUAL(w->connections[slot].line, line);
            CHECK_EQUAL(w->connections[slot].previous, last);
            last = slot;
        }
        CHECK_EQUAL(w->lines[line].last, last);
        CHECK_EQUAL(w->lines[line].count, count);
        CHECK_EQUAL(counts[line], count);
    }
}

static inline void
check_sums(const struct fbk_worker *w)
{
    uint64_t pending = 0, polls = 0, input_bytes = 0;
    for (uint32_t slot = 0; slot < w->slots_used; slot++) {
        const struct fbk_connection *c = &w->connections[slot];
        input_bytes += c->input_size_bytes;
        if (c->state == FBK_CONNECTION_FREE || c->state == FBK_CONNECTION_GONE) {
            CHECK(c->input == NULL && c->output == NULL && c->contexts == FBK_NO_CONTEXT);
            continue;
        }
        CHECK(c->input_from <= c->input_used && c->input_used <= c->input_size_bytes);
        CHECK(c->output_used <= c->output_size_bytes);
        pending += c->pending;
        polls += c->polls;
    }
    CHECK_EQUAL(w->pending, pending);
    CHECK_EQUAL(w->polls, polls);
    CHECK_EQUAL(w->input_bytes, input_bytes);
}

/* Contexts: each belongs to its connection or to nobody, and every bound counts those that it is
 * about. */
static inline void
check_contexts(const struct fbk_worker *w)
{
    const struct fbk_worker_apache *apache = &w->apache;
    uint32_t used = 0, listed = 0, adds = 0, reads = 0, polls = 0, in_lines = 0, waiting = 0;
    for (uint32_t n = 0; n < apache->context_count; n++) {
        const struct fbk_apache_context *context = &apache->contexts[n];
        if (context->slot == FBK_NO_CONNECTION)
            continue;
        used++;
        waiting += context->is_in_line;
        bool is_poll = fbk_apache_is_poll(context->echo.operation, context->flags);
        adds += context->echo.operation == FBK_APACHE_ADD;
        polls += is_poll;
        reads += context->echo.operation == FBK_APACHE_READ_BATCH ||
                 (context->echo.operation == FBK_APACHE_READ && !is_poll);
    }
    for (uint32_t slot = 0; slot < w->slots_used; slot++) {
        uint32_t previous = FBK_NO_CONTEXT;
        if (w->connections[slot].state == FBK_CONNECTION_FREE)
            continue;
        for (uint32_t n = w->connections[slot].contexts; n != FBK_NO_CONTEXT;
             n = apache->contexts[n].next, listed++) {
            CHECK(listed <= used);
            CHECK_EQUAL(apache->contexts[n].slot, slot);
            CHECK_EQUAL(apache->contexts[n].previous, previous);
            previous = n;
        }
    }
    for (uint32_t p = 0; p < w->lane_count; p++)
        for (uint32_t n = apache->lines[p].first; n != FBK_NO_CONTEXT;
             n = apache->contexts[n].line_next, in_lines++) {
            CHECK(in_lines <= used);
            CHECK(apache->contexts[n].is_in_line && apache->contexts[n].lane == p &&
                  apache->contexts[n].slot != FBK_NO_CONNECTION);
        }
    CHECK_EQUAL(apache->used, used);
    CHECK_EQUAL(listed, used);
    CHECK_EQUAL(in_lines, waiting);
    CHECK(apache->adds == adds && apache->reads == reads && apache->polls == polls);
    CHECK(polls <= w->options.apache_requests_max / 2);
}

static inline void
check_worker(const struct fbk_worker *w)
{
    check_lines(w);
    check_sums(w);
    check_contexts(w);
}

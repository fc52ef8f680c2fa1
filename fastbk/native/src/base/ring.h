/* Byte rings between two processes, and the doorbells that wake their readers.
 *
 * A ring's bytes lie in the producer's segment, mapped twice one behind the other, so that a record
 * never wraps.  Positions count bytes since the segment was made and never go back.  Each cursor
 * has one writer and lies in that writer's own segment (INV-R1); the other side maps it read-only.
 * A consumer copies a header once, checks the copy, and uses the copy: the producer may be
 * broken.
 *
 * Decision 6. */
#pragma once

#include "base/layout.h"

struct fbk_ring {
    uint8_t *data;       /* size_bytes, mapped twice */
    uint64_t size_bytes; /* a power of two, a multiple of the page */
};

static inline uint8_t *
fbk_ring_at(const struct fbk_ring *ring, uint64_t position)
{
    return ring->data + (position & (ring->size_bytes - 1));
}

/* Everything stored before this is visible to whoever loads the cursor with fbk_cursor_load.
 * seq_cst, not release: the waker's next load (the sleeper's ticket) must not pass it; see
 * fbk_bell_needed. */
static inline void
fbk_cursor_publish(struct fbk_cursor *cursor, uint64_t value)
{
    atomic_store_explicit(&cursor->value, value, memory_order_seq_cst);
}

/* For cursors nobody sleeps on. */
static inline void
fbk_cursor_store(struct fbk_cursor *cursor, uint64_t value)
{
    atomic_store_explicit(&cursor->value, value, memory_order_release);
}

/* Pairs with fbk_cursor_publish and fbk_cursor_store. */
static inline uint64_t
fbk_cursor_load(const struct fbk_cursor *cursor)
{
    return atomic_load_explicit(&((struct fbk_cursor *)(uintptr_t)cursor)->value,
                                memory_order_acquire);
}

/* The sleeper's last look before it sleeps: must not move before its ticket store. */
static inline uint64_t
fbk_cursor_load_before_sleep(const struct fbk_cursor *cursor)
{
    return atomic_load_explicit(&((struct fbk_cursor *)(uintptr_t)cursor)->value,
                                memory_order_seq_cst);
}

/* Sleeper: ticket becomes odd; then look at every cursor once more with
 * fbk_cursor_load_before_sleep; only if there is nothing, wait on the eventfd.  All four accesses
 * (publish, ticket load; ticket store, cursor load) are seq_cst, so either the waker sees the odd
 * ticket or the sleeper sees the new cursor. */
static inline void
fbk_sleeper_begin(struct fbk_sleeper *sleeper)
{
    uint64_t ticket = atomic_load_explicit(&sleeper->ticket, memory_order_relaxed);
    if (!(ticket & 1u))
        atomic_store_explicit(&sleeper->ticket, ticket + 1, memory_order_seq_cst);
}

static inline void
fbk_sleeper_end(struct fbk_sleeper *sleeper)
{
    uint64_t ticket = atomic_load_explicit(&sleeper->ticket, memory_order_relaxed);
    if (ticket & 1u)
        atomic_store_explicit(&sleeper->ticket, ticket + 1, memory_order_seq_cst);
}

/* Waker, after publishing: true when it has to write the sleeper's eventfd.  `rung` is the waker's
 * private memory of the last ticket it rang for. */
static inline bool
fbk_bell_needed(const struct fbk_sleeper *sleeper, uint64_t *rung)
{
    uint64_t ticket = atomic_load_explicit(&((struct fbk_sleeper *)(uintptr_t)sleeper)->ticket,
                                           memory_order_seq_cst);
    if (!(ticket & 1u) || ticket == *rung)
        return false;
    *rung = ticket;
    return true;
}

void fbk_bell_ring(int event_fd); /* writes 1; a full counter is fine; base/segment.c */

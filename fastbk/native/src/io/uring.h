/* Inside the io_uring backend: io/uring.c makes and probes rings, io/uring_queue.c writes and
 * waits. */
#pragma once

#include "io/common.h"

#include <liburing.h>

#define URING_DEPTH_MAX 64u

struct uring_slot {
    uint64_t ticket;
    const uint8_t *data;
    uint64_t offset_bytes;
    int32_t file;
    uint32_t size_bytes;
    uint32_t done_bytes;
    uint32_t flags;
    uint32_t retries;
    uint32_t cqes_wanted; /* still to come of this round */
    int32_t write_result;
    int32_t sync_result;
    bool used;
};

struct uring {
    struct fbk_io_real real;
    struct io_uring ring;
    bool enabled;
    bool continued;  /* a short write's rest is queued, but not submitted */
    int32_t bell_fd; /* armed, or last armed; -1 = none yet */
    bool bell_armed;
    bool bell_rang; /* not told yet */
    int32_t bell_error;
    uint64_t bell_value; /* the kernel writes it */
    uint32_t used_slots;
    uint32_t finished_count;
    struct fbk_io_completion finished[URING_DEPTH_MAX];
    struct uring_slot slots[URING_DEPTH_MAX];
};

int32_t uring_write(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                    uint64_t offset_bytes, uint32_t flags, uint64_t ticket);
int32_t uring_wait(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms,
                   struct fbk_io_completion *completions, int32_t completions_max, int32_t *rung);
/* Waits for the kernel to be done with our memory; false = it is not, after half a minute. */
bool uring_drain(struct uring *uring);

/* A backend around another one: writes complete so much later.  For tests of what a slow disk does
 * to applications.  Who never asks for a delay never has it: the delay is another table of
 * functions, not a branch in the one that is there. */
#pragma once

#include "io/io.h"

#define FBK_IO_DELAYED_WRITES_MAX 16u
#define FBK_IO_DELAY_MS_MAX 10000u

struct fbk_io_delayed_write {
    uint64_t due_ns;
    struct fbk_io_completion completion;
    bool has_completed;
};

/* `io` is what is used in place of `inner`.  Only the operations that a journal's thread calls are
 * there. */
struct fbk_io_delayed {
    struct fbk_io io;
    struct fbk_io *inner;
    uint64_t delay_ns;
    struct fbk_io_delayed_write writes[FBK_IO_DELAYED_WRITES_MAX];
    uint32_t count;
};

/* Writes that are under way at `inner` come out of the new `wait` as soon as they complete. */
void fbk_io_delayed_begin(struct fbk_io_delayed *delayed, struct fbk_io *inner);
/* For the writes to come; 0: none. */
void fbk_io_delayed_set(struct fbk_io_delayed *delayed, uint32_t delay_ms);

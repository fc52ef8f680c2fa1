#include "io/delayed.h"

static struct fbk_io_delayed *
delayed_of(struct fbk_io *io)
{
    return (struct fbk_io_delayed *)io;
}

static int32_t
delayed_write(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
              uint64_t offset_bytes, uint32_t flags, uint64_t ticket)
{
    struct fbk_io_delayed *delayed = delayed_of(io);
    if (delayed->count == FBK_IO_DELAYED_WRITES_MAX)
        return -EAGAIN;
    uint64_t due_ns = fbk_now_ns() + delayed->delay_ns;
    int32_t rc = delayed->inner->operations->write(delayed->inner, file, data, size_bytes,
                                                   offset_bytes, flags, ticket);
    if (rc == 0)
        delayed->writes[delayed->count++] =
            (struct fbk_io_delayed_write){.due_ns = due_ns, .completion = {.ticket = ticket}};
    return rc;
}

static int32_t
delayed_write_wait(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                   uint64_t offset_bytes, uint32_t flags)
{
    struct fbk_io *inner = delayed_of(io)->inner;
    return inner->operations->write_wait(inner, file, data, size_bytes, offset_bytes, flags);
}

static int32_t
delayed_sync(struct fbk_io *io, int32_t file)
{
    struct fbk_io *inner = delayed_of(io)->inner;
    return inner->operations->sync(inner, file);
}

/* One that was started before the delay began is not known: it is due at once. */
static void
note_completion(struct fbk_io_delayed *delayed, const struct fbk_io_completion *completion)
{
    uint32_t at = 0;
    while (at < delayed->count && delayed->writes[at].completion.ticket != completion->ticket)
        at++;
    if (at == delayed->count) {
        FBK_ASSERT(delayed->count < FBK_IO_DELAYED_WRITES_MAX);
        delayed->writes[delayed->count++] = (struct fbk_io_delayed_write){.due_ns = 0};
    }
    delayed->writes[at].completion = *completion;
    delayed->writes[at].has_completed = true;
}

/* Moves out what has completed and is due; returns how many. */
static int32_t
take_due(struct fbk_io_delayed *delayed, struct fbk_io_completion *completions,
         int32_t completions_max)
{
    uint64_t now_ns = fbk_now_ns();
    int32_t taken = 0;
    uint32_t left = 0;
    for (uint32_t i = 0; i < delayed->count; i++) {
        struct fbk_io_delayed_write write = delayed->writes[i];
        if (write.has_completed && write.due_ns <= now_ns && taken < completions_max)
            completions[taken++] = write.completion;
        else
            delayed->writes[left++] = write;
    }
    delayed->count = left;
    return taken;
}

/* How long the inner wait may take: until the next one that has completed is due, at most
 * timeout_ms (-1: no limit). */
static int32_t
wait_ms(const struct fbk_io_delayed *delayed, int32_t timeout_ms)
{
    uint64_t now_ns = fbk_now_ns();
    for (uint32_t i = 0; i < delayed->count; i++) {
        const struct fbk_io_delayed_write *write = &delayed->writes[i];
        if (!write->has_completed)
            continue;
        uint64_t left_ns = write->due_ns > now_ns ? write->due_ns - now_ns : 0;
        int32_t left_ms = (int32_t)((left_ns + 999999u) / 1000000u);
        if (timeout_ms < 0 || left_ms < timeout_ms)
            timeout_ms = left_ms;
    }
    return timeout_ms;
}

static int32_t
delayed_wait(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms,
             struct fbk_io_completion *completions, int32_t completions_max, int32_t *rung)
{
    struct fbk_io_delayed *delayed = delayed_of(io);
    struct fbk_io *inner = delayed->inner;
    uint64_t end_ns = timeout_ms < 0 ? UINT64_MAX : fbk_now_ns() + (uint64_t)timeout_ms * 1000000u;
    *rung = 0;
    /* Each turn waits for a completion, for one to be due, for the bell, or for the end: there are
     * few. */
    for (;;) {
        int32_t taken = take_due(delayed, completions, completions_max);
        if (taken > 0)
            return taken; /* the bell, if it rang, is still there at the next call */
        uint64_t now_ns = fbk_now_ns();
        int32_t left_ms = timeout_ms < 0    ? -1
                          : now_ns < end_ns ? (int32_t)((end_ns - now_ns + 999999u) / 1000000u)
                                            : 0;
        struct fbk_io_completion found[FBK_IO_DELAYED_WRITES_MAX];
        int32_t count = inner->operations->wait(inner, event_fd, wait_ms(delayed, left_ms), found,
                                                (int32_t)FBK_IO_DELAYED_WRITES_MAX, rung);
        if (count < 0)
            return count;
        for (int32_t i = 0; i < count; i++)
            note_completion(delayed, &found[i]);
        if (*rung || (count == 0 && left_ms == 0))
            return take_due(delayed, completions, completions_max);
    }
}

static const struct fbk_io_operations delayed_operations = {
    .write = delayed_write,
    .write_wait = delayed_write_wait,
    .sync = delayed_sync,
    .wait = delayed_wait,
};

void
fbk_io_delayed_begin(struct fbk_io_delayed *delayed, struct fbk_io *inner)
{
    delayed->io = *inner;
    delayed->io.operations = &delayed_operations;
    delayed->inner = inner;
    delayed->delay_ns = 0;
    delayed->count = 0;
}

void
fbk_io_delayed_set(struct fbk_io_delayed *delayed, uint32_t delay_ms)
{
    FBK_ASSERT(delay_ms <= FBK_IO_DELAY_MS_MAX);
    delayed->delay_ns = (uint64_t)delay_ms * 1000000u;
}

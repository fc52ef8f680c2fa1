/* Ledger states in and out of the index, and deletion. */
#include "fbk_index.h"

#include <sys/mman.h>
#include <unistd.h>

#define STATES_A_WRITE 1024u

void
fbk_index_state_seal(struct fbk_ledger_state *state)
{
    state->reserved = 0;
    state->crc = fbk_crc32c(0, state, offsetof(struct fbk_ledger_state, crc));
}

struct loading {
    struct fbk_index *index;
    int32_t error;
};

static void
take_state(void *context, const struct fbk_ledger_state *from)
{
    struct loading *loading = context;
    struct fbk_ledger_state *state = fbk_index_ledger_make(loading->index, from->ledger_id);
    if (!state) {
        loading->error = FBK_E_FULL;
        return;
    }
    *state = *from; /* files come oldest first: the newest wins */
    state->reserved = 0;
}

int32_t
fbk_index_load_states(struct fbk_index *index, uint64_t locations_file_id)
{
    struct loading loading = {index, 0};
    int64_t rc = fbk_store_load_states(index->store, locations_file_id, take_state, &loading);
    return rc < 0 ? (int32_t)rc : loading.error;
}

int32_t
fbk_index_damage(struct fbk_index *index)
{
    uint64_t cursor = 0;
    struct fbk_ledger_state *state;
    index->limbo = true;
    fbk_gauge(&index->segment->stats, FBK_C_INDEX_LIMBO, 1);
    while ((state = fbk_ledgers_next(&index->ledgers, &cursor)) != NULL) {
        const uint32_t both = FBK_LEDGER_FENCED | FBK_LEDGER_LIMBO;
        if ((state->flags & both) == both)
            continue;
        fbk_index_touch(index, state);
        state->flags |= both;
        fbk_index_wake(index, state);
    }
    return 0;
}

static int32_t
write_whole(int32_t fd, const void *data, uint64_t size_bytes, uint64_t offset_bytes)
{
    const uint8_t *from = data;
    while (size_bytes > 0) {
        ssize_t written = pwrite(fd, from, size_bytes, (off_t)offset_bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? -errno : -EIO;
        from += written;
        offset_bytes += (uint64_t)written;
        size_bytes -= (uint64_t)written;
    }
    return 0;
}

int64_t
fbk_index_write_states(struct fbk_index *index, int32_t states_fd)
{
    struct fbk_ledger_state *chunk =
        (struct fbk_ledger_state *)(void *)fbk_index_scratch(index, STATES_A_WRITE * sizeof *chunk);
    if (!chunk)
        return -ENOMEM;
    uint64_t cursor = 0, count = 0, filled = 0;
    const struct fbk_ledger_state *state;
    if (ftruncate(states_fd, (off_t)(index->ledgers.count * sizeof *chunk)) < 0)
        return -errno;
    do {
        state = fbk_ledgers_next(&index->ledgers, &cursor);
        if (state) {
            chunk[filled] = *state;
            fbk_index_state_seal(&chunk[filled++]);
        }
        if (filled > 0 && (!state || filled == STATES_A_WRITE)) {
            int32_t error = write_whole(states_fd, chunk, filled * sizeof *chunk, count * sizeof *chunk);
            if (error < 0)
                return error;
            count += filled;
            filled = 0;
        }
    } while (state);
    return (int64_t)count;
}

/* ------------------------------------------------------------------ gc */

int32_t
fbk_index_list_ledgers(const struct fbk_index *index, uint64_t *cursor, int64_t *ledger_ids, int32_t ids_max)
{
    int32_t count = 0;
    const struct fbk_ledger_state *state;
    while (count < ids_max && (state = fbk_ledgers_next(&index->ledgers, cursor)) != NULL)
        if (!(state->flags & FBK_LEDGER_DELETED))
            ledger_ids[count++] = state->ledger_id;
    return count;
}

int32_t
fbk_index_delete_ledgers(struct fbk_index *index, const int64_t *ledger_ids, int32_t count, uint64_t now_s)
{
    int32_t deleted = 0;
    for (int32_t n = 0; n < count; n++) {
        struct fbk_ledger_state *state = fbk_index_ledger(index, ledger_ids[n]);
        if (!fbk_index_is_here(state))
            continue;
        fbk_index_touch(index, state);
        state->flags |= FBK_LEDGER_DELETED;
        state->deleted_s = now_s;
        fbk_index_wake(index, state);
        deleted++;
    }
    fbk_count(&index->segment->stats, FBK_C_INDEX_DELETED_LEDGERS, (uint64_t)deleted);
    return deleted;
}

static int
compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int64_t
fbk_index_list_deleted(const struct fbk_index *index, int64_t *ledger_ids, int64_t ids_max)
{
    uint64_t cursor = 0;
    int64_t count = 0;
    const struct fbk_ledger_state *state;
    while ((state = fbk_ledgers_next(&index->ledgers, &cursor)) != NULL)
        if (state->flags & FBK_LEDGER_DELETED) {
            if (count < ids_max)
                ledger_ids[count] = state->ledger_id;
            count++;
        }
    qsort(ledger_ids, (size_t)(count < ids_max ? count : ids_max), sizeof *ledger_ids, compare_ids);
    return count;
}

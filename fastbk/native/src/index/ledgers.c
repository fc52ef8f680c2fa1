/* Ledger states in and out of the index, and deletion. */
#include "index/index.h"

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
    /* whoever was at it is gone */
    state->flags &= ~(FBK_LEDGER_DROPPING | FBK_LEDGER_EXPIRING);
    state->reserved = 0;
}

int32_t
fbk_index_load_states(struct fbk_index *index, uint64_t locations_file_id)
{
    struct loading loading = {index, 0};
    uint64_t most = fbk_store_state_count(index->store, locations_file_id);
    /* without it they are added all the same, moved several times */
    if (most > index->ledgers.count)
        (void)fbk_ledgers_reserve(&index->ledgers, most);
    int64_t rc = fbk_store_load_states(index->store, locations_file_id, take_state, &loading);
    return rc < 0 ? (int32_t)rc : loading.error;
}

int32_t
fbk_index_damage(struct fbk_index *index)
{
    uint64_t cursor = 0;
    struct fbk_ledger_state *state;
    index->limbo = true;
    fbk_gauge(&index->segment->stats, FBK_C_INDEX_DAMAGED, 1);
    while ((state = fbk_ledgers_next(&index->ledgers, &cursor)) != NULL) {
        if (state->flags & FBK_LEDGER_LIMBO)
            continue;
        fbk_index_touch(index, state);
        /* INV-X4: counts as fenced; metadata says at its end whether it is */
        state->flags |= FBK_LEDGER_LIMBO;
        fbk_index_wake(index, state);
    }
    return 0;
}

int32_t
fbk_index_put_in_limbo(struct fbk_index *index, const int64_t *ledger_ids, uint64_t count)
{
    for (uint64_t n = 0; n < count; n++) {
        if (ledger_ids[n] < 0)
            return FBK_E_CORRUPT;
        struct fbk_ledger_state *state = fbk_index_ledger_make(index, ledger_ids[n]);
        if (!state)
            return FBK_E_FULL;
        if (state->flags & FBK_LEDGER_LIMBO)
            continue;
        fbk_index_touch(index, state);
        index->limbo_count += !(state->flags & FBK_LEDGER_DELETED);
        state->flags |= FBK_LEDGER_LIMBO; /* INV-X4: counts as fenced, too */
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
    index->limbo_count = 0;
    if (ftruncate(states_fd, (off_t)(index->ledgers.count * sizeof *chunk)) < 0)
        return -errno;
    do {
        state = fbk_ledgers_next(&index->ledgers, &cursor);
        if (state) {
            index->limbo_count +=
                (state->flags & (FBK_LEDGER_LIMBO | FBK_LEDGER_DELETED)) == FBK_LEDGER_LIMBO;
            chunk[filled] = *state;
            fbk_index_state_seal(&chunk[filled++]);
        }
        if (filled > 0 && (!state || filled == STATES_A_WRITE)) {
            int32_t error =
                write_whole(states_fd, chunk, filled * sizeof *chunk, count * sizeof *chunk);
            if (error < 0)
                return error;
            count += filled;
            filled = 0;
        }
    } while (state);
    fbk_gauge(&index->segment->stats, FBK_C_INDEX_LIMBO, index->limbo_count);
    return (int64_t)count;
}

/* ------------ gc */

/* Ids of ledgers that have all flags of `wanted`, none of `unwanted`, and are not deleted. */
static int32_t
list(const struct fbk_index *index, uint32_t wanted, uint32_t unwanted, uint64_t *cursor,
     int64_t *ledger_ids, int32_t ids_max)
{
    int32_t count = 0;
    const struct fbk_ledger_state *state;
    while (count < ids_max && (state = fbk_ledgers_next(&index->ledgers, cursor)) != NULL)
        if ((state->flags & (wanted | unwanted | FBK_LEDGER_DELETED)) == wanted)
            ledger_ids[count++] = state->ledger_id;
    return count;
}

int32_t
fbk_index_list_ledgers(const struct fbk_index *index, uint64_t *cursor, int64_t *ledger_ids,
                       int32_t ids_max)
{
    return list(index, 0, FBK_LEDGER_UNCONFIRMED, cursor, ledger_ids, ids_max); /* INV-G4 */
}

int32_t
fbk_index_list_limbo(const struct fbk_index *index, uint64_t *cursor, int64_t *ledger_ids,
                     int32_t ids_max)
{
    if (index->limbo_count == 0)
        return 0; /* not a walk over all of them for nothing */
    return list(index, FBK_LEDGER_LIMBO, 0, cursor, ledger_ids, ids_max);
}

bool
fbk_index_notice_room(const struct fbk_index *index)
{
    uint64_t written = fbk_cursor_load(&index->segment->notices_written);
    return written - fbk_cursor_load(&index->journal->notices_consumed) < FBK_NOTICE_COUNT;
}

int32_t
fbk_index_give_notice(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                      uint32_t what, uint64_t deleted_s, int32_t *taken)
{
    int32_t changed = 0;
    uint64_t written = fbk_cursor_load(&index->segment->notices_written);
    uint64_t waiting = written - fbk_cursor_load(&index->journal->notices_consumed);
    fbk_index_forget_answers(index);
    for (*taken = 0; *taken < count; ++*taken) {
        struct fbk_ledger_state *state = fbk_index_ledger(index, ledger_ids[*taken]);
        if (!fbk_index_is_here(state))
            continue;
        if (waiting >= FBK_NOTICE_COUNT) /* the journal lags, or its cursor can't be */
            break;
        bool was_limbo = state->flags & FBK_LEDGER_LIMBO;
        fbk_index_touch(index, state);
        if (!fbk_decide_notice(state, what))
            continue;
        bool is_limbo =
            (state->flags & (FBK_LEDGER_LIMBO | FBK_LEDGER_DELETED)) == FBK_LEDGER_LIMBO;
        index->limbo_count -= was_limbo && !is_limbo;
        state->deleted_s = state->flags & FBK_LEDGER_DELETED ? (uint32_t)deleted_s : 0;
        fbk_index_wake(index, state);
        index->segment->notices[written++ % FBK_NOTICE_COUNT] =
            (struct fbk_notice){.ledger_id = state->ledger_id, .what = what};
        waiting++;
        changed++;
    }
    if (changed > 0) {
        fbk_cursor_publish(&index->segment->notices_written, written);
        if (fbk_bell_needed(&index->journal->sleeper, &index->journal_rung))
            fbk_bell_ring(index->options.journal_bell_fd);
        fbk_gauge(&index->segment->stats, FBK_C_INDEX_LIMBO, index->limbo_count);
    }
    return changed;
}

int32_t
fbk_index_delete_ledgers(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                         uint64_t now_s, int32_t *taken)
{
    int32_t deleted =
        fbk_index_give_notice(index, ledger_ids, count, FBK_NOTICE_DELETED, now_s, taken);
    fbk_count(&index->segment->stats, FBK_C_INDEX_DELETED_LEDGERS, (uint64_t)deleted);
    return deleted;
}

int32_t
fbk_index_limbo_over(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                     uint32_t fenced, int32_t *taken)
{
    uint32_t what = fenced ? FBK_NOTICE_LIMBO_OVER_FENCED : FBK_NOTICE_LIMBO_OVER;
    return fbk_index_give_notice(index, ledger_ids, count, what, 0, taken);
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

/* Making an index, ledger states in memory, seal and flushed. */
#include "index/index.h"

#define LAC_BODIES 8192u

/* ------------ life */

static int32_t
map_worker(struct fbk_index *index, uint32_t w)
{
    struct fbk_index_worker *worker = &index->workers[w];
    int32_t fd = index->options.worker_segment_fds[w];
    int32_t error = 0;
    worker->bell_fd = index->options.worker_bell_fds[w];
    worker->segment = fbk_segment_map(fd, FBK_ROLE_WORKER, false, &error);
    if (!worker->segment)
        return error;
    if (worker->segment->header.epoch != index->options.epoch ||
        worker->segment->header.role_index != w ||
        worker->segment->header.pair != index->segment->header.pair)
        return FBK_E_LAYOUT;
    error = fbk_segment_map_ring(fd, &worker->segment->header, 0, 0, false, &worker->add_ring);
    if (error >= 0)
        error =
            fbk_segment_map_ring(fd, &worker->segment->header, 1, 0, false, &worker->request_ring);
    if (error >= 0)
        error = fbk_segment_map_ring(index->options.segment_fd, &index->segment->header, 0, w, true,
                                     &worker->reply_ring);
    if (error < 0)
        return error;
    /* The largest reply fits twice, so a full ring empties by itself. */
    if (worker->reply_ring.size_bytes <
        2ull * (index->options.frame_size_bytes_max + sizeof(struct fbk_reply)))
        return -EINVAL;
    return 0;
}

static int32_t
map_segments(struct fbk_index *index)
{
    int32_t error = 0;
    index->segment = fbk_segment_map(index->options.segment_fd, FBK_ROLE_INDEX, true, &error);
    if (!index->segment)
        return error;
    fbk_flight_open(&index->recorder, &index->segment->stats.flight);
    fbk_hot_init(&index->hot, index->options.epoch, fbk_now_ns());
    index->journal =
        fbk_segment_map(index->options.journal_segment_fd, FBK_ROLE_JOURNAL, false, &error);
    if (!index->journal)
        return error;
    if (index->segment->header.epoch != index->options.epoch ||
        index->journal->header.epoch != index->options.epoch ||
        index->journal->header.pair != index->segment->header.pair)
        return FBK_E_LAYOUT;
    if (index->journal->header.ring_size_bytes[0] > 0)
        error = fbk_segment_map_ring(index->options.journal_segment_fd, &index->journal->header, 0,
                                     0, false, &index->tail);
    for (uint32_t w = 0; error >= 0 && w < index->options.worker_count; w++) {
        error = map_worker(index, w);
        if (error < 0)
            return error;
    }
    return 0;
}

static int32_t
take_memory(struct fbk_index *index)
{
    const struct fbk_index_options *options = &index->options;
    int32_t error = fbk_ledgers_init(&index->ledgers, options->ledgers_max);
    const uint64_t align_bytes =
        index->store ? fbk_store_align_bytes(index->store) : FBK_PAGE_BYTES;
    for (uint32_t n = 0; n < 2 && error >= 0; n++)
        error =
            fbk_cache_init(&index->caches[n], options->cache_bytes, align_bytes, options->seed + n);
    if (error >= 0)
        error = fbk_index_requests_init(index);
    if (error >= 0)
        error = fbk_index_bulk_init(index);
    if (error >= 0)
        error = fbk_index_streams_init(index);
    if (error >= 0)
        error = fbk_index_waiters_init(index);
    if (error < 0)
        return error;
    index->lac_bodies = fbk_memory_take(LAC_BODIES * sizeof *index->lac_bodies);
    return index->lac_bodies ? 0 : -ENOMEM;
}

struct fbk_index *
fbk_index_create(const struct fbk_index_options *options, struct fbk_store *store, int32_t *error)
{
    *error = -EINVAL;
    if (options->worker_count == 0 || options->worker_count > FBK_WORKERS_MAX ||
        options->requests_max == 0 || options->waiters_max == 0 ||
        options->cache_reserve_bytes >= options->cache_bytes)
        return NULL;
    *error = -ENOMEM;
    struct fbk_index *index = fbk_memory_take(sizeof *index);
    if (!index)
        return NULL;
    index->options = *options;
    fbk_header_key_load(&index->header_key, options->header_key);
    index->store = store;
    index->seal_number = 1;
    index->check_free = FBK_NONE;
    index->active = &index->caches[0];
    index->other = &index->caches[1];
    *error = take_memory(index);
    if (*error >= 0)
        *error = map_segments(index);
    if (*error < 0) {
        fbk_index_destroy(index);
        return NULL;
    }
    fbk_index_grant_credit(index);
    fbk_index_publish(index);
    return index;
}

static void
free_sealed(struct fbk_sealed *sealed)
{
    if (sealed->layout)
        fbk_memory_give_back(sealed->layout, sealed->layout_memory_bytes);
    if (sealed->states)
        fbk_memory_give_back(sealed->states, sealed->states_memory_bytes);
    fbk_adopted_free(&sealed->adopted);
    memset(sealed, 0, sizeof *sealed);
}

void
fbk_index_destroy(struct fbk_index *index)
{
    fbk_index_checks_free(index);
    fbk_index_requests_free(index);
    fbk_index_bulk_free(index);
    fbk_index_streams_free(index);
    fbk_index_waiters_free(index);
    free_sealed(&index->sealed);
    fbk_adopted_free(&index->adopted);
    fbk_segment_unmap_ring(&index->tail);
    for (uint32_t n = 0; n < 2; n++)
        fbk_cache_free(&index->caches[n]);
    if (index->forgetting.ledger_ids)
        fbk_memory_give_back(index->forgetting.ledger_ids, index->forgetting.memory_bytes);
    if (index->ledgers.chunks)
        fbk_ledgers_free(&index->ledgers);
    if (index->dirty)
        fbk_memory_give_back(index->dirty, index->dirty_memory_bytes);
    if (index->scratch)
        fbk_memory_give_back(index->scratch, index->scratch_bytes);
    if (index->checked)
        fbk_memory_give_back(index->checked, index->checked_memory_bytes);
    if (index->lac_bodies)
        fbk_memory_give_back(index->lac_bodies, LAC_BODIES * sizeof *index->lac_bodies);
    for (uint32_t w = 0; w < index->options.worker_count; w++) {
        struct fbk_index_worker *worker = &index->workers[w];
        fbk_segment_unmap_ring(&worker->add_ring);
        fbk_segment_unmap_ring(&worker->request_ring);
        fbk_segment_unmap_ring(&worker->reply_ring);
        if (worker->segment)
            fbk_segment_unmap(worker->segment, FBK_ROLE_WORKER);
    }
    if (index->journal)
        fbk_segment_unmap(index->journal, FBK_ROLE_JOURNAL);
    fbk_flight_close(&index->recorder);
    if (index->segment)
        fbk_segment_unmap(index->segment, FBK_ROLE_INDEX);
    fbk_memory_give_back(index, sizeof *index);
}

uint8_t *
fbk_index_scratch(struct fbk_index *index, uint64_t size_bytes)
{
    if (size_bytes > index->scratch_bytes) {
        if (index->scratch)
            fbk_memory_give_back(index->scratch, index->scratch_bytes);
        index->scratch_bytes = fbk_round_up(size_bytes, FBK_PAGE_BYTES);
        index->scratch = fbk_memory_take(index->scratch_bytes);
        if (!index->scratch)
            index->scratch_bytes = 0;
    }
    return index->scratch;
}

/* ------------ ledgers */

struct fbk_ledger_state *
fbk_index_ledger(struct fbk_index *index, int64_t ledger_id)
{
    if (FBK_LIKELY(index->last_ledger && index->last_ledger->ledger_id == ledger_id))
        return index->last_ledger;
    struct fbk_ledger_state *state = fbk_ledgers_find(&index->ledgers, ledger_id);
    if (state)
        index->last_ledger = state;
    return state;
}

struct fbk_ledger_state *
fbk_index_ledger_make(struct fbk_index *index, int64_t ledger_id)
{
    struct fbk_ledger_state *state = fbk_index_ledger(index, ledger_id);
    if (FBK_LIKELY(state != NULL))
        return state;
    index->last_ledger = NULL; /* the table may move */
    state = fbk_ledgers_add(&index->ledgers, ledger_id);
    if (!state)
        return NULL;
    state->reserved = 0;
    fbk_gauge(&index->segment->stats, FBK_C_INDEX_LEDGERS, index->ledgers.count);
    index->last_ledger = state;
    return state;
}

/* `reserved` of a state in the table is the number of the seal that will contain its last change;
 * it is 0 on disk. */
void
fbk_index_touch(struct fbk_index *index, struct fbk_ledger_state *state)
{
    state->changed_sequence = index->batch_sequence;
    if (FBK_LIKELY(state->reserved == index->seal_number))
        return;
    state->reserved = index->seal_number;
    if (index->oldest_ns == 0)
        index->oldest_ns = fbk_now_ns();
    if ((index->dirty_count + 1) * sizeof *index->dirty > index->dirty_memory_bytes) {
        uint64_t bigger_bytes =
            index->dirty_memory_bytes ? index->dirty_memory_bytes * 2 : 16 * FBK_PAGE_BYTES;
        int64_t *bigger =
            index->dirty ? fbk_memory_grow(index->dirty, index->dirty_memory_bytes, bigger_bytes)
                         : fbk_memory_take(bigger_bytes);
        if (!bigger) {
            index->dirty_lost = true; /* seal looks through the whole table instead */
            return;
        }
        index->dirty = bigger;
        index->dirty_memory_bytes = bigger_bytes;
    }
    index->dirty[index->dirty_count++] = state->ledger_id;
}

void
fbk_index_noted(struct fbk_index *index, struct fbk_ledger_state *state, int64_t entry_id,
                int64_t lac)
{
    fbk_index_touch(index, state);
    if (fbk_decide_stored(state, entry_id, lac) && FBK_UNLIKELY(index->waiter_count > 0))
        fbk_index_wake(index, state);
}

const struct fbk_cache_item *
fbk_index_cached(const struct fbk_index *index, int64_t ledger_id, int64_t entry_id)
{
    const struct fbk_cache_item *item = fbk_cache_find(index->active, ledger_id, entry_id);
    return item ? item : fbk_cache_find(index->other, ledger_id, entry_id);
}

/* ------------ seal and flushed */

static int32_t
seal_states(struct fbk_index *index, struct fbk_sealed *sealed)
{
    uint64_t most = index->dirty_lost ? index->ledgers.count : index->dirty_count;
    sealed->states_memory_bytes = (most ? most : 1) * sizeof *sealed->states;
    sealed->states = fbk_memory_take(sealed->states_memory_bytes);
    if (!sealed->states)
        return -ENOMEM;
    if (index->dirty_lost) {
        uint64_t cursor = 0;
        const struct fbk_ledger_state *state;
        while ((state = fbk_ledgers_next(&index->ledgers, &cursor)) != NULL)
            if (state->reserved == index->seal_number)
                sealed->states[sealed->state_count++] = *state;
        return 0;
    }
    for (uint64_t n = 0; n < index->dirty_count; n++) {
        const struct fbk_ledger_state *state = fbk_ledgers_find(&index->ledgers, index->dirty[n]);
        if (FBK_LIKELY(state != NULL))
            sealed->states[sealed->state_count++] = *state;
    }
    return 0;
}

void
fbk_index_forget_flushed(struct fbk_index *index)
{
    if (index->other->item_count > 0)
        index->resets++;
    fbk_cache_reset(index->other);
}

/* Where a check holds the mark back only its file is known, and not even that if it is old. */
static void
note_mark_place(struct fbk_index *index, uint64_t mark_sequence)
{
    if (mark_sequence == index->taken_sequence) {
        index->mark_place = index->taken_place;
        return;
    }
    index->mark_place.batch_offset_bytes = 0;
    for (uint32_t i = 0; i < FBK_FILE_BEGINS && index->file_begins[i].file_id != 0; i++)
        if (index->file_begins[i].batch_sequence <= mark_sequence) {
            index->mark_place.file_id = index->file_begins[i].file_id;
            return;
        }
}

int32_t
fbk_index_seal(struct fbk_index *index)
{
    struct fbk_sealed *sealed = &index->sealed;
    if (sealed->cache)
        return -EBUSY;
    int32_t error = seal_states(index, sealed);
    if (error < 0) {
        free_sealed(sealed);
        return error;
    }
    /* A parked copy is in no cache yet: its batch is not contained in this flush (INV-A1). */
    uint64_t oldest_check = fbk_index_checks_oldest(index);
    sealed->mark_sequence =
        oldest_check <= index->taken_sequence ? oldest_check - 1 : index->taken_sequence;
    if (sealed->mark_sequence < index->mark_sequence)
        sealed->mark_sequence = index->mark_sequence;
    sealed->journal_bytes = index->journal_bytes;
    note_mark_place(index, sealed->mark_sequence);
    sealed->mark_place = index->mark_place;
    sealed->adopted = index->adopted;
    memset(&index->adopted, 0, sizeof index->adopted);
    /* here, for replay looks at it beside the flush thread */
    fbk_locations_sort(sealed->adopted.locations, sealed->adopted.count);
    sealed->cache = index->active;
    index->active->sealed = true;
    fbk_index_forget_flushed(index);
    struct fbk_write_cache *emptied = index->other;
    index->other = index->active;
    index->active = emptied;
    index->dirty_count = 0;
    index->dirty_lost = false;
    index->seal_number = index->seal_number == UINT32_MAX ? 1 : index->seal_number + 1;
    index->oldest_ns = 0;
    index->full = false;
    return 0;
}

static int
compare_states(const void *a, const void *b)
{
    const struct fbk_ledger_state *x = a, *y = b;
    return (x->ledger_id > y->ledger_id) - (x->ledger_id < y->ledger_id);
}

/* Of all attempts at this flush: chunks are laid out in the arena itself, which a failed attempt
 * may have written to disk, but to a place that no manifest names. */
static int32_t
lay_out(struct fbk_sealed *sealed)
{
    struct fbk_write_cache *cache = sealed->cache;
    const uint64_t items_bytes = cache->item_count * sizeof(struct fbk_flush_item);
    const uint64_t runs_bytes = cache->run_count * sizeof(struct fbk_flush_run);
    sealed->layout_memory_bytes =
        items_bytes + runs_bytes + cache->chunk_count * sizeof(struct fbk_flush_chunk) + 1;
    sealed->layout = fbk_memory_take(sealed->layout_memory_bytes);
    if (!sealed->layout)
        return -ENOMEM;
    int32_t error = fbk_cache_lay_out(
        cache, (struct fbk_flush_item *)(void *)sealed->layout,
        (struct fbk_flush_run *)(void *)(sealed->layout + items_bytes),
        (struct fbk_flush_chunk *)(void *)(sealed->layout + items_bytes + runs_bytes),
        &sealed->contents);
    if (error < 0) {
        fbk_memory_give_back(sealed->layout, sealed->layout_memory_bytes);
        sealed->layout = NULL;
        return error;
    }
    qsort(sealed->states, sealed->state_count, sizeof *sealed->states, compare_states);
    for (uint64_t n = 0; n < sealed->state_count; n++)
        fbk_index_state_seal(&sealed->states[n]);
    sealed->contents.states = sealed->states;
    sealed->contents.state_count = sealed->state_count;
    sealed->contents.adopted = sealed->adopted.locations;
    sealed->contents.adopted_count = sealed->adopted.count;
    sealed->contents.files = sealed->adopted.files;
    sealed->contents.file_count = sealed->adopted.file_count;
    return 0;
}

int32_t
fbk_index_sealed(struct fbk_index *index, struct fbk_flush_contents *contents,
                 uint64_t *mark_sequence, struct fbk_mark_place *place)
{
    struct fbk_sealed *sealed = &index->sealed;
    if (!sealed->cache)
        return -EINVAL;
    int32_t error = sealed->layout ? 0 : lay_out(sealed);
    if (error < 0)
        return error;
    *contents = sealed->contents;
    *mark_sequence = sealed->mark_sequence;
    *place = sealed->mark_place;
    return 0;
}

void
fbk_index_flushed(struct fbk_index *index)
{
    struct fbk_sealed *sealed = &index->sealed;
    FBK_ASSERT(sealed->cache != NULL && sealed->mark_sequence >= index->mark_sequence);
    index->mark_sequence = sealed->mark_sequence;
    index->mark_journal_bytes = sealed->journal_bytes;
    fbk_count(&index->segment->stats, FBK_C_INDEX_FLUSH_COPIED_BYTES, sealed->contents.item_bytes);
    for (uint32_t i = 0; i < sealed->adopted.file_count; i++)
        fbk_count(&index->segment->stats, FBK_C_INDEX_ADOPTED_BYTES,
                  sealed->adopted.files[i].run_bytes);
    free_sealed(sealed);
    if (FBK_LIKELY(!index->mark_is_held))
        fbk_cursor_publish(&index->segment->mark_sequence, index->mark_sequence);
    fbk_count(&index->segment->stats, FBK_C_INDEX_FLUSHES, 1);
    if (fbk_bell_needed(&index->journal->sleeper, &index->journal_rung))
        fbk_bell_ring(index->options.journal_bell_fd);
    fbk_index_grant_credit(index);
    fbk_index_publish(index);
}

void
fbk_index_hold_mark(struct fbk_index *index)
{
    index->mark_is_held = true;
}

void
fbk_index_set_mark(struct fbk_index *index, uint64_t mark_sequence, uint32_t limbo)
{
    index->mark_sequence = mark_sequence;
    if (index->taken_sequence < mark_sequence)
        index->taken_sequence = mark_sequence;
    if (index->batch_sequence < mark_sequence)
        index->batch_sequence = mark_sequence;
    index->limbo = index->limbo || limbo != 0;
    fbk_gauge(&index->segment->stats, FBK_C_INDEX_DAMAGED, index->limbo);
    fbk_cursor_publish(&index->segment->mark_sequence, mark_sequence);
}

/* ------------ what Python sees and sets */

void
fbk_index_beat(struct fbk_index *index, uint32_t word)
{
    fbk_beat(&index->segment->stats, word);
}

void
fbk_index_get_status(const struct fbk_index *index, struct fbk_index_status *status)
{
    *status = (struct fbk_index_status){
        .taken_sequence = index->taken_sequence,
        .taken_order = index->order,
        .mark_sequence = index->mark_sequence,
        .journal_bytes_behind = index->journal_bytes - index->mark_journal_bytes,
        .cache_bytes = index->active->used_bytes,
        .cache_items = index->active->item_count,
        .sealed_items = index->sealed.cache ? index->sealed.cache->item_count : 0,
        .dirty_states = index->dirty_count,
        .ledgers = index->ledgers.count,
        .waiters = index->waiter_count,
        .requests = index->request_count,
        .checks = index->check_count,
        .parked_bytes = index->parked_bytes,
        .flushing = index->sealed.cache != NULL,
        .limbo = index->limbo,
    };
}

void
fbk_index_gauge(struct fbk_index *index, uint32_t counter, uint64_t value)
{
    if (counter < FBK_COUNTERS_MAX)
        fbk_gauge(&index->segment->stats, counter, value);
}

void
fbk_index_count(struct fbk_index *index, uint32_t counter, uint64_t amount)
{
    if (counter < FBK_COUNTERS_MAX)
        fbk_count(&index->segment->stats, counter, amount);
}

void
fbk_index_observe(struct fbk_index *index, uint32_t histogram, uint64_t value)
{
    if (histogram < FBK_HISTOGRAMS_MAX)
        fbk_observe_many(&index->segment->stats, histogram, value, 1);
}

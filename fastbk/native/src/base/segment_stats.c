/* What Python sees of a segment: its header and its statistics, copied. */
#include "base/segment.h"
#include "base/stats.h"

void
fbk_python_segment_facts(const void *segment, struct fbk_segment_facts *facts)
{
    const struct fbk_segment_header *header = segment;
    facts->role = header->role;
    facts->role_index = header->role_index;
    facts->pair = header->pair;
    facts->epoch = header->epoch;
    facts->layout_version = header->version;
    facts->size_bytes = header->size_bytes;
}

static const struct fbk_stats *
stats_to_read(const void *segment, uint32_t role)
{
    return fbk_segment_stats((void *)(uintptr_t)segment, role);
}

int32_t
fbk_python_counters(const void *segment, uint32_t role, uint64_t *counters, uint32_t counters_max)
{
    const struct fbk_stats *stats = stats_to_read(segment, role);
    if (stats == NULL || counters_max > FBK_COUNTERS_MAX)
        return -EINVAL;
    for (uint32_t i = 0; i < counters_max; i++)
        counters[i] = atomic_load_explicit(&stats->counters[i], memory_order_relaxed);
    return 0;
}

int32_t
fbk_python_histogram(const void *segment, uint32_t role, uint32_t histogram,
                     struct fbk_histogram_copy *copy)
{
    const struct fbk_stats *stats = stats_to_read(segment, role);
    if (stats == NULL || histogram >= FBK_HISTOGRAMS_MAX)
        return -EINVAL;
    const struct fbk_histogram *from = &stats->histograms[histogram];
    copy->count = atomic_load_explicit(&from->count, memory_order_relaxed);
    copy->sum = atomic_load_explicit(&from->sum, memory_order_relaxed);
    copy->max = atomic_load_explicit(&from->max, memory_order_relaxed);
    for (uint32_t i = 0; i < FBK_HISTOGRAM_BUCKETS; i++)
        copy->buckets[i] = atomic_load_explicit(&from->buckets[i], memory_order_relaxed);
    return 0;
}

int32_t
fbk_python_count(void *segment, uint32_t role, uint32_t counter, uint64_t amount)
{
    struct fbk_stats *stats = fbk_segment_stats(segment, role);
    if (stats == NULL || counter >= FBK_COUNTERS_MAX)
        return -EINVAL;
    fbk_count(stats, counter, amount);
    return 0;
}

int32_t
fbk_python_gauge(void *segment, uint32_t role, uint32_t counter, uint64_t value)
{
    struct fbk_stats *stats = fbk_segment_stats(segment, role);
    if (stats == NULL || counter >= FBK_COUNTERS_MAX)
        return -EINVAL;
    fbk_gauge(stats, counter, value);
    return 0;
}

int32_t
fbk_python_observe(void *segment, uint32_t role, uint32_t histogram, uint64_t value)
{
    struct fbk_stats *stats = fbk_segment_stats(segment, role);
    if (stats == NULL || histogram >= FBK_HISTOGRAMS_MAX)
        return -EINVAL;
    fbk_observe_many(stats, histogram, value, 1);
    return 0;
}

int32_t
fbk_python_beat(void *segment, uint32_t role, uint32_t word)
{
    struct fbk_stats *stats = fbk_segment_stats(segment, role);
    if (stats == NULL || word >= FBK_HEARTBEATS_MAX)
        return -EINVAL;
    fbk_beat(stats, word);
    return 0;
}

int32_t
fbk_python_heartbeats(const void *segment, uint32_t role, uint64_t *beats)
{
    const struct fbk_stats *stats = stats_to_read(segment, role);
    if (stats == NULL)
        return -EINVAL;
    for (uint32_t word = 0; word < FBK_HEARTBEATS_MAX; word++)
        beats[word] = atomic_load_explicit(&stats->heartbeats[word].beats, memory_order_relaxed);
    return 0;
}

int32_t
fbk_python_flight(const void *segment, uint32_t role, uint64_t from,
                  struct fbk_flight_record *records, uint32_t records_max, uint64_t *next)
{
    const struct fbk_stats *stats = stats_to_read(segment, role);
    if (stats == NULL)
        return -EINVAL;
    const struct fbk_flight *flight = &stats->flight;
    uint64_t written = atomic_load_explicit(&flight->written, memory_order_acquire);
    if (written < from || written - from > FBK_FLIGHT_RECORDS)
        from = written < FBK_FLIGHT_RECORDS ? 0 : written - FBK_FLIGHT_RECORDS;
    uint32_t count = 0;
    for (; from < written && count < records_max; from++) {
        records[count] = flight->records[from % FBK_FLIGHT_RECORDS];
        atomic_thread_fence(memory_order_acquire);
        /* The slot of the record that comes next may be half written already. */
        if (atomic_load_explicit(&flight->written, memory_order_relaxed) - from <
            FBK_FLIGHT_RECORDS)
            count++;
    }
    *next = from;
    return (int32_t)count;
}

uint64_t
fbk_python_bucket_from(uint32_t bucket)
{
    return fbk_histogram_bucket_from(bucket);
}

int32_t
fbk_python_hot_window(const void *segment, struct fbk_hot_window *copy)
{
    const struct fbk_index_segment *index = segment;
    if (index->header.role != FBK_ROLE_INDEX)
        return -EINVAL;
    for (uint32_t attempt = 0; attempt < 8; attempt++) {
        const uint64_t written = atomic_load_explicit(&index->hot.written, memory_order_acquire);
        if (written == 0)
            return 0;
        *copy = index->hot.windows[(written - 1) % FBK_HOT_WINDOWS];
        atomic_thread_fence(memory_order_acquire);
        /* With one more written, the slot may be in use for the next. */
        if (atomic_load_explicit(&index->hot.written, memory_order_relaxed) == written &&
            copy->count <= FBK_HOT_LEDGERS)
            return 1;
    }
    return -EAGAIN;
}

/* The list of a ledger's entries as Apache's bookies send it: a header of 64 bytes, then 24 bytes
 * for each group of sequences of one size, equally spaced. */
#include "apache/apache.h"
#include "base/layout.h"

#define HEADER_BYTES 64u
#define GROUP_BYTES 24u

/* `count` sequences of `size` ids each, `period` ids from one's start to the next one's; size 0 =
 * none of these ids. */
struct group {
    int64_t first;
    int64_t last; /* the start of the last sequence */
    int64_t size;
    int64_t period; /* 0 = one sequence */
};

/* ------------ writing */

struct list_writer {
    uint8_t *out;
    uint64_t out_bytes;
    uint64_t group_count;
    struct group group; /* not written yet; size 0 = none */
};

static void
put_group(struct list_writer *writer, struct group group)
{
    uint64_t at = HEADER_BYTES + GROUP_BYTES * writer->group_count++;
    if (at + GROUP_BYTES > writer->out_bytes)
        return;
    fbk_store_be64(writer->out + at, (uint64_t)group.first);
    fbk_store_be64(writer->out + at + 8, (uint64_t)group.last);
    fbk_store_be32(writer->out + at + 16, (uint32_t)group.size);
    fbk_store_be32(writer->out + at + 20, (uint32_t)group.period);
}

/* Apache's reader takes the list for finished when it meets an id that lies more than one behind a
 * group and before the next one. A group without ids in between keeps it going. */
static void
put_gap(struct list_writer *writer, int64_t next)
{
    int64_t from = writer->group.last + writer->group.size;
    if (next - from > 1)
        put_group(writer, (struct group){.first = from, .last = next - 1, .size = 0, .period = 1});
}

static void
put_sequence(struct list_writer *writer, int64_t first, int64_t size)
{
    struct group *group = &writer->group;
    int64_t distance = first - group->last;
    bool is_next =
        group->period == 0 ? distance > size && distance <= INT32_MAX : distance == group->period;
    if (group->size == size && is_next) {
        group->last = first;
        group->period = distance;
        return;
    }
    if (group->size != 0) {
        put_group(writer, *group);
        put_gap(writer, first);
    }
    *group = (struct group){.first = first, .last = first, .size = size};
}

uint64_t
fbk_apache_put_list(uint8_t *out, uint64_t out_bytes, const int64_t *ranges, uint32_t range_count)
{
    struct list_writer writer = {.out = out, .out_bytes = out_bytes};
    for (uint32_t i = 0; i < range_count; i++) {
        int64_t first = ranges[2ull * i], last = ranges[2ull * i + 1];
        /* A sequence's size is an int32. */
        for (; last - first >= INT32_MAX; first += INT32_MAX)
            put_sequence(&writer, first, INT32_MAX);
        put_sequence(&writer, first, last - first + 1);
    }
    if (writer.group.size != 0)
        put_group(&writer, writer.group);
    if (out_bytes >= HEADER_BYTES) {
        memset(out, 0, HEADER_BYTES);
        fbk_store_be32(out + 4, (uint32_t)writer.group_count);
    }
    return HEADER_BYTES + GROUP_BYTES * writer.group_count;
}

/* ------------ reading */

struct list_reader {
    int64_t *ranges;
    uint32_t range_count_max;
    int64_t range_count;
    int64_t end; /* the id behind the last one */
    bool has_any;
};

static void
take_range(struct list_reader *reader, int64_t first, int64_t last)
{
    if (reader->has_any && first == reader->end) {
        if (reader->range_count <= reader->range_count_max)
            reader->ranges[2 * reader->range_count - 1] = last;
    } else {
        if (reader->range_count < reader->range_count_max) {
            reader->ranges[2 * reader->range_count] = first;
            reader->ranges[2 * reader->range_count + 1] = last;
        }
        reader->range_count++;
    }
    reader->has_any = true;
    reader->end = last + 1;
}

/* False: no group of ascending sequences of ids, behind those before it. */
static bool
take_group(struct list_reader *reader, struct group group)
{
    if (group.size == 0)
        return true;
    if (group.size < 0 || group.first < reader->end || group.last < group.first ||
        group.last > INT64_MAX - group.size)
        return false;
    int64_t distance = group.last - group.first;
    if (distance == 0 || group.period == group.size) {
        if (distance != 0 && distance % group.period != 0)
            return false;
        take_range(reader, group.first, group.last + group.size - 1);
        return true;
    }
    if (group.period < group.size || distance % group.period != 0)
        return false;
    for (int64_t first = group.first;; first += group.period) {
        take_range(reader, first, first + group.size - 1);
        if (first == group.last)
            return true;
        /* Those that nobody has room for are only counted. */
        if (reader->range_count >= reader->range_count_max) {
            reader->range_count += (group.last - first) / group.period;
            reader->end = group.last + group.size;
            return true;
        }
    }
}

int64_t
fbk_apache_read_list(const uint8_t *blob, uint32_t blob_bytes, int64_t *ranges,
                     uint32_t range_count_max)
{
    struct list_reader reader = {.ranges = ranges, .range_count_max = range_count_max};
    if (blob_bytes < HEADER_BYTES || fbk_load_be32(blob) != 0 ||
        fbk_load_be32(blob + 4) > (blob_bytes - HEADER_BYTES) / GROUP_BYTES)
        return FBK_E_PROTOCOL;
    uint32_t group_count = fbk_load_be32(blob + 4);
    for (uint32_t i = 0; i < group_count; i++) {
        const uint8_t *at = blob + HEADER_BYTES + (uint64_t)GROUP_BYTES * i;
        struct group group = {
            .first = (int64_t)fbk_load_be64(at),
            .last = (int64_t)fbk_load_be64(at + 8),
            .size = (int32_t)fbk_load_be32(at + 16),
            .period = (int32_t)fbk_load_be32(at + 20),
        };
        if (!take_group(&reader, group))
            return FBK_E_PROTOCOL;
    }
    return reader.range_count;
}

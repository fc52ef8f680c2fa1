/* Copies that the fake disk takes of itself while something runs on it: as many crashes as there
 * are moments, from one run. A moment is the beginning of an operation that changes something, and
 * the completion of a write. */
#include "parts.h"

#include "base/segment.h"

/* The disk's mutex is held. */
void
fake_moment(struct fbk_fake *disk)
{
    struct fake_snapshots *wanted = &disk->snapshots;
    uint64_t now = ++wanted->moments;
    if (wanted->stride == 0 || now < wanted->next || wanted->taken.count == FBK_FAKE_SNAPSHOTS_MAX)
        return;
    wanted->next = now + wanted->stride;
    struct fake_snapshot *snapshot = fake_vector_add(&wanted->taken, sizeof *snapshot);
    FBK_ASSERT(snapshot != NULL);
    snapshot->moment = now;
    snapshot->watched =
        wanted->watched == NULL ? 0 : __atomic_load_n(wanted->watched, __ATOMIC_ACQUIRE);
    snapshot->disk = fake_copy(disk);
    FBK_ASSERT(snapshot->disk != NULL);
}

void
fake_snapshots_free(struct fbk_fake *disk)
{
    struct fake_snapshot *taken = disk->snapshots.taken.items;
    for (uint64_t i = disk->snapshots.given; i < disk->snapshots.taken.count; i++)
        fbk_fake_destroy(taken[i].disk);
    fake_vector_free(&disk->snapshots.taken);
    disk->snapshots.given = 0;
}

uint64_t
fbk_fake_moments(struct fbk_fake *disk)
{
    FBK_ASSERT(pthread_mutex_lock(&disk->mutex) == 0);
    uint64_t moments = disk->snapshots.moments;
    FBK_ASSERT(pthread_mutex_unlock(&disk->mutex) == 0);
    return moments;
}

void
fbk_fake_take_snapshots(struct fbk_fake *disk, uint64_t first, uint64_t stride,
                        const uint64_t *watched)
{
    FBK_ASSERT(pthread_mutex_lock(&disk->mutex) == 0);
    disk->snapshots.next = disk->snapshots.moments + first;
    disk->snapshots.stride = stride;
    disk->snapshots.watched = watched;
    FBK_ASSERT(pthread_mutex_unlock(&disk->mutex) == 0);
}

struct fbk_fake *
fbk_fake_next_snapshot(struct fbk_fake *disk, uint64_t *moment, uint64_t *watched)
{
    struct fbk_fake *copy = NULL;
    FBK_ASSERT(pthread_mutex_lock(&disk->mutex) == 0);
    struct fake_snapshots *snapshots = &disk->snapshots;
    if (snapshots->given < snapshots->taken.count) {
        const struct fake_snapshot *next =
            (const struct fake_snapshot *)snapshots->taken.items + snapshots->given++;
        copy = next->disk;
        *moment = next->moment;
        *watched = next->watched;
    }
    if (copy == NULL) {
        snapshots->taken.count = 0;
        snapshots->given = 0;
    }
    FBK_ASSERT(pthread_mutex_unlock(&disk->mutex) == 0);
    return copy;
}

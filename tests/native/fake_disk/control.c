/* The fake disk's controls: faults, power, delivery of completions, damage, log. */
#include "parts.h"

#include "base/segment.h"

static void
lock(struct fbk_fake *disk)
{
    FBK_ASSERT(pthread_mutex_lock(&disk->mutex) == 0);
}

static void
unlock(struct fbk_fake *disk)
{
    FBK_ASSERT(pthread_mutex_unlock(&disk->mutex) == 0);
}

/* ------------ life */

static struct fbk_fake *
make(uint64_t capacity_bytes, uint64_t seed)
{
    struct fbk_fake *disk = fbk_memory_take(sizeof *disk);
    if (disk == NULL)
        return NULL;
    pthread_condattr_t attributes;
    FBK_ASSERT(pthread_mutex_init(&disk->mutex, NULL) == 0);
    FBK_ASSERT(pthread_condattr_init(&attributes) == 0);
    FBK_ASSERT(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    FBK_ASSERT(pthread_cond_init(&disk->unlocked, &attributes) == 0);
    pthread_condattr_destroy(&attributes);
    disk->capacity_bytes = capacity_bytes;
    disk->random = seed;
    return disk;
}

struct fbk_fake *
fbk_fake_create(uint64_t capacity_bytes, uint64_t seed)
{
    struct fbk_fake *disk = make(capacity_bytes, seed);
    if (disk == NULL)
        return NULL;
    struct fake_name *root = fake_vector_add(&disk->live_names, sizeof *root);
    FBK_ASSERT(root != NULL);
    root->path[0] = '/';
    fake_vector_copy(&disk->durable_names, &disk->live_names, sizeof *root);
    return disk;
}

void
fbk_fake_destroy(struct fbk_fake *disk)
{
    FBK_ASSERT(disk->ios == NULL);
    while (disk->write_count > 0)
        fake_write_forget(disk, 0);
    fake_snapshots_free(disk);
    for (struct fake_file *file = disk->files, *next; file != NULL; file = next) {
        next = file->next;
        fake_file_free(file);
    }
    fake_vector_free(&disk->live_names);
    fake_vector_free(&disk->durable_names);
    fake_vector_free(&disk->changes);
    fake_vector_free(&disk->log);
    pthread_cond_destroy(&disk->unlocked);
    pthread_mutex_destroy(&disk->mutex);
    fbk_memory_give_back(disk, sizeof *disk);
}

static void
copy_file(struct fbk_fake *disk, struct fake_file *from)
{
    struct fake_file *file = fake_file_make(disk);
    FBK_ASSERT(file != NULL);
    fake_file_share(file, from);
    file->number = from->number;
    file->bad_from_bytes = from->bad_from_bytes;
    file->bad_to_bytes = from->bad_to_bytes;
}

static struct fake_file *
file_numbered(const struct fbk_fake *disk, const struct fake_file *like)
{
    struct fake_file *file = disk->files;
    while (file != NULL && like != NULL && file->number != like->number)
        file = file->next;
    return like == NULL ? NULL : file;
}

struct fbk_fake *
fake_copy(struct fbk_fake *disk)
{
    struct fbk_fake *copy = make(disk->capacity_bytes, disk->random);
    if (copy != NULL) {
        for (struct fake_file *file = disk->files; file != NULL; file = file->next)
            copy_file(copy, file);
        copy->files_made = disk->files_made;
        copy->off = disk->off;
        fake_vector_copy(&copy->live_names, &disk->live_names, sizeof(struct fake_name));
        fake_vector_copy(&copy->durable_names, &disk->durable_names, sizeof(struct fake_name));
        fake_vector_copy(&copy->changes, &disk->changes, sizeof(struct fake_change));
        struct fake_name *live = copy->live_names.items, *durable = copy->durable_names.items;
        struct fake_change *changes = copy->changes.items;
        for (uint64_t i = 0; i < copy->live_names.count; i++)
            live[i].file = file_numbered(copy, live[i].file);
        for (uint64_t i = 0; i < copy->durable_names.count; i++)
            durable[i].file = file_numbered(copy, durable[i].file);
        for (uint64_t i = 0; i < copy->changes.count; i++)
            changes[i].file = file_numbered(copy, changes[i].file);
        /* Writes under way belong to nobody in the copy; not durable, so a restart finds any part
         * of them. */
        for (uint32_t i = 0; i < disk->write_count; i++) {
            const struct fake_write *write = &disk->writes[i];
            fake_file_put(file_numbered(copy, write->file), write->copy, write->size_bytes,
                          write->offset_bytes);
        }
    }
    return copy;
}

struct fbk_fake *
fbk_fake_copy(struct fbk_fake *disk)
{
    lock(disk);
    struct fbk_fake *copy = fake_copy(disk);
    unlock(disk);
    return copy;
}

/* ------------ faults */

int32_t
fbk_fake_fault(struct fbk_fake *disk, uint32_t kind, uint64_t nth, uint64_t times, uint32_t action,
               int32_t argument)
{
    if (kind >= FAKE_KINDS || nth == 0 || times == 0 || action < FBK_FAKE_FAIL ||
        action > FBK_FAKE_LIE || (action == FBK_FAKE_FAIL && (argument <= 0 || argument > 4095)))
        return -EINVAL;
    lock(disk);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < disk->fault_count; i++)
        if (disk->faults[i].times > 0)
            disk->faults[kept++] = disk->faults[i];
    disk->fault_count = kept;
    int32_t status = kept < FAKE_FAULTS_MAX ? 0 : -ENOBUFS;
    if (status == 0)
        disk->faults[disk->fault_count++] = (struct fake_fault){
            .kind = kind, .action = action, .wait = nth, .times = times, .argument = argument};
    unlock(disk);
    return status;
}

void
fbk_fake_clear_faults(struct fbk_fake *disk)
{
    lock(disk);
    disk->fault_count = 0;
    unlock(disk);
}

/* ------------ power */

void
fbk_fake_cut(struct fbk_fake *disk)
{
    lock(disk);
    fake_cut(disk);
    unlock(disk);
}

_Bool
fbk_fake_is_off(struct fbk_fake *disk)
{
    lock(disk);
    bool off = disk->off;
    unlock(disk);
    return off;
}

void
fbk_fake_restart(struct fbk_fake *disk, uint32_t mode, uint64_t seed)
{
    lock(disk);
    uint64_t random = seed;
    /* Writes under way: each sector of each may have arrived, in any order. */
    while (disk->write_count > 0) {
        struct fake_write *write = &disk->writes[0];
        if (mode == FBK_FAKE_KEEP_ALL)
            fake_file_put(write->file, write->copy, write->size_bytes, write->offset_bytes);
        else if (mode == FBK_FAKE_RANDOM)
            fake_file_put_some(write->file, write, &random);
        fake_write_forget(disk, 0);
    }
    for (struct fake_file *file = disk->files; file != NULL; file = file->next)
        fake_file_resolve(file, mode, &random);
    fake_names_resolve(disk, mode, &random);
    memset(disk->handles, 0, sizeof disk->handles);
    disk->fault_count = 0;
    disk->off = false;
    fake_wake_all(disk);
    unlock(disk);
}

void
fbk_fake_set_capacity(struct fbk_fake *disk, uint64_t capacity_bytes)
{
    lock(disk);
    disk->capacity_bytes = capacity_bytes;
    unlock(disk);
}

uint64_t
fbk_fake_used_bytes(struct fbk_fake *disk)
{
    lock(disk);
    uint64_t used = fake_used_bytes(disk);
    unlock(disk);
    return used;
}

/* ------------ completions */

void
fake_write_forget(struct fbk_fake *disk, uint32_t index)
{
    struct fake_write *write = &disk->writes[index];
    fbk_memory_give_back(write->copy, write->size_bytes);
    if (write->owner != NULL)
        write->owner->under_way--;
    disk->write_count--;
    memmove(write, write + 1, (disk->write_count - index) * sizeof *write);
}

int32_t
fbk_fake_set_delivery(struct fbk_fake *disk, uint32_t delivery)
{
    if (delivery > FBK_FAKE_HELD)
        return -EINVAL;
    lock(disk);
    disk->delivery = delivery;
    fake_wake_all(disk);
    unlock(disk);
    return 0;
}

int32_t
fbk_fake_release(struct fbk_fake *disk, uint32_t nth)
{
    int32_t status = -ENOENT;
    lock(disk);
    for (uint32_t i = 0; i < disk->write_count && status != 0; i++) {
        if (disk->writes[i].released || nth-- != 0)
            continue;
        disk->writes[i].released = true;
        status = 0;
    }
    fake_wake_all(disk);
    unlock(disk);
    return status;
}

uint32_t
fbk_fake_in_flight(struct fbk_fake *disk)
{
    lock(disk);
    uint32_t count = disk->write_count;
    unlock(disk);
    return count;
}

/* ------------ damage and log */

static struct fake_file *
file_at(struct fbk_fake *disk, const char *path)
{
    char clean[FAKE_PATH_MAX];
    const struct fake_name *name =
        fake_path(clean, path) < 0 ? NULL : fake_name_find(&disk->live_names, clean);
    return name == NULL ? NULL : name->file;
}

int32_t
fbk_fake_corrupt(struct fbk_fake *disk, const char *path, uint64_t offset_bytes,
                 uint64_t size_bytes, uint8_t mask)
{
    lock(disk);
    struct fake_file *file = file_at(disk, path);
    int32_t status = file == NULL ? -ENOENT : 0;
    if (status == 0 &&
        (offset_bytes > file->live_size_bytes || size_bytes > file->live_size_bytes - offset_bytes))
        status = -EINVAL;
    if (status == 0)
        fake_file_own(file);
    for (uint64_t i = offset_bytes; status == 0 && i < offset_bytes + size_bytes; i++) {
        file->live[i] ^= mask;
        if (i < file->durable_size_bytes)
            file->durable[i] ^= mask;
    }
    unlock(disk);
    return status;
}

int32_t
fbk_fake_bad_range(struct fbk_fake *disk, const char *path, uint64_t from_bytes, uint64_t to_bytes)
{
    lock(disk);
    struct fake_file *file = file_at(disk, path);
    if (file != NULL) {
        file->bad_from_bytes = from_bytes;
        file->bad_to_bytes = to_bytes;
    }
    unlock(disk);
    return file == NULL ? -ENOENT : 0;
}

uint64_t
fbk_fake_operations(struct fbk_fake *disk)
{
    lock(disk);
    uint64_t count = disk->operations;
    unlock(disk);
    return count;
}

uint64_t
fbk_fake_operations_of(struct fbk_fake *disk, uint32_t kind)
{
    lock(disk);
    uint64_t count = kind < FAKE_KINDS ? disk->operations_of[kind] : 0;
    unlock(disk);
    return count;
}

int64_t
fbk_fake_log(struct fbk_fake *disk, uint64_t first, struct fbk_fake_event *events,
             uint64_t events_max)
{
    lock(disk);
    uint64_t count = first < disk->log.count ? disk->log.count - first : 0;
    if (count > events_max)
        count = events_max;
    if (count > 0)
        memcpy(events, (struct fbk_fake_event *)disk->log.items + first, count * sizeof *events);
    unlock(disk);
    return (int64_t)count;
}

/* Contents of the fake disk's files: what reads see, what is durable, and which sectors are on
 * their way. */
#include "parts.h"

#include "base/segment.h"

#define FILE_BYTES_AT_START (64u * 1024)

uint64_t
fake_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void *
fake_vector_add(struct fake_vector *vector, uint64_t item_bytes)
{
    uint64_t wanted = (vector->count + 1) * item_bytes;
    if (wanted > vector->capacity_bytes) {
        uint64_t larger = fbk_round_up(wanted * 2, FBK_PAGE_BYTES);
        void *items = vector->items == NULL
                          ? fbk_memory_take(larger)
                          : fbk_memory_grow(vector->items, vector->capacity_bytes, larger);
        if (items == NULL)
            return NULL;
        vector->items = items;
        vector->capacity_bytes = larger;
    }
    return (uint8_t *)vector->items + vector->count++ * item_bytes;
}

void
fake_vector_free(struct fake_vector *vector)
{
    fbk_memory_give_back(vector->items, vector->capacity_bytes);
    memset(vector, 0, sizeof *vector);
}

void
fake_vector_copy(struct fake_vector *to, const struct fake_vector *from, uint64_t item_bytes)
{
    to->count = 0;
    for (uint64_t i = 0; i < from->count; i++) {
        void *item = fake_vector_add(to, item_bytes);
        FBK_ASSERT(item != NULL);
        memcpy(item, (const uint8_t *)from->items + i * item_bytes, item_bytes);
    }
}

struct fake_file *
fake_file_make(struct fbk_fake *disk)
{
    struct fake_file *file = fbk_memory_take(sizeof *file);
    if (file == NULL)
        return NULL;
    file->number = ++disk->files_made;
    file->locked_by = -1;
    file->next = disk->files;
    disk->files = file;
    return file;
}

/* Gives up a share; true when it was the last one, and the memory is this file's to give back. */
static bool
leave_share(struct fake_file *file)
{
    if (file->sharers == NULL)
        return true;
    bool last = __atomic_sub_fetch(file->sharers, 1, __ATOMIC_ACQ_REL) == 0;
    if (last)
        fbk_memory_give_back(file->sharers, sizeof *file->sharers);
    file->sharers = NULL;
    return last;
}

void
fake_file_share(struct fake_file *to, struct fake_file *from)
{
    if (from->capacity_bytes != 0) {
        if (from->sharers == NULL) {
            from->sharers = fbk_memory_take(sizeof *from->sharers);
            FBK_ASSERT(from->sharers != NULL);
            *from->sharers = 1;
        }
        __atomic_add_fetch(from->sharers, 1, __ATOMIC_ACQ_REL);
        to->sharers = from->sharers;
        to->live = from->live;
        to->durable = from->durable;
        to->dirty = from->dirty;
        to->capacity_bytes = from->capacity_bytes;
    }
    to->live_size_bytes = from->live_size_bytes;
    to->durable_size_bytes = from->durable_size_bytes;
}

void
fake_file_own(struct fake_file *file)
{
    struct fake_file mine = *file;
    if (file->sharers == NULL)
        return;
    if (__atomic_load_n(file->sharers, __ATOMIC_ACQUIRE) == 1) { /* the others are gone */
        leave_share(file);
        return;
    }
    mine.live = fbk_memory_take(file->capacity_bytes);
    mine.durable = fbk_memory_take(file->capacity_bytes);
    mine.dirty = fbk_memory_take(file->capacity_bytes / FAKE_SECTOR_BYTES);
    FBK_ASSERT(mine.live != NULL && mine.durable != NULL && mine.dirty != NULL);
    memcpy(mine.live, file->live, file->live_size_bytes);
    memcpy(mine.durable, file->durable, file->durable_size_bytes);
    memcpy(mine.dirty, file->dirty, file->capacity_bytes / FAKE_SECTOR_BYTES);
    mine.sharers = NULL;
    /* Copied before the share is given up: nobody frees or changes what has another sharer. */
    if (leave_share(file)) {
        fbk_memory_give_back(file->live, file->capacity_bytes);
        fbk_memory_give_back(file->durable, file->capacity_bytes);
        fbk_memory_give_back(file->dirty, file->capacity_bytes / FAKE_SECTOR_BYTES);
    }
    *file = mine;
}

void
fake_file_free(struct fake_file *file)
{
    if (!leave_share(file)) {
        fbk_memory_give_back(file, sizeof *file);
        return;
    }
    fbk_memory_give_back(file->live, file->capacity_bytes);
    fbk_memory_give_back(file->durable, file->capacity_bytes);
    fbk_memory_give_back(file->dirty, file->capacity_bytes / FAKE_SECTOR_BYTES);
    fbk_memory_give_back(file, sizeof *file);
}

uint64_t
fake_used_bytes(const struct fbk_fake *disk)
{
    uint64_t used = 0;
    for (uint64_t i = 0; i < disk->live_names.count; i++) {
        const struct fake_name *name = (const struct fake_name *)disk->live_names.items + i;
        if (name->file != NULL)
            used += fbk_round_up(name->file->live_size_bytes, FBK_PAGE_BYTES);
    }
    return used;
}

static bool
grow_one(uint8_t **memory, uint64_t old_bytes, uint64_t new_bytes)
{
    uint8_t *grown = *memory == NULL ? fbk_memory_take(new_bytes)
                                     : fbk_memory_grow(*memory, old_bytes, new_bytes);
    if (grown != NULL)
        *memory = grown;
    return grown != NULL;
}

int32_t
fake_file_reserve(struct fbk_fake *disk, struct fake_file *file, uint64_t size_bytes)
{
    if (size_bytes > file->live_size_bytes && disk->capacity_bytes != 0) {
        uint64_t more = fbk_round_up(size_bytes, FBK_PAGE_BYTES) -
                        fbk_round_up(file->live_size_bytes, FBK_PAGE_BYTES);
        if (fake_used_bytes(disk) + more > disk->capacity_bytes)
            return -ENOSPC;
    }
    if (size_bytes <= file->capacity_bytes)
        return 0;
    uint64_t larger = file->capacity_bytes == 0 ? FILE_BYTES_AT_START : file->capacity_bytes;
    while (larger < size_bytes)
        larger *= 2;
    fake_file_own(file);
    uint64_t old = file->capacity_bytes;
    if (!grow_one(&file->live, old, larger) || !grow_one(&file->durable, old, larger) ||
        !grow_one(&file->dirty, old / FAKE_SECTOR_BYTES, larger / FAKE_SECTOR_BYTES))
        return -ENOMEM;
    file->capacity_bytes = larger;
    return 0;
}

void
fake_file_put(struct fake_file *file, const uint8_t *data, uint64_t size_bytes,
              uint64_t offset_bytes)
{
    uint64_t end = offset_bytes + size_bytes;
    FBK_ASSERT(end <= file->capacity_bytes);
    fake_file_own(file);
    if (data != NULL)
        memcpy(file->live + offset_bytes, data, size_bytes);
    else if (offset_bytes < file->live_size_bytes) /* behind the end there are zeros anyway */
        memset(file->live + offset_bytes, 0,
               (end < file->live_size_bytes ? end : file->live_size_bytes) - offset_bytes);
    for (uint64_t s = offset_bytes / FAKE_SECTOR_BYTES; s * FAKE_SECTOR_BYTES < end; s++)
        file->dirty[s] = 1;
    if (end > file->live_size_bytes)
        file->live_size_bytes = end;
    if (offset_bytes <= file->unwritten_from_bytes && end > file->unwritten_from_bytes)
        file->unwritten_from_bytes = end;
    if (file->unwritten_from_bytes >= file->unwritten_to_bytes)
        file->unwritten_from_bytes = file->unwritten_to_bytes = 0;
}

void
fake_file_truncate(struct fake_file *file, uint64_t size_bytes)
{
    uint64_t from = fbk_round_up(size_bytes, FAKE_SECTOR_BYTES) / FAKE_SECTOR_BYTES;
    if (size_bytes == file->live_size_bytes)
        return;
    fake_file_own(file);
    for (uint64_t s = from; s * FAKE_SECTOR_BYTES < file->live_size_bytes; s++)
        file->dirty[s] = 0;
    memset(file->live + size_bytes, 0, file->live_size_bytes - size_bytes);
    file->live_size_bytes = size_bytes;
    if (file->unwritten_to_bytes > size_bytes)
        file->unwritten_to_bytes = size_bytes;
    if (file->unwritten_from_bytes >= file->unwritten_to_bytes)
        file->unwritten_from_bytes = file->unwritten_to_bytes = 0;
}

/* The part of a sector that lies in the file as reads see it. */
static void
sector_to_durable(struct fake_file *file, uint64_t sector)
{
    uint64_t from = sector * FAKE_SECTOR_BYTES, to = from + FAKE_SECTOR_BYTES;
    if (to > file->live_size_bytes)
        to = file->live_size_bytes;
    file->dirty[sector] = 0;
    if (from >= to)
        return;
    memcpy(file->durable + from, file->live + from, to - from);
    if (to > file->durable_size_bytes)
        file->durable_size_bytes = to;
}

/* Only a cut is on its way when what is durable is longer. */
static void
cut_durable(struct fake_file *file, uint64_t size_bytes)
{
    if (size_bytes >= file->durable_size_bytes)
        return;
    memset(file->durable + size_bytes, 0, file->durable_size_bytes - size_bytes);
    file->durable_size_bytes = size_bytes;
}

void
fake_file_make_durable(struct fake_file *file, uint64_t from_bytes, uint64_t to_bytes)
{
    if (to_bytes > file->live_size_bytes)
        to_bytes = file->live_size_bytes;
    fake_file_own(file);
    for (uint64_t s = from_bytes / FAKE_SECTOR_BYTES; s * FAKE_SECTOR_BYTES < to_bytes; s++)
        if (file->dirty[s])
            sector_to_durable(file, s);
    if (to_bytes == file->live_size_bytes)
        cut_durable(file, to_bytes);
}

void
fake_file_lose_dirty(struct fake_file *file, uint64_t *random)
{
    fake_file_own(file);
    for (uint64_t s = 0; s * FAKE_SECTOR_BYTES < file->live_size_bytes; s++) {
        if (!file->dirty[s])
            continue;
        if (fake_random(random) & 1u)
            sector_to_durable(file, s);
        file->dirty[s] = 0;
    }
}

void
fake_file_put_some(struct fake_file *file, const struct fake_write *write, uint64_t *random)
{
    uint64_t at = write->offset_bytes, end = write->offset_bytes + write->size_bytes;
    while (at < end) {
        uint64_t next = (at / FAKE_SECTOR_BYTES + 1) * FAKE_SECTOR_BYTES;
        if (next > end)
            next = end;
        if (fake_random(random) & 1u)
            fake_file_put(file, write->copy + (at - write->offset_bytes), next - at, at);
        at = next;
    }
}

/* Whether reads see just what is durable, with nothing on its way. */
static bool
is_settled(const struct fake_file *file)
{
    if (file->live_size_bytes != file->durable_size_bytes)
        return false;
    uint64_t sectors = fbk_round_up(file->live_size_bytes, FAKE_SECTOR_BYTES) / FAKE_SECTOR_BYTES;
    return file->live_size_bytes == 0 ||
           (memchr(file->dirty, 1, sectors) == NULL &&
            memcmp(file->live, file->durable, file->live_size_bytes) == 0);
}

/* After this, reads see what is durable. */
void
fake_file_resolve(struct fake_file *file, uint32_t mode, uint64_t *random)
{
    uint64_t live_size = file->live_size_bytes;
    file->locked_by = -1;
    if (is_settled(file))
        return;
    fake_file_own(file);
    bool keep_size =
        mode == FBK_FAKE_KEEP_ALL || (mode == FBK_FAKE_RANDOM && (fake_random(random) & 1u));
    for (uint64_t s = 0; s * FAKE_SECTOR_BYTES < live_size; s++) {
        if (!file->dirty[s])
            continue;
        if (mode == FBK_FAKE_KEEP_ALL || (mode == FBK_FAKE_RANDOM && (fake_random(random) & 1u)))
            sector_to_durable(file, s);
        file->dirty[s] = 0;
    }
    /* Longer than its data: the missing part reads as zeros. */
    if (keep_size && live_size > file->durable_size_bytes)
        file->durable_size_bytes = live_size;
    if (keep_size)
        cut_durable(file, live_size);
    if (file->durable_size_bytes > 0) /* an empty file has no memory */
        memcpy(file->live, file->durable, file->durable_size_bytes);
    if (live_size > file->durable_size_bytes)
        memset(file->live + file->durable_size_bytes, 0, live_size - file->durable_size_bytes);
    file->live_size_bytes = file->durable_size_bytes;
}

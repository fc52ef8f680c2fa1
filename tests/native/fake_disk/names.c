/* Names of the fake disk: as they are now, as they are durable, and the changes between. */
#include "parts.h"

int32_t
fake_path(char *out, const char *path)
{
    size_t used = 0;
    while (*path != '\0') {
        size_t size = strcspn(path, "/");
        if (size != 0 && !(size == 1 && path[0] == '.')) {
            if (used + size + 2 > FAKE_PATH_MAX)
                return -ENAMETOOLONG;
            out[used++] = '/';
            memcpy(out + used, path, size);
            used += size;
        }
        path += size + (path[size] == '/' ? 1 : 0);
    }
    if (used == 0)
        out[used++] = '/';
    out[used] = '\0';
    return 0;
}

struct fake_name *
fake_name_find(const struct fake_vector *names, const char *path)
{
    struct fake_name *items = names->items;
    for (uint64_t i = 0; i < names->count; i++)
        if (strcmp(items[i].path, path) == 0)
            return &items[i];
    return NULL;
}

static void
parent_of(char *out, const char *path)
{
    const char *slash = strrchr(path, '/');
    size_t size = slash == path ? 1 : (size_t)(slash - path);
    memcpy(out, path, size);
    out[size] = '\0';
}

bool
fake_is_in(const char *directory, const char *path)
{
    char parent[FAKE_PATH_MAX];
    parent_of(parent, path);
    return strcmp(parent, directory) == 0 && strcmp(path, "/") != 0;
}

int32_t
fake_parent_status(const struct fbk_fake *disk, const char *path)
{
    char parent[FAKE_PATH_MAX];
    parent_of(parent, path);
    const struct fake_name *found = fake_name_find(&disk->live_names, parent);
    return found == NULL ? -ENOENT : found->file != NULL ? -ENOTDIR : 0;
}

static void
remove_name(struct fake_vector *names, const char *path)
{
    struct fake_name *found = fake_name_find(names, path);
    if (found != NULL)
        *found = ((struct fake_name *)names->items)[--names->count];
}

static int32_t
set_name(struct fake_vector *names, const char *path, struct fake_file *file)
{
    struct fake_name *name = fake_name_find(names, path);
    if (name == NULL)
        name = fake_vector_add(names, sizeof *name);
    if (name == NULL)
        return -ENOMEM;
    memset(name, 0, sizeof *name);
    memcpy(name->path, path, strlen(path) + 1);
    name->file = file;
    return 0;
}

static int32_t
apply(struct fake_vector *names, const struct fake_change *change)
{
    switch (change->kind) {
    case FBK_FAKE_UNLINK: remove_name(names, change->path); return 0;
    case FBK_FAKE_RENAME:
        remove_name(names, change->path);
        return set_name(names, change->to, change->file);
    default: return set_name(names, change->path, change->file);
    }
}

int32_t
fake_names_change(struct fbk_fake *disk, uint32_t kind, const char *path, const char *to,
                  struct fake_file *file)
{
    struct fake_change *change = fake_vector_add(&disk->changes, sizeof *change);
    if (change == NULL)
        return -ENOMEM;
    memset(change, 0, sizeof *change);
    change->kind = kind;
    change->file = file;
    memcpy(change->path, path, strlen(path) + 1);
    if (to != NULL)
        memcpy(change->to, to, strlen(to) + 1);
    return apply(&disk->live_names, change);
}

static bool
share_a_path(const struct fake_change *a, const struct fake_change *b)
{
    return strcmp(a->path, b->path) == 0 || (a->to[0] != '\0' && strcmp(a->to, b->path) == 0) ||
           (b->to[0] != '\0' && (strcmp(a->path, b->to) == 0 || strcmp(a->to, b->to) == 0));
}

/* Makes the chosen changes durable, each with the earlier ones about the same names: nobody sees a
 * name's second change without its first. The others stay. */
static void
commit_chosen(struct fbk_fake *disk)
{
    struct fake_change *changes = disk->changes.items;
    uint64_t count = disk->changes.count, kept = 0;
    for (uint64_t i = count; i-- > 0;)
        for (uint64_t j = 0; changes[i].chosen && j < i; j++)
            if (share_a_path(&changes[i], &changes[j]))
                changes[j].chosen = true;
    for (uint64_t i = 0; i < count; i++) {
        if (changes[i].chosen)
            FBK_ASSERT(apply(&disk->durable_names, &changes[i]) == 0);
        else
            changes[kept++] = changes[i];
    }
    disk->changes.count = kept;
}

void
fake_names_sync(struct fbk_fake *disk, const char *directory)
{
    struct fake_change *changes = disk->changes.items;
    for (uint64_t i = 0; i < disk->changes.count; i++)
        changes[i].chosen = fake_is_in(directory, changes[i].path) ||
                            (changes[i].to[0] != '\0' && fake_is_in(directory, changes[i].to));
    commit_chosen(disk);
}

/* A name whose directory was lost is lost with it. */
static void
drop_orphans(struct fake_vector *names)
{
    bool again = true;
    while (again) {
        again = false;
        for (uint64_t i = 0; i < names->count && !again; i++) {
            struct fake_name *name = (struct fake_name *)names->items + i;
            char parent[FAKE_PATH_MAX];
            parent_of(parent, name->path);
            if (fake_name_find(names, parent) == NULL) {
                remove_name(names, name->path);
                again = true;
            }
        }
    }
}

void
fake_names_resolve(struct fbk_fake *disk, uint32_t mode, uint64_t *random)
{
    struct fake_change *changes = disk->changes.items;
    for (uint64_t i = 0; i < disk->changes.count; i++)
        changes[i].chosen =
            mode == FBK_FAKE_KEEP_ALL || (mode == FBK_FAKE_RANDOM && (fake_random(random) & 1u));
    commit_chosen(disk);
    disk->changes.count = 0;
    drop_orphans(&disk->durable_names);
    fake_vector_copy(&disk->live_names, &disk->durable_names, sizeof(struct fake_name));
}

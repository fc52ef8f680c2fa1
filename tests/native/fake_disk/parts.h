/* Inside the fake disk; see fake_disk.h. All functions here want the disk's mutex held. */
#pragma once

#include "fake_disk.h"

#include <pthread.h>

#define FAKE_SECTOR_BYTES 512u
#define FAKE_BLOCK_BYTES 4096u
#define FAKE_PATH_MAX 512u
#define FAKE_HANDLES_MAX 1024u
#define FAKE_FAULTS_MAX 64u
#define FAKE_IN_FLIGHT_MAX 256u
#define FAKE_KINDS 13u

struct fake_vector {
    void *items;
    uint64_t count;
    uint64_t capacity_bytes;
};

struct fake_file {
    struct fake_file *next; /* of all files of the disk */
    uint64_t number;
    uint8_t *live;    /* what reads see */
    uint8_t *durable; /* what survives */
    uint8_t *dirty;   /* a byte a sector: 1 = live is still on its way */
    uint64_t capacity_bytes;
    /* of the three above, by copies of the disk; NULL: nobody shares */
    uint32_t *sharers;
    uint64_t live_size_bytes;
    uint64_t durable_size_bytes;
    /* allocated and not written yet: one range, the end of which writes reach last */
    uint64_t unwritten_from_bytes;
    uint64_t unwritten_to_bytes;
    uint64_t bad_from_bytes;
    uint64_t bad_to_bytes;
    int32_t locked_by; /* handle, -1 = nobody */
};

struct fake_name {
    char path[FAKE_PATH_MAX];
    struct fake_file *file; /* NULL: a directory */
};

/* A change of names that is not durable yet. */
struct fake_change {
    uint32_t kind; /* FBK_FAKE_CREATE, MAKE_DIRECTORY, UNLINK, RENAME */
    bool chosen;
    char path[FAKE_PATH_MAX];
    char to[FAKE_PATH_MAX]; /* RENAME */
    struct fake_file *file;
};

struct fake_fault {
    uint32_t kind;
    uint32_t action;
    uint64_t wait; /* operations until it is met */
    uint64_t times;
    int32_t argument;
};

struct fake_io {
    struct fbk_io io;
    struct fbk_fake *disk;
    struct fake_io *next;
    int wake_fd; /* rung when a completion may have become due */
    uint32_t under_way;
};

struct fake_handle {
    struct fake_file *file; /* NULL: free */
    struct fake_io *owner;
    uint32_t flags;
};

struct fake_write {
    struct fake_io *owner;
    struct fake_file *file;
    const uint8_t *data; /* the caller's */
    uint8_t *copy;       /* as it was when the write began */
    uint64_t offset_bytes;
    uint64_t ticket;
    uint32_t size_bytes;
    uint32_t flags;
    uint32_t action;
    int32_t argument;
    uint64_t event; /* index in the log */
    bool released;
};

/* A copy of the disk, and what the watched word said then. */
struct fake_snapshot {
    uint64_t moment;
    uint64_t watched;
    struct fbk_fake *disk;
};

struct fake_snapshots {
    uint64_t moments; /* so far */
    uint64_t next;    /* the moment of the next copy */
    uint64_t stride;  /* moments from one to the next; 0 = none is wanted */
    const uint64_t *watched;
    struct fake_vector taken; /* of fake_snapshot */
    uint64_t given;
};

struct fbk_fake {
    pthread_mutex_t mutex;
    pthread_cond_t unlocked; /* a file lock was given back */
    uint64_t random;
    uint64_t capacity_bytes;
    uint64_t operations;
    uint64_t operations_of[FAKE_KINDS];
    uint64_t files_made;
    uint32_t delivery;
    bool off;
    struct fake_file *files;
    struct fake_io *ios;
    struct fake_vector live_names; /* of fake_name */
    struct fake_vector durable_names;
    struct fake_vector changes; /* of fake_change */
    struct fake_vector log;     /* of fbk_fake_event */
    uint32_t fault_count;
    struct fake_fault faults[FAKE_FAULTS_MAX];
    struct fake_handle handles[FAKE_HANDLES_MAX];
    struct fake_snapshots snapshots;
    uint32_t write_count;
    struct fake_write writes[FAKE_IN_FLIGHT_MAX]; /* under way, oldest first */
};

/* ---- files.c */
uint64_t fake_random(uint64_t *state);
/* Room for one more item; NULL when memory ran out. */
void *fake_vector_add(struct fake_vector *vector, uint64_t item_bytes);
void fake_vector_free(struct fake_vector *vector);
void fake_vector_copy(struct fake_vector *to, const struct fake_vector *from, uint64_t item_bytes);
struct fake_file *fake_file_make(struct fbk_fake *disk);
void fake_file_free(struct fake_file *file);
uint64_t fake_used_bytes(const struct fbk_fake *disk);
/* Lets `to`, an empty file, have the content of `from`; copied when either is written to. */
void fake_file_share(struct fake_file *to, struct fake_file *from);
/* Before the content is changed: makes it this file's alone. */
void fake_file_own(struct fake_file *file);
/* 0, -ENOSPC or -ENOMEM: room for the file to be that long. */
int32_t fake_file_reserve(struct fbk_fake *disk, struct fake_file *file, uint64_t size_bytes);
/* Puts bytes into what reads see; not durable. data NULL: zeros. */
void fake_file_put(struct fake_file *file, const uint8_t *data, uint64_t size_bytes,
                   uint64_t offset_bytes);
/* Cuts what reads see; what is durable stays as long as it was until a sync. */
void fake_file_truncate(struct fake_file *file, uint64_t size_bytes);
void fake_file_make_durable(struct fake_file *file, uint64_t from_bytes, uint64_t to_bytes);
/* A failed sync: what was on its way will never arrive, and nobody will try again. */
void fake_file_lose_dirty(struct fake_file *file, uint64_t *random);
/* Sectors of a write, each with an even chance. */
void fake_file_put_some(struct fake_file *file, const struct fake_write *write, uint64_t *random);
void fake_file_resolve(struct fake_file *file, uint32_t mode, uint64_t *random);

/* ---- names.c */
/* "x", "./x", "/x/" all become "/x". -ENAMETOOLONG. */
int32_t fake_path(char *out, const char *path);
struct fake_name *fake_name_find(const struct fake_vector *names, const char *path);
/* 0, -ENOENT, -ENOTDIR: of the directory that path lies in. */
int32_t fake_parent_status(const struct fbk_fake *disk, const char *path);
bool fake_is_in(const char *directory, const char *path);
/* Changes the live names and notes the change. 0 or -ENOMEM. */
int32_t fake_names_change(struct fbk_fake *disk, uint32_t kind, const char *path, const char *to,
                          struct fake_file *file);
void fake_names_sync(struct fbk_fake *disk, const char *directory);
void fake_names_resolve(struct fbk_fake *disk, uint32_t mode, uint64_t *random);

/* ---- writes.c: calls of the backend */
int32_t fake_write_start(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                         uint64_t offset_bytes, uint32_t flags, uint64_t ticket);
int32_t fake_write_wait(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                        uint64_t offset_bytes, uint32_t flags);
int32_t fake_wait(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms,
                  struct fbk_io_completion *completions, int32_t completions_max, int32_t *rung);

/* ---- judge.c */
struct fake_verdict {
    uint32_t action; /* 0 = do it */
    int32_t argument;
    uint64_t event; /* index in the log */
};
/* Counts, logs and judges an operation. -ESHUTDOWN when the power is off (or goes now). */
int32_t fake_begin(struct fbk_fake *disk, uint32_t kind, const struct fake_file *file,
                   uint64_t offset_bytes, uint32_t size_bytes, uint32_t flags,
                   struct fake_verdict *verdict);
/* Notes the result in the log; returns it. */
int32_t fake_end(struct fbk_fake *disk, const struct fake_verdict *verdict, int32_t result);
void fake_wake_all(struct fbk_fake *disk);
void fake_cut(struct fbk_fake *disk);

/* ---- snapshots.c */
/* Counts a moment at which the power may go, and copies the disk if one of this moment is
 * wanted. */
void fake_moment(struct fbk_fake *disk);
void fake_snapshots_free(struct fbk_fake *disk);

/* ---- control.c */
struct fbk_fake *fake_copy(struct fbk_fake *disk);
void fake_write_forget(struct fbk_fake *disk, uint32_t index);

static inline struct fbk_fake *
fake_enter(struct fbk_io *io)
{
    struct fbk_fake *disk = ((struct fake_io *)io)->disk;
    FBK_ASSERT(pthread_mutex_lock(&disk->mutex) == 0);
    return disk;
}

static inline int32_t
fake_leave(struct fbk_fake *disk, int32_t result)
{
    FBK_ASSERT(pthread_mutex_unlock(&disk->mutex) == 0);
    return result;
}

static inline struct fake_handle *
fake_handle_of(struct fbk_fake *disk, int32_t file)
{
    if (file < 0 || file >= (int32_t)FAKE_HANDLES_MAX || disk->handles[file].file == NULL)
        return NULL;
    return &disk->handles[file];
}

static inline bool
fake_is_misaligned(const struct fake_handle *handle, const void *data, uint64_t size_bytes,
                   uint64_t offset_bytes)
{
    return (handle->flags & FBK_IO_DIRECT) &&
           (((uintptr_t)data | size_bytes | offset_bytes) & (FAKE_BLOCK_BYTES - 1)) != 0;
}

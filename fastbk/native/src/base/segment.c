/* Memory: sealed segments, rings mapped twice, plain anonymous memory; and the two calls everybody
 * needs, the clock and the bell.
 *
 * A segment is sealed against shrinking, so that no process can make another's mapping fault.  Once
 * its owner has mapped it, it is sealed against writing, too: a read-only descriptor can be
 * reopened through /proc/self/fd.  Every number that its owner could have overwritten since is read
 * once and checked against the file's real size. */
#include "base/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)
#define OWNERS_SEALS (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define RING_KINDS_MAX 4u
#define RING_BYTES_MAX (1ull << 40)

uint64_t
fbk_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void
fbk_bell_ring(int event_fd)
{
    uint64_t one = 1;
    /* EAGAIN: the counter is full, so the sleeper is being woken anyway. */
    while (write(event_fd, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

/* ------------ segments */

static uint64_t
control_size(uint32_t role)
{
    switch (role) {
    case FBK_ROLE_SUPERVISOR:
    case FBK_ROLE_GC: return sizeof(struct fbk_stats_segment);
    case FBK_ROLE_WORKER: return sizeof(struct fbk_worker_segment);
    case FBK_ROLE_JOURNAL: return sizeof(struct fbk_journal_segment);
    case FBK_ROLE_INDEX: return sizeof(struct fbk_index_segment);
    default: return 0;
    }
}

static bool
ring_size_is_possible(uint64_t size_bytes)
{
    return size_bytes >= FBK_PAGE_BYTES && size_bytes <= RING_BYTES_MAX &&
           (size_bytes & (size_bytes - 1)) == 0;
}

static int32_t
lay_out(struct fbk_segment_header *header, const uint64_t *ring_sizes, uint32_t ring_count,
        uint32_t ring_repeat)
{
    if (ring_count > RING_KINDS_MAX || ring_repeat == 0 || ring_repeat > FBK_WORKERS_MAX)
        return -EINVAL;
    if (ring_repeat != 1 && ring_count != 1)
        return -EINVAL;
    uint64_t end = fbk_round_up(control_size(header->role), FBK_PAGE_BYTES);
    for (uint32_t i = 0; i < ring_count; i++) {
        if (!ring_size_is_possible(ring_sizes[i]))
            return -EINVAL;
        header->ring_size_bytes[i] = ring_sizes[i];
        header->ring_offset_bytes[i] = end;
        end += ring_sizes[i] * ring_repeat;
    }
    header->size_bytes = end;
    return 0;
}

static int32_t
memory_file(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* before Linux 6.3 */
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd < 0 ? -errno : fd;
}

int32_t
fbk_segment_create(uint32_t role, uint32_t role_index, uint32_t pair, uint32_t epoch,
                   const uint64_t *ring_sizes, uint32_t ring_count, uint32_t ring_repeat)
{
    if (control_size(role) == 0 || pair >= FBK_PAIRS_MAX)
        return -EINVAL;
    struct fbk_segment_header header = {
        .magic = FBK_SEGMENT_MAGIC,
        .version = FBK_LAYOUT_VERSION,
        .role = role,
        .role_index = role_index,
        .epoch = epoch,
        .pair = pair,
    };
    int32_t status = lay_out(&header, ring_sizes, ring_count, ring_repeat);
    if (status < 0)
        return status;

    char name[64];
    snprintf(name, sizeof name, "fastbk-segment-%u-%u-%u-%u", role, role_index, pair, epoch);
    int32_t fd = memory_file(name);
    if (fd < 0)
        return fd;
    if (ftruncate(fd, (off_t)header.size_bytes) < 0 ||
        pwrite(fd, &header, sizeof header, 0) != (ssize_t)sizeof header ||
        fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
        status = errno == 0 ? -EIO : -errno;
        close(fd);
        return status;
    }
    return fd;
}

int32_t
fbk_segment_seal(int32_t fd)
{
    if (fcntl(fd, F_ADD_SEALS, OWNERS_SEALS) == 0)
        return 1;
    if (errno == EPERM)
        return fbk_segment_is_sealed(fd) == 1 ? 1 : -EPERM;
    if (errno != EINVAL)
        return -errno;
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) < 0 ? -errno : 0;
}

int32_t
fbk_segment_is_sealed(int32_t fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals < 0 ? -errno : (seals & OWNERS_SEALS) == OWNERS_SEALS;
}

/* The real size of a file that nobody can shrink any more, or -errno. */
static int64_t
sealed_size(int32_t fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return errno == EINVAL ? FBK_E_LAYOUT : -errno;
    if ((seals & F_SEAL_SHRINK) == 0)
        return FBK_E_LAYOUT;
    struct stat about;
    if (fstat(fd, &about) < 0)
        return -errno;
    return about.st_size;
}

void *
fbk_segment_map(int32_t fd, uint32_t role, bool writable, int32_t *error)
{
    uint64_t size = control_size(role);
    int64_t file_size = size == 0 ? -EINVAL : sealed_size(fd);
    if (file_size < 0) {
        *error = (int32_t)file_size;
        return NULL;
    }
    struct fbk_segment_header header;
    ssize_t got = pread(fd, &header, sizeof header, 0);
    if (got < 0) {
        *error = -errno;
        return NULL;
    }
    if (got != (ssize_t)sizeof header || (uint64_t)file_size < fbk_round_up(size, FBK_PAGE_BYTES) ||
        header.magic != FBK_SEGMENT_MAGIC || header.version != FBK_LAYOUT_VERSION ||
        header.role != role || header.size_bytes != (uint64_t)file_size) {
        *error = FBK_E_LAYOUT;
        return NULL;
    }
    void *segment = mmap(NULL, fbk_round_up(size, FBK_PAGE_BYTES),
                         writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    if (segment == MAP_FAILED) {
        *error = -errno;
        return NULL;
    }
    *error = 0;
    return segment;
}

void
fbk_segment_unmap(void *segment, uint32_t role)
{
    if (segment != NULL)
        FBK_ASSERT(munmap(segment, fbk_round_up(control_size(role), FBK_PAGE_BYTES)) == 0);
}

struct fbk_stats *
fbk_segment_stats(void *segment, uint32_t role)
{
    switch (role) {
    case FBK_ROLE_SUPERVISOR:
    case FBK_ROLE_GC: return &((struct fbk_stats_segment *)segment)->stats;
    case FBK_ROLE_WORKER: return &((struct fbk_worker_segment *)segment)->stats;
    case FBK_ROLE_JOURNAL: return &((struct fbk_journal_segment *)segment)->stats;
    case FBK_ROLE_INDEX: return &((struct fbk_index_segment *)segment)->stats;
    default: return NULL;
    }
}

int32_t
fbk_segment_map_ring(int32_t fd, const struct fbk_segment_header *header, uint32_t index,
                     uint32_t repeat_index, bool writable, struct fbk_ring *ring)
{
    ring->data = NULL;
    ring->size_bytes = 0;
    if (index >= RING_KINDS_MAX || repeat_index >= FBK_WORKERS_MAX)
        return -EINVAL;
    int64_t file_size = sealed_size(fd);
    if (file_size < 0)
        return (int32_t)file_size;
    /* The owner may be broken: one read each, then only the copies. */
    uint64_t size = *(const volatile uint64_t *)&header->ring_size_bytes[index];
    uint64_t offset = *(const volatile uint64_t *)&header->ring_offset_bytes[index];
    if (size == 0)
        return -EINVAL;
    if (!ring_size_is_possible(size) || offset % FBK_PAGE_BYTES != 0 ||
        offset > (uint64_t)file_size)
        return FBK_E_LAYOUT;
    if (((uint64_t)file_size - offset) / size <= repeat_index)
        return FBK_E_LAYOUT;
    offset += repeat_index * size;

    uint8_t *place =
        mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return -errno;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    for (uint64_t copy = 0; copy < 2; copy++) {
        if (mmap(place + copy * size, size, protection, MAP_SHARED | MAP_FIXED, fd,
                 (off_t)offset) == MAP_FAILED) {
            int32_t status = -errno;
            munmap(place, 2 * size);
            return status;
        }
    }
    ring->data = place;
    ring->size_bytes = size;
    return 0;
}

void
fbk_segment_unmap_ring(struct fbk_ring *ring)
{
    if (ring->data != NULL)
        FBK_ASSERT(munmap(ring->data, 2 * ring->size_bytes) == 0);
    ring->data = NULL;
    ring->size_bytes = 0;
}

/* ------------ anonymous memory */

static uint64_t
whole_pages(uint64_t size_bytes)
{
    return size_bytes == 0 ? FBK_PAGE_BYTES : fbk_round_up(size_bytes, FBK_PAGE_BYTES);
}

void *
fbk_memory_take(uint64_t size_bytes)
{
    if (size_bytes > SIZE_MAX / 2)
        return NULL;
    void *memory = mmap(NULL, whole_pages(size_bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void *
fbk_memory_grow(void *memory, uint64_t old_size_bytes, uint64_t new_size_bytes)
{
    FBK_ASSERT(new_size_bytes >= old_size_bytes);
    if (new_size_bytes > SIZE_MAX / 2)
        return NULL;
    void *grown =
        mremap(memory, whole_pages(old_size_bytes), whole_pages(new_size_bytes), MREMAP_MAYMOVE);
    return grown == MAP_FAILED ? NULL : grown;
}

void
fbk_memory_give_back(void *memory, uint64_t size_bytes)
{
    if (memory != NULL)
        FBK_ASSERT(munmap(memory, whole_pages(size_bytes)) == 0);
}

void
fbk_memory_forget(void *pages, uint64_t size_bytes)
{
    /* Where the kernel refuses, the pages stay as they are. */
    (void)madvise(pages, size_bytes, MADV_DONTNEED);
}

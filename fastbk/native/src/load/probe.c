/* The disk's own limit, measured the way the journal commits: one outstanding O_DIRECT + RWF_DSYNC
 * write at a time on a file whose blocks have all been written before. */
#include "load/load.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

int32_t
fbk_probe_open(const char *path, uint32_t block_bytes, uint32_t file_bytes)
{
    if (block_bytes == 0 || block_bytes % 512 != 0 || file_bytes % FBK_MIB != 0 || file_bytes == 0)
        return -EINVAL;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_DIRECT, 0600);
    if (file < 0 && errno == EINVAL) /* tmpfs and the like: no O_DIRECT */
        file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0)
        return -errno;
    void *zeros = mmap(NULL, FBK_MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int32_t error = zeros == MAP_FAILED ? -errno : 0;
    for (uint64_t offset = 0; error == 0 && offset < file_bytes; offset += FBK_MIB) {
        ssize_t written = pwrite(file, zeros, FBK_MIB, (off_t)offset);
        if (written != (ssize_t)FBK_MIB)
            error = written < 0 ? -errno : -EIO;
    }
    if (error == 0 && fdatasync(file) != 0)
        error = -errno;
    if (zeros != MAP_FAILED)
        munmap(zeros, FBK_MIB);
    if (error != 0) {
        close(file);
        return error;
    }
    return file;
}

int32_t
fbk_probe_run(int32_t file, uint32_t block_bytes, uint32_t file_bytes, uint64_t duration_ns,
              struct fbk_probe_result *result)
{
    if (block_bytes == 0 || file_bytes < block_bytes)
        return -EINVAL;
    uint8_t *block = mmap(NULL, fbk_round_up(block_bytes, FBK_PAGE_BYTES), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        return -errno;
    memset(block, 0x5a, block_bytes);
    result->direct = (fcntl(file, F_GETFL) & O_DIRECT) != 0;
    const uint64_t begin = fbk_load_now_ns();
    uint64_t now = begin;
    uint64_t offset = 0;
    int32_t error = 0;
    while (now - begin < duration_ns) {
        fbk_store_u64(block, now);
        struct iovec piece = {.iov_base = block, .iov_len = block_bytes};
        ssize_t written = pwritev2(file, &piece, 1, (off_t)offset, RWF_DSYNC);
        if (written != (ssize_t)block_bytes) {
            error = written < 0 ? -errno : -EIO;
            break;
        }
        const uint64_t after = fbk_load_now_ns();
        const uint64_t latency = after - now;
        result->latency_buckets[fbk_load_bucket(latency)]++;
        if (latency > result->latency_max_ns)
            result->latency_max_ns = latency;
        result->commits++;
        now = after;
        offset += block_bytes;
        if (offset + block_bytes > file_bytes)
            offset = 0;
    }
    result->busy_ns += now - begin;
    munmap(block, fbk_round_up(block_bytes, FBK_PAGE_BYTES));
    return error;
}

/* A disk for Python: files, names, and the handle that journal, index and store take. Paths are
 * UTF-8, sizes and offsets in bytes. The calls behind it are described in src/io/io.h. */

#define FBK_DISK_CREATE 1
#define FBK_DISK_DIRECT 2
#define FBK_DISK_READ_ONLY 4
#define FBK_DISK_LOCK 8

struct fbk_io;

struct fbk_io *fbk_io_uring_create(const char *directory, uint32_t depth, int32_t *error);
struct fbk_io *fbk_io_plain_create(const char *directory, int32_t *error);
/* Without the probe, for a directory where nothing can be written now: what every file system can
 * do. reads_direct: files opened as direct ones are, where the file system grants it, so that reads
 * are the disk's and not the page cache's. */
struct fbk_io *fbk_io_plain_create_unproven(_Bool reads_direct, int32_t *error);
/* Without the probe, for the directory of another plain one: what it has found holds. */
struct fbk_io *fbk_io_plain_create_like(const struct fbk_io *other, int32_t *error);
void fbk_disk_destroy(struct fbk_io *io);

const char *fbk_disk_name(const struct fbk_io *io);
const char *fbk_disk_sync_mode(const struct fbk_io *io);
uint32_t fbk_disk_depth_max(const struct fbk_io *io);
uint32_t fbk_disk_block_size_bytes(const struct fbk_io *io);
void fbk_disk_lock_timeout(struct fbk_io *io, uint32_t timeout_ms);

int32_t fbk_disk_open(struct fbk_io *io, const char *path, uint32_t flags);
int32_t fbk_disk_close(struct fbk_io *io, int32_t file);
int32_t fbk_disk_preallocate(struct fbk_io *io, int32_t file, uint64_t from_bytes,
                             uint64_t to_bytes);
/* Returns size_bytes or -errno. The data needs no alignment. */
int32_t fbk_disk_write_all(struct fbk_io *io, int32_t file, const uint8_t *data,
                           uint32_t size_bytes, uint64_t offset_bytes, _Bool is_durable);
int32_t fbk_disk_sync(struct fbk_io *io, int32_t file);
/* Returns bytes read, short only at the end of the file, or -errno. The memory needs no
 * alignment. */
int32_t fbk_disk_read(struct fbk_io *io, int32_t file, uint8_t *data, uint32_t size_bytes,
                      uint64_t offset_bytes);
/* Makes a file that is longer as short as that, not durably; returns its size then, or -errno. From
 * any thread. */
int64_t fbk_disk_cut(struct fbk_io *io, const char *path, uint64_t size_bytes);
int32_t fbk_disk_rename(struct fbk_io *io, const char *from, const char *to);
int32_t fbk_disk_unlink(struct fbk_io *io, const char *path);
int32_t fbk_disk_sync_directory(struct fbk_io *io, const char *path);
int64_t fbk_disk_size(struct fbk_io *io, int32_t file);
int64_t fbk_disk_list(struct fbk_io *io, const char *path, char *names, uint64_t names_size_bytes);
int32_t fbk_disk_make_directory(struct fbk_io *io, const char *path);

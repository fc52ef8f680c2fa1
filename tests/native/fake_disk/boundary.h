/* The controls of the fake disk: an in-process disk for tests that loses, tears, fails and lies on
 * command. */

/* Kinds of operations, for faults and in the log. 0 in a fault: any kind. */
#define FBK_FAKE_ANY 0
#define FBK_FAKE_CREATE 1
#define FBK_FAKE_OPEN 2
#define FBK_FAKE_WRITE 3
#define FBK_FAKE_SYNC 4
#define FBK_FAKE_READ 5
#define FBK_FAKE_RENAME 6
#define FBK_FAKE_UNLINK 7
#define FBK_FAKE_SYNC_DIRECTORY 8
#define FBK_FAKE_MAKE_DIRECTORY 9
#define FBK_FAKE_LIST 10
#define FBK_FAKE_PREALLOCATE 11
#define FBK_FAKE_TRUNCATE 12

/* What a fault does. FAIL: the error `argument`, any part of a write done. SHORT: half of it done,
 * and so reported. CUT: the power goes, this operation itself in doubt. LIE: success is reported,
 * nothing is durable. */
#define FBK_FAKE_FAIL 1
#define FBK_FAKE_SHORT 2
#define FBK_FAKE_CUT 3
#define FBK_FAKE_LIE 4

/* What a restart after a cut finds of all that was not durable. RANDOM: each sector of 512 bytes
 * and each name by itself, so writes are torn and reordered. */
#define FBK_FAKE_LOSE_ALL 0
#define FBK_FAKE_KEEP_ALL 1
#define FBK_FAKE_RANDOM 2

/* When writes complete. AT_ONCE: all at the next wait, in order. NEWEST_FIRST, SHUFFLED: one a
 * wait. HELD: only when released. */
#define FBK_FAKE_AT_ONCE 0
#define FBK_FAKE_NEWEST_FIRST 1
#define FBK_FAKE_SHUFFLED 2
#define FBK_FAKE_HELD 3

struct fbk_fake;
struct fbk_io;

struct fbk_fake_event {
    uint64_t number; /* of the operation, from 1 */
    uint32_t kind;
    int32_t result;
    uint64_t file; /* the file's number, 0 = none */
    uint64_t offset_bytes;
    uint32_t size_bytes;
    uint32_t flags;
};

/* capacity_bytes: what all files may hold together; 0 = no limit. NULL when memory ran out. */
struct fbk_fake *fbk_fake_create(uint64_t capacity_bytes, uint64_t seed);
/* Handles of it must have been destroyed. */
void fbk_fake_destroy(struct fbk_fake *fake);
/* The same disk again, with all that is durable or not; no open files, faults or log. */
struct fbk_fake *fbk_fake_copy(struct fbk_fake *fake);
/* Copies that the disk takes of itself: at the `first` moment from now (1 = the next) and each
 * `stride`th after it (0: none any more), at most FBK_FAKE_SNAPSHOTS_MAX before they are fetched. A
 * moment: the beginning of an operation that changes something, or the completion of a write, while
 * it is still under way. `watched`, unless NULL, is read with each copy and has to live until the
 * next call. */
#define FBK_FAKE_SNAPSHOTS_MAX 1024
void fbk_fake_take_snapshots(struct fbk_fake *fake, uint64_t first, uint64_t stride,
                             const uint64_t *watched);
/* The oldest copy not fetched yet, now the caller's to destroy; NULL = no more. */
struct fbk_fake *fbk_fake_next_snapshot(struct fbk_fake *fake, uint64_t *moment, uint64_t *watched);
/* How many moments there were. */
uint64_t fbk_fake_moments(struct fbk_fake *fake);
/* A backend on this disk; any number may share it. */
struct fbk_io *fbk_fake_io(struct fbk_fake *fake, uint32_t depth, int32_t *error);

/* The nth (from 1) operation of `kind` from now on, and `times` of them one after the other, meets
 * `action`. */
int32_t fbk_fake_fault(struct fbk_fake *fake, uint32_t kind, uint64_t nth, uint64_t times,
                       uint32_t action, int32_t argument);
void fbk_fake_clear_faults(struct fbk_fake *fake);
void fbk_fake_cut(struct fbk_fake *fake);
_Bool fbk_fake_is_off(struct fbk_fake *fake);
/* Power again (or a reset, if it was on): what was not durable is resolved; all open files are
 * gone. */
void fbk_fake_restart(struct fbk_fake *fake, uint32_t mode, uint64_t seed);
void fbk_fake_set_capacity(struct fbk_fake *fake, uint64_t capacity_bytes);
uint64_t fbk_fake_used_bytes(struct fbk_fake *fake);

int32_t fbk_fake_set_delivery(struct fbk_fake *fake, uint32_t delivery);
/* Lets the nth (from 0) write under way that is held complete. -ENOENT if there is none. */
int32_t fbk_fake_release(struct fbk_fake *fake, uint32_t nth);
uint32_t fbk_fake_in_flight(struct fbk_fake *fake);

/* Damage at rest: bytes xor mask, durable content included; and a range that can't be read (from =
 * to: none). */
int32_t fbk_fake_corrupt(struct fbk_fake *fake, const char *path, uint64_t offset_bytes,
                         uint64_t size_bytes, uint8_t mask);
int32_t fbk_fake_bad_range(struct fbk_fake *fake, const char *path, uint64_t from_bytes,
                           uint64_t to_bytes);

uint64_t fbk_fake_operations(struct fbk_fake *fake);
uint64_t fbk_fake_operations_of(struct fbk_fake *fake, uint32_t kind);
/* Copies logged events from the one with index `first` on; returns how many. */
int64_t fbk_fake_log(struct fbk_fake *fake, uint64_t first, struct fbk_fake_event *events,
                     uint64_t events_max);

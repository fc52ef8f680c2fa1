/* Reading a log from end to end: by its runs' own headers, or by what locations say.
 *
 * In a journal file that is a log, batch headers and loose records lie between runs.  Whatever is
 * known as such is passed over (INV-J6: behind the first loose record a batch has no runs).
 *
 * A window of the file is held, aligned for direct reads.  A part that the disk refuses to read is
 * replaced by bytes that no run has, block by block, so that what lies around it is still found. */
#include "store/scrub.h"

#include "base/checksum.h"
#include "base/digest.h"
#include "base/segment.h"
#include "store/entry_log.h"

#define WINDOW_BYTES (4u * 1024u * 1024u)
#define UNREADABLE 0xa5

struct fbk_log_scan {
    struct fbk_io *io;
    struct fbk_log_scan_options options;
    struct fbk_log_scan_status status;
    uint64_t salt;
    bool has_salt;
    uint64_t batch_end_bytes; /* of a journal file's batch whose header was whole; 0 = of none */
    uint64_t gap_bytes;       /* passed over since something that was known, but for zeros */
    uint64_t run_due_bytes;   /* of the run that the record before this place names */
    int32_t handle;
    uint32_t block_bytes;
    uint8_t *window;
    uint64_t window_bytes;
    uint64_t from_bytes; /* what the window holds: [from, from + filled) */
    uint64_t filled_bytes;
};

/* ------------ the window */

/* Fills the window from `from` on; the end of the file ends it earlier. */
static void
fill(struct fbk_log_scan *scan, uint64_t from, uint64_t size_bytes)
{
    struct fbk_io *io = scan->io;
    scan->from_bytes = from;
    int32_t got = io->operations->read(io, scan->handle, scan->window, (uint32_t)size_bytes, from);
    if (got >= 0) {
        scan->filled_bytes = (uint64_t)got;
        scan->status.read_bytes += (uint64_t)got;
        return;
    }
    scan->filled_bytes = 0;
    while (scan->filled_bytes < size_bytes) {
        uint8_t *to = scan->window + scan->filled_bytes;
        uint64_t at = from + scan->filled_bytes;
        got = io->operations->read(io, scan->handle, to, scan->block_bytes, at);
        if (got < 0) {
            if (at >= scan->status.size_bytes)
                return;
            memset(to, UNREADABLE, scan->block_bytes);
            scan->status.unreadable_bytes += scan->block_bytes;
            got = (int32_t)scan->block_bytes;
        }
        scan->filled_bytes += (uint64_t)got;
        scan->status.read_bytes += (uint64_t)got;
        if ((uint32_t)got < scan->block_bytes)
            return;
    }
}

/* The bytes at [at, at + size_bytes), 8-byte aligned if `at` is; NULL with *error where the file is
 * shorter. */
static uint8_t *
load(struct fbk_log_scan *scan, uint64_t at, uint64_t size_bytes, int32_t *error)
{
    if (at < scan->from_bytes || at + size_bytes > scan->from_bytes + scan->filled_bytes) {
        uint64_t from = at & ~((uint64_t)scan->block_bytes - 1);
        uint64_t needed = fbk_round_up(at + size_bytes - from, scan->block_bytes);
        uint64_t wanted = needed < WINDOW_BYTES ? WINDOW_BYTES : needed;
        if (wanted > scan->window_bytes) {
            fbk_memory_give_back(scan->window, scan->window_bytes);
            scan->window = fbk_memory_take(wanted);
            scan->window_bytes = scan->window ? wanted : 0;
            scan->filled_bytes = 0;
        }
        if (!scan->window) {
            *error = -ENOMEM;
            return NULL;
        }
        fill(scan, from, wanted);
        if (at + size_bytes > scan->from_bytes + scan->filled_bytes) {
            *error = -ENODATA;
            return NULL;
        }
    }
    return scan->window + (at - scan->from_bytes);
}

/* ------------ open, close */

static bool
is_journal_file(const struct fbk_log_scan *scan)
{
    return (scan->options.log_id & FBK_LOG_JOURNAL) != 0;
}

static int32_t
read_log_header(struct fbk_log_scan *scan)
{
    const uint64_t log_id = scan->options.log_id;
    struct fbk_log_front front = {0};
    uint64_t front_bytes = fbk_log_front_bytes(log_id);
    int32_t error = 0;
    if (front_bytes > scan->status.size_bytes)
        front_bytes = scan->status.size_bytes;
    const uint8_t *bytes = load(scan, 0, front_bytes, &error);
    if (!bytes && error == -ENOMEM)
        return error;
    int32_t result =
        bytes ? fbk_log_front_find(bytes, front_bytes, log_id, scan->options.incarnation, &front)
              : FBK_E_CORRUPT;
    if (result == FBK_E_TOO_NEW)
        return result;
    scan->status.header_damaged = result < 0;
    scan->has_salt = result >= 0 || scan->options.salt != 0;
    scan->salt = scan->options.salt != 0 ? scan->options.salt : front.salt;
    scan->status.at_bytes = result >= 0                ? front.runs_at_bytes
                            : log_id & FBK_LOG_JOURNAL ? FBK_JOURNAL_HEADER_BLOCKS * FBK_PAGE_BYTES
                                                       : FBK_PAGE_BYTES;
    return 0;
}

struct fbk_log_scan *
fbk_log_scan_open(struct fbk_io *io, const char *path, const struct fbk_log_scan_options *options,
                  int32_t *error)
{
    struct fbk_log_scan *scan = calloc(1, sizeof *scan);
    *error = -ENOMEM;
    if (!scan)
        return NULL;
    scan->io = io;
    scan->options = *options;
    scan->block_bytes =
        io->block_size_bytes > FBK_PAGE_BYTES ? io->block_size_bytes : FBK_PAGE_BYTES;
    scan->handle = io->operations->open(io, path, FBK_IO_READ_ONLY | FBK_IO_DIRECT);
    *error = scan->handle < 0 ? scan->handle : 0;
    if (*error >= 0) {
        int64_t size_bytes = io->operations->size(io, scan->handle);
        *error = size_bytes < 0 ? (int32_t)size_bytes : 0;
        scan->status.size_bytes = size_bytes < 0 ? 0 : (uint64_t)size_bytes;
    }
    if (*error >= 0) {
        if (scan->options.end_bytes == 0 || scan->options.end_bytes > scan->status.size_bytes)
            scan->options.end_bytes = scan->status.size_bytes;
        *error = read_log_header(scan);
    }
    if (*error >= 0)
        return scan;
    fbk_log_scan_close(scan);
    return NULL;
}

void
fbk_log_scan_close(struct fbk_log_scan *scan)
{
    if (scan->handle >= 0)
        scan->io->operations->close(scan->io, scan->handle);
    if (scan->window)
        fbk_memory_give_back(scan->window, scan->window_bytes);
    free(scan);
}

void
fbk_log_scan_get_status(const struct fbk_log_scan *scan, struct fbk_log_scan_status *status)
{
    *status = scan->status;
}

/* ------------ runs */

static struct fbk_location
location_of(const struct fbk_scanned_run *run)
{
    return (struct fbk_location){
        .ledger_id = run->ledger_id,
        .first_entry_id = run->first_entry_id,
        .last_entry_id = run->last_entry_id,
        .last_entry_id_max = run->last_entry_id,
        .log_id = run->log_id,
        .offset_bytes = run->offset_bytes,
        .size_bytes = run->size_bytes,
        .entry_count = run->entry_count,
    };
}

/* Entries that fail, or < 0. What was read may have been the disk's moment: it is read once
 * more. */
static int32_t
check_run(struct fbk_log_scan *scan, const struct fbk_location *location, uint8_t **bytes)
{
    int32_t result = FBK_E_CORRUPT;
    for (int attempt = 0; attempt < 2 && result != 0; attempt++) {
        if (attempt > 0)
            scan->filled_bytes = 0; /* checking changes what it has found damaged */
        *bytes = load(scan, location->offset_bytes, location->size_bytes, &result);
        if (*bytes)
            result = fbk_run_check(*bytes, location->size_bytes, location,
                                   scan->has_salt ? &scan->salt : NULL);
    }
    return result;
}

static int64_t
highest_lac(const uint8_t *bytes, uint32_t entry_count)
{
    const struct fbk_run_item *items =
        (const struct fbk_run_item *)(const void *)(bytes + sizeof(struct fbk_run_header));
    int64_t highest = -1;
    for (uint32_t i = 0; i < entry_count; i++) {
        if (items[i].size_bytes < FBK_ENTRY_HEADER_BYTES)
            continue;
        int64_t lac = (int64_t)fbk_load_be64(bytes + items[i].offset_bytes + 16);
        if (lac > highest && lac < items[i].entry_id)
            highest = lac;
    }
    return highest;
}

/* Whether a run of this log begins here, by its header alone. */
static bool
begins_run(const struct fbk_log_scan *scan, const uint8_t *bytes, struct fbk_scanned_run *run)
{
    struct fbk_run_header header;
    memcpy(&header, bytes, sizeof header);
    if (header.magic != FBK_RUN_MAGIC || header.log_id != scan->options.log_id ||
        header.offset_bytes != scan->status.at_bytes ||
        (scan->has_salt && header.salt != scan->salt) ||
        header.header_crc != fbk_crc32c(0, &header, offsetof(struct fbk_run_header, header_crc)))
        return false;
    *run = (struct fbk_scanned_run){
        .ledger_id = header.ledger_id,
        .first_entry_id = header.first_entry_id,
        .last_entry_id = header.last_entry_id,
        .lac = -1,
        .log_id = header.log_id,
        .offset_bytes = header.offset_bytes,
        .size_bytes = header.size_bytes,
        .entry_count = header.entry_count,
    };
    struct fbk_location location = location_of(run);
    return fbk_location_is_sane(&location) &&
           run->size_bytes <= scan->options.end_bytes - scan->status.at_bytes;
}

/* ------------ what else a journal file has */

/* The smallest run: what is smaller and unknown has hidden none. */
#define RUN_BYTES_MIN (sizeof(struct fbk_run_header) + sizeof(struct fbk_run_item) + 8u)

static bool
begins_batch(struct fbk_log_scan *scan, struct fbk_batch_header *header)
{
    const uint64_t at = scan->status.at_bytes;
    int32_t error;
    if (at % FBK_PAGE_BYTES != 0)
        return false;
    const uint8_t *bytes = load(scan, at, sizeof *header, &error);
    if (!bytes)
        return false;
    memcpy(header, bytes, sizeof *header);
    return fbk_batch_header_ok(header, scan->options.log_id ^ FBK_LOG_JOURNAL,
                               scan->has_salt ? scan->salt : header->salt, at,
                               scan->options.end_bytes - at, FBK_PAGE_BYTES);
}

static bool
begins_record(struct fbk_log_scan *scan, struct fbk_record *record)
{
    int32_t error;
    const uint8_t *bytes = load(scan, scan->status.at_bytes, sizeof *record, &error);
    if (!bytes)
        return false;
    memcpy(record, bytes, sizeof *record);
    return record->size_bytes == sizeof *record + fbk_round_up(record->payload_bytes, 8) &&
           record->size_bytes <= FBK_BATCH_BYTES_MAX &&
           record->header_crc == fbk_crc32c(0, record, offsetof(struct fbk_record, header_crc));
}

/* Bytes at this place that are known and hold no run: a batch's header, a run's record up to the
 * run, the loose rest of a batch.  0: none are. */
static uint64_t
known_bytes(struct fbk_log_scan *scan)
{
    const uint64_t at = scan->status.at_bytes;
    struct fbk_batch_header batch;
    struct fbk_record record;
    if (!is_journal_file(scan))
        return 0;
    if (at >= scan->batch_end_bytes && begins_batch(scan, &batch)) {
        scan->batch_end_bytes = at + batch.padded_bytes;
        return sizeof batch;
    }
    /* Records have no salt: in a longer gap it may be what a client has sent. */
    if (scan->gap_bytes >= RUN_BYTES_MIN || !begins_record(scan, &record))
        return 0;
    if (record.kind == FBK_KIND_RUN) {
        scan->run_due_bytes = record.payload_bytes;
        return sizeof record;
    }
    return at < scan->batch_end_bytes ? scan->batch_end_bytes - at : record.size_bytes;
}

/* What was passed over ends at something that is known, or at the end. */
static void
end_gap(struct fbk_log_scan *scan)
{
    if (!is_journal_file(scan) || scan->gap_bytes >= RUN_BYTES_MIN)
        scan->status.skipped_bytes += scan->gap_bytes;
    scan->gap_bytes = 0;
}

/* What is passed over where no run begins.  A run that a record names and that is not there is
 * lost, whatever lies in its place. */
static uint64_t
pass_over(struct fbk_log_scan *scan, bool is_zero)
{
    const uint64_t lost = scan->run_due_bytes;
    if (lost > 0) {
        scan->run_due_bytes = 0;
        scan->status.skipped_bytes += lost;
        return lost;
    }
    const uint64_t known = is_zero ? 0 : known_bytes(scan);
    if (known > 0)
        end_gap(scan);
    else if (!is_zero)
        scan->gap_bytes += 8;
    return known > 0 ? known : 8;
}

int32_t
fbk_log_scan_next(struct fbk_log_scan *scan, struct fbk_scanned_run *runs, uint32_t runs_max)
{
    uint32_t count = 0;
    uint64_t *at = &scan->status.at_bytes;
    while (count < runs_max && *at + sizeof(struct fbk_run_header) <= scan->options.end_bytes) {
        int32_t error = 0;
        uint8_t *bytes = load(scan, *at, sizeof(struct fbk_run_header), &error);
        if (!bytes && error == -ENOMEM)
            return error;
        if (!bytes)
            break;
        struct fbk_scanned_run *run = &runs[count];
        if (!begins_run(scan, bytes, run)) {
            *at += pass_over(scan, fbk_load_u64(bytes) == 0);
            continue;
        }
        end_gap(scan);
        scan->run_due_bytes = 0;
        struct fbk_location location = location_of(run);
        run->damaged = check_run(scan, &location, &bytes);
        if (run->damaged == -ENOMEM)
            return run->damaged;
        if (run->damaged >= 0)
            run->lac = highest_lac(bytes, run->entry_count);
        *at += run->size_bytes;
        count++;
    }
    if (count == 0)
        end_gap(scan);
    return (int32_t)count;
}

/* ------------ verifying */

static void
note_bad_digest(struct fbk_digests_found *found, struct fbk_id_range *bad, uint64_t bad_max,
                int64_t ledger_id, int64_t entry_id, bool goes_on)
{
    found->bad_entries++;
    found->bad_count += !goes_on;
    if (found->bad_count > bad_max)
        return;
    struct fbk_id_range *range = &bad[found->bad_count - 1];
    if (!goes_on)
        *range = (struct fbk_id_range){.ledger_id = ledger_id, .first_entry_id = entry_id};
    range->last_entry_id = entry_id;
}

static bool
can_check(uint32_t digest_type, const uint8_t *mac_key)
{
    return digest_type == FBK_DIGEST_CRC32C || digest_type == FBK_DIGEST_CRC32 ||
           (digest_type == FBK_DIGEST_HMAC && mac_key != NULL);
}

static bool
is_digest_right(uint32_t digest_type, const uint8_t *mac_key, const uint8_t *entry,
                uint32_t entry_bytes)
{
    return (digest_type == FBK_DIGEST_HMAC
                ? fbk_digest_check_mac(mac_key, entry, entry_bytes)
                : fbk_digest_check(digest_type, entry, entry_bytes)) == FBK_S_OK;
}

/* Of a run that was checked: entries that fail their checksum have no bytes any more. */
static void
check_digests(const uint8_t *bytes, const struct fbk_scanned_run *run, const uint8_t *mac_key,
              struct fbk_digests_found *found, struct fbk_id_range *bad, uint64_t bad_max)
{
    const struct fbk_run_item *items =
        (const struct fbk_run_item *)(const void *)(bytes + sizeof(struct fbk_run_header));
    int64_t bad_entry_id = -2; /* the last one */
    if (!can_check(run->digest_type, mac_key))
        return;
    for (uint32_t i = 0; i < run->entry_count; i++) {
        const struct fbk_run_item *item = &items[i];
        if (item->size_bytes == 0)
            continue;
        found->entries++;
        if (is_digest_right(run->digest_type, mac_key, bytes + item->offset_bytes,
                            item->size_bytes))
            continue;
        note_bad_digest(found, bad, bad_max, run->ledger_id, item->entry_id,
                        item->entry_id - bad_entry_id == 1);
        bad_entry_id = item->entry_id;
    }
}

int32_t
fbk_log_scan_verify(struct fbk_log_scan *scan, struct fbk_scanned_run *runs, uint32_t count,
                    const uint8_t *mac_keys, struct fbk_digests_found *digests,
                    struct fbk_id_range *ranges, uint64_t ranges_max)
{
    int32_t bad = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct fbk_location location = location_of(&runs[i]);
        uint8_t *bytes = NULL;
        if (location.log_id != scan->options.log_id || !fbk_location_is_sane(&location) ||
            location.offset_bytes + location.size_bytes > scan->options.end_bytes)
            runs[i].damaged = FBK_E_CORRUPT;
        else
            runs[i].damaged = check_run(scan, &location, &bytes);
        if (runs[i].damaged == -ENOMEM)
            return runs[i].damaged;
        if (digests && runs[i].damaged >= 0)
            check_digests(bytes, &runs[i],
                          mac_keys ? mac_keys + (uint64_t)i * FBK_MAC_KEY_BYTES : NULL, digests,
                          ranges, ranges_max);
        bad += runs[i].damaged != 0;
    }
    return bad;
}

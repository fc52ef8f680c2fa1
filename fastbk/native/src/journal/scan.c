/* Reading a journal file back.  Bytes from disk are checked before they are used; memory is taken
 * in steps up to the batch in hand, never by a length that was not covered by a checksum, never
 * beyond FBK_BATCH_BYTES_MAX. */

#include "journal/scan.h"

#include "base/segment.h"
#include "journal/format.h"

/* of each, what is left of half a batch is moved to the front */
#define PIECE_BYTES (4u * 1024u * 1024u)
#define HEADER_BYTES (2u * FBK_BLOCK_BYTES_MAX)
#define FEW_HEADER_BYTES ((int32_t)(FBK_JOURNAL_HEADER_BLOCKS * FBK_PAGE_BYTES))

struct fbk_journal_scan {
    struct fbk_io *io;
    struct fbk_journal_expectation expectation;
    int32_t file;
    uint32_t block_size_bytes;
    uint64_t salt;
    uint64_t size_bytes;   /* what is there, in whole blocks */
    uint64_t offset_bytes; /* of the next batch */
    uint64_t next_sequence;
    uint64_t next_record_sequence;
    uint32_t previous_crc;
    /* behind the mark only: the next batch's link can't be checked */
    bool chain_broken;
    uint8_t *window; /* the file's bytes [window_offset, + window_bytes) */
    uint64_t window_capacity;
    uint64_t window_offset;
    uint64_t window_bytes;
    struct fbk_journal_end end;
};

/* FBK_HEADER_* or an error.  What can't be read is damaged; the other block may serve.  Thousands
 * of files are looked at: two pages say all where blocks are pages. */
static int32_t
read_header(struct fbk_io *io, int32_t file, uint8_t *buffer,
            struct fbk_journal_file_header *header)
{
    int32_t got = io->operations->read(io, file, buffer, FEW_HEADER_BYTES, 0);
    if (got == FEW_HEADER_BYTES &&
        fbk_journal_file_header_find(buffer, (uint64_t)got, header) == FBK_HEADER_VALID &&
        header->block_size_bytes == FBK_PAGE_BYTES)
        return FBK_HEADER_VALID;
    got = io->operations->read(io, file, buffer, HEADER_BYTES, 0);
    if (got < 0) {
        memset(buffer, 0xff, HEADER_BYTES);
        for (uint32_t at = 0; at < FBK_JOURNAL_HEADER_BLOCKS * FBK_PAGE_BYTES; at += FBK_PAGE_BYTES)
            if (io->operations->read(io, file, buffer + at, FBK_PAGE_BYTES, at) < 0)
                memset(buffer + at, 0xff, FBK_PAGE_BYTES);
        got = FBK_JOURNAL_HEADER_BLOCKS * FBK_PAGE_BYTES;
    }
    return fbk_journal_file_header_find(buffer, (uint64_t)got, header);
}

static int32_t
open_file(struct fbk_io *io, const char *path, uint32_t lock)
{
    return io->operations->open(io, path,
                                FBK_IO_READ_ONLY | FBK_IO_DIRECT | (lock ? FBK_IO_LOCK : 0u));
}

int32_t
fbk_journal_read_header(struct fbk_io *io, const char *path, uint32_t lock,
                        struct fbk_journal_header *header)
{
    struct fbk_journal_file_header found;
    memset(&found, 0, sizeof found);
    memset(header, 0, sizeof *header);
    int32_t file = open_file(io, path, lock);
    if (file < 0)
        return file;
    int64_t size = io->operations->size(io, file);
    uint8_t *buffer = fbk_memory_take(HEADER_BYTES);
    int32_t state = !buffer    ? -ENOMEM
                    : size < 0 ? (int32_t)size
                               : read_header(io, file, buffer, &found);
    if (buffer)
        fbk_memory_give_back(buffer, HEADER_BYTES);
    io->operations->close(io, file);
    if (state < 0)
        return state;
    header->state = (uint32_t)state;
    header->size_bytes = (uint64_t)size;
    header->block_size_bytes = found.block_size_bytes;
    header->file_id = found.file_id;
    header->salt = found.salt;
    header->incarnation = found.incarnation;
    header->file_size_bytes = found.file_size_bytes;
    header->predecessor_file_id = found.predecessor_file_id;
    header->predecessor_sequence = found.predecessor_sequence;
    header->first_sequence = found.first_sequence;
    header->first_record_sequence = found.first_record_sequence;
    header->created_s = found.created_s;
    header->predecessor_crc = found.predecessor_crc;
    header->pair = found.pair;
    header->adopts = found.version >= FBK_JOURNAL_VERSION;
    memcpy(header->bookie_id, found.bookie_id, sizeof header->bookie_id);
    return 0;
}

void
fbk_journal_encode_header(const struct fbk_journal_header *header, uint8_t *bytes,
                          uint64_t size_bytes)
{
    struct fbk_journal_file_header made;
    memset(&made, 0, sizeof made);
    made.magic = FBK_JOURNAL_MAGIC;
    made.version = header->adopts ? FBK_JOURNAL_VERSION : FBK_JOURNAL_VERSION_PLAIN;
    made.block_size_bytes = header->block_size_bytes;
    made.file_id = header->file_id;
    made.salt = header->salt;
    made.incarnation = header->incarnation;
    made.pair = header->pair;
    made.file_size_bytes = header->file_size_bytes;
    made.predecessor_file_id = header->predecessor_file_id;
    made.predecessor_sequence = header->predecessor_sequence;
    made.predecessor_crc = header->predecessor_crc;
    made.first_sequence = header->first_sequence;
    made.first_record_sequence = header->first_record_sequence;
    made.created_s = header->created_s;
    memcpy(made.bookie_id, header->bookie_id, sizeof made.bookie_id);
    made.crc = fbk_journal_file_header_crc(&made);
    FBK_ASSERT(size_bytes >= FBK_JOURNAL_HEADER_BLOCKS * (uint64_t)header->block_size_bytes);
    memset(bytes, 0, size_bytes);
    for (uint32_t n = 0; n < FBK_JOURNAL_HEADER_BLOCKS; n++)
        memcpy(bytes + n * (uint64_t)header->block_size_bytes, &made, sizeof made);
}

static int32_t
begin(struct fbk_journal_scan *scan, const char *path, uint32_t lock)
{
    scan->window = fbk_memory_take(PIECE_BYTES);
    if (!scan->window)
        return -ENOMEM;
    scan->window_capacity = PIECE_BYTES;
    scan->file = open_file(scan->io, path, lock);
    if (scan->file < 0)
        return scan->file;
    int64_t size = scan->io->operations->size(scan->io, scan->file);
    if (size < 0)
        return (int32_t)size;
    struct fbk_journal_file_header header;
    int32_t state = read_header(scan->io, scan->file, scan->window, &header);
    if (state < 0)
        return state;
    if (state != FBK_HEADER_VALID || header.file_id != scan->expectation.file_id ||
        header.incarnation != scan->expectation.incarnation)
        return FBK_E_CORRUPT;
    uint64_t block = header.block_size_bytes;
    scan->block_size_bytes = header.block_size_bytes;
    scan->salt = header.salt;
    scan->size_bytes = (uint64_t)size & ~(block - 1);
    scan->offset_bytes = FBK_JOURNAL_HEADER_BLOCKS * block;
    scan->next_sequence = header.first_sequence;
    scan->next_record_sequence = header.first_record_sequence;
    scan->previous_crc = header.predecessor_crc;
    scan->end.last_sequence = header.predecessor_sequence;
    scan->end.last_crc = header.predecessor_crc;
    scan->end.next_record_sequence = header.first_record_sequence;
    scan->end.end_bytes = scan->offset_bytes;
    /* Its runs may be published where they lie: whoever wrote them is dead, and may not have known
     * whether they were durable. */
    return lock && header.version >= FBK_JOURNAL_VERSION
               ? scan->io->operations->sync(scan->io, scan->file)
               : 0;
}

void
fbk_journal_scan_close(struct fbk_journal_scan *scan)
{
    if (!scan)
        return;
    if (scan->file >= 0)
        scan->io->operations->close(scan->io, scan->file);
    if (scan->window)
        fbk_memory_give_back(scan->window, scan->window_capacity);
    fbk_memory_give_back(scan, sizeof *scan);
}

/* Has [offset, offset + size) in the window: 1, 0 where the file ends before, -errno. */
static int32_t
need(struct fbk_journal_scan *scan, uint64_t offset, uint64_t size, const uint8_t **bytes)
{
    if (offset > scan->size_bytes || size > scan->size_bytes - offset)
        return 0;
    if (size > scan->window_capacity) {
        uint64_t capacity = fbk_round_up(size, PIECE_BYTES);
        uint8_t *window = fbk_memory_grow(scan->window, scan->window_capacity, capacity);
        if (!window)
            return -ENOMEM;
        scan->window = window;
        scan->window_capacity = capacity;
    }
    uint64_t kept = 0;
    if (offset >= scan->window_offset && offset - scan->window_offset < scan->window_bytes) {
        uint64_t skip = offset - scan->window_offset;
        kept = scan->window_bytes - skip;
        if (kept >= size) {
            *bytes = scan->window + skip;
            return 1;
        }
        /* whole blocks: direct reads stay aligned */
        memmove(scan->window, scan->window + skip, kept);
    }
    scan->window_offset = offset;
    scan->window_bytes = kept;
    uint64_t want = scan->window_capacity - kept;
    if (want > scan->size_bytes - offset - kept)
        want = scan->size_bytes - offset - kept;
    while (scan->window_bytes < size) {
        int32_t got =
            scan->io->operations->read(scan->io, scan->file, scan->window + scan->window_bytes,
                                       (uint32_t)want, offset + scan->window_bytes);
        if (got < 0 && want > size - scan->window_bytes) {
            want = size - scan->window_bytes; /* what cannot be read may lie further on */
            continue;
        }
        if (got < 0)
            return got;
        uint64_t whole = (uint64_t)got & ~((uint64_t)scan->block_size_bytes - 1);
        if (whole == 0)
            return 0; /* shorter than it said */
        scan->window_bytes += whole;
        want -= whole;
    }
    *bytes = scan->window;
    return 1;
}

/* A valid batch at offset, without a word about what it follows: 1 and its header, 0, -errno.
 * Bodies are read only when with_records. */
static int32_t
valid_at(struct fbk_journal_scan *scan, uint64_t offset, bool with_records,
         struct fbk_batch_header *header, const uint8_t **bytes)
{
    int32_t rc = need(scan, offset, scan->block_size_bytes, bytes);
    if (rc <= 0)
        return rc;
    memcpy(header, *bytes, sizeof *header);
    if (!fbk_batch_header_ok(header, scan->expectation.file_id, scan->salt, offset,
                             scan->size_bytes - offset, scan->block_size_bytes))
        return 0;
    if (!with_records)
        return 1;
    rc = need(scan, offset, header->padded_bytes, bytes);
    if (rc <= 0)
        return rc;
    return fbk_batch_records_ok(header, *bytes);
}

/* Begins with the mark's batch, if it is where it should be. */
static int32_t
skip_to_mark(struct fbk_journal_scan *scan)
{
    const uint64_t offset = scan->expectation.mark_offset_bytes;
    struct fbk_batch_header header;
    const uint8_t *bytes;
    if (offset < scan->offset_bytes || offset % scan->block_size_bytes != 0)
        return 0;
    int32_t rc = valid_at(scan, offset, false, &header, &bytes);
    if (rc == -ENOMEM)
        return rc;
    if (rc != 1 || header.sequence != scan->expectation.mark_sequence)
        return 0;
    scan->offset_bytes = offset;
    scan->next_sequence = header.sequence;
    scan->next_record_sequence = header.first_record_sequence;
    scan->chain_broken = true;
    return 0;
}

struct fbk_journal_scan *
fbk_journal_scan_open(struct fbk_io *io, const char *path, uint32_t lock,
                      const struct fbk_journal_expectation *expectation, int32_t *error)
{
    struct fbk_journal_scan *scan = fbk_memory_take(sizeof *scan);
    if (!scan) {
        *error = -ENOMEM;
        return NULL;
    }
    scan->io = io;
    scan->expectation = *expectation;
    scan->file = -1;
    *error = begin(scan, path, lock);
    if (*error >= 0 && expectation->mark_offset_bytes > 0)
        *error = skip_to_mark(scan);
    if (*error < 0) {
        fbk_journal_scan_close(scan);
        return NULL;
    }
    return scan;
}

static int32_t
at_end(struct fbk_journal_scan *scan, uint32_t kind)
{
    scan->end.kind = kind;
    return 0;
}

/* The first valid batch from `offset` on that `wanted` accepts; 1, 0 none, -errno of a failed read
 * when none was found. */
static int32_t
find_later(struct fbk_journal_scan *scan, uint64_t offset,
           bool (*wanted)(const struct fbk_journal_scan *scan,
                          const struct fbk_batch_header *header),
           bool with_records, struct fbk_batch_header *header)
{
    int32_t error = 0;
    for (; offset < scan->size_bytes; offset += scan->block_size_bytes) {
        const uint8_t *bytes;
        int32_t rc = valid_at(scan, offset, with_records, header, &bytes);
        if (rc == -ENOMEM)
            return rc;
        if (rc < 0) {
            error = rc;
            scan->window_bytes = 0;
        }
        if (rc == 1 && wanted(scan, header))
            return 1;
    }
    return error;
}

/* The first batch that is missed: those behind the mark are not. */
static uint64_t
missed_sequence(const struct fbk_journal_scan *scan)
{
    uint64_t mark = scan->expectation.mark_sequence;
    return scan->next_sequence > mark ? scan->next_sequence : mark + 1;
}

static bool
proves_damage(const struct fbk_journal_scan *scan, const struct fbk_batch_header *header)
{
    uint64_t missed = missed_sequence(scan);
    return header->sequence > missed && header->acked_through >= missed;
}

static bool
resumes_behind_mark(const struct fbk_journal_scan *scan, const struct fbk_batch_header *header)
{
    return header->sequence > scan->next_sequence &&
           header->sequence <= scan->expectation.mark_sequence + 1;
}

/* Batch next_sequence is not there.  The tail, damage, or, when all of it lies behind the mark, a
 * hole to pass over: 1 = go on at the new offset. */
static int32_t
judge_end(struct fbk_journal_scan *scan, int32_t read_error)
{
    struct fbk_batch_header header;
    if (scan->next_sequence <= scan->expectation.mark_sequence) {
        int32_t rc = find_later(scan, scan->offset_bytes, resumes_behind_mark, false, &header);
        if (rc == -ENOMEM)
            return rc;
        if (rc == 1) {
            scan->end.passed_damage++;
            scan->offset_bytes = header.offset_bytes;
            scan->next_sequence = header.sequence;
            scan->next_record_sequence = header.first_record_sequence;
            scan->chain_broken = true;
            return 1;
        }
    }
    int32_t rc = find_later(scan, scan->offset_bytes, proves_damage, true, &header);
    if (rc == -ENOMEM)
        return rc;
    if (rc == 1) {
        scan->end.later_sequence = header.sequence;
        scan->end.later_acked_through = header.acked_through;
    }
    if (rc == 1)
        return at_end(scan, FBK_END_DAMAGE);
    if (scan->expectation.end_sequence < missed_sequence(scan))
        return at_end(scan, FBK_END_TAIL); /* what was to come is behind the mark */
    scan->end.read_error = read_error < 0 ? read_error : rc < 0 ? rc : 0;
    /* A successor's header is written when everything that it names is durable. */
    if (scan->end.read_error || scan->expectation.end_sequence != UINT64_MAX)
        return at_end(scan, FBK_END_DAMAGE);
    return at_end(scan, FBK_END_TAIL);
}

static void
accept(struct fbk_journal_scan *scan, const struct fbk_batch_header *header)
{
    scan->offset_bytes += header->padded_bytes;
    scan->next_sequence++;
    scan->next_record_sequence = header->first_record_sequence + header->record_count;
    scan->previous_crc = header->header_crc;
    scan->chain_broken = false;
    scan->end.last_sequence = header->sequence;
    scan->end.last_crc = header->header_crc;
    scan->end.next_record_sequence = scan->next_record_sequence;
    scan->end.end_bytes = scan->offset_bytes;
}

/* Behind a closing batch nothing is read; a successor that names a later end is at odds with it. */
static uint32_t
closing_kind(const struct fbk_journal_scan *scan)
{
    uint64_t end = scan->expectation.end_sequence;
    return end != UINT64_MAX && end > scan->end.last_sequence ? FBK_END_DAMAGE : FBK_END_CLOSING;
}

int32_t
fbk_journal_scan_next(struct fbk_journal_scan *scan, struct fbk_journal_batch *batch)
{
    while (scan->end.kind == FBK_END_NONE) {
        if (scan->end.last_sequence >= scan->expectation.end_sequence)
            return at_end(scan, FBK_END_SUCCESSOR); /* INV-J4: whatever lies behind it */
        bool behind_mark = scan->next_sequence <= scan->expectation.mark_sequence;
        struct fbk_batch_header header;
        const uint8_t *bytes;
        int32_t rc = valid_at(scan, scan->offset_bytes, !behind_mark, &header, &bytes);
        if (rc == -ENOMEM)
            return rc;
        bool follows = rc == 1 && header.sequence == scan->next_sequence &&
                       header.first_record_sequence == scan->next_record_sequence &&
                       header.acked_through < header.sequence &&
                       (scan->chain_broken || header.previous_crc == scan->previous_crc);
        if (!follows) {
            rc = judge_end(scan, rc < 0 ? rc : 0);
            if (rc < 0)
                return rc;
            continue;
        }
        uint64_t offset = scan->offset_bytes;
        accept(scan, &header);
        if (header.flags & FBK_BATCH_CLOSING)
            scan->end.kind = closing_kind(scan);
        if (behind_mark)
            continue;
        memset(batch, 0, sizeof *batch);
        batch->records = bytes + sizeof header;
        batch->file_id = header.file_id;
        batch->offset_bytes = offset;
        batch->sequence = header.sequence;
        batch->acked_through = header.acked_through;
        batch->first_record_sequence = header.first_record_sequence;
        batch->written_s = header.written_s;
        batch->record_count = header.record_count;
        batch->records_bytes = header.content_bytes - (uint32_t)sizeof header;
        batch->padded_bytes = header.padded_bytes;
        batch->flags = header.flags;
        batch->header_crc = header.header_crc;
        scan->end.batches++;
        scan->end.records += header.record_count;
        scan->end.bytes += header.padded_bytes;
        return 1;
    }
    return 0;
}

void
fbk_journal_scan_end(const struct fbk_journal_scan *scan, struct fbk_journal_end *end)
{
    *end = scan->end;
}

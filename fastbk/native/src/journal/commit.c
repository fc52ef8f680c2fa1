/* A batch on its way to the disk, and the change from one file to the next.
 * Decision 13. */

#include "journal/journal.h"

#include <time.h>

#include "base/checksum.h"
#include "base/fault.h"
#include "journal/format.h"

static uint64_t
wall_clock_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec;
}

/* Header, padding, chain.  From here on the buffer is the kernel's. */
static uint32_t
seal(struct fbk_journal *journal, struct fbk_journal_slot *slot, uint32_t flags)
{
    uint32_t padded =
        (uint32_t)fbk_round_up(slot->content_bytes, journal->options.block_size_bytes);
    memset(slot->buffer + slot->content_bytes, 0, padded - slot->content_bytes);
    struct fbk_batch_header header = {
        .magic = FBK_BATCH_MAGIC,
        .flags = flags,
        .file_id = journal->file.file_id,
        .salt = journal->file.salt,
        .offset_bytes = journal->offset_bytes,
        .sequence = journal->sequence + 1,
        /* Unsynced, no batch proves that one before it was durable: a hole is no damage then. */
        .acked_through = journal->options.unsynced ? 0 : journal->published_sequence,
        .first_record_sequence = slot->first_record_sequence,
        .written_s = wall_clock_s(),
        .record_count = slot->record_count,
        .padded_bytes = padded,
        .content_bytes = slot->content_bytes,
        .previous_crc = journal->last_crc,
        .records_crc = fbk_crc32c(slot->records_crc, slot->buffer + slot->content_bytes,
                                  padded - slot->content_bytes),
    };
    header.header_crc = fbk_batch_header_crc(&header);
    memcpy(slot->buffer, &header, sizeof header);
    journal->sequence++;
    journal->last_crc = header.header_crc;
    return padded;
}

/* Why it ended, and how long its records had waited, without a look at the clock for each. */
static void
note_batch(struct fbk_journal *journal, const struct fbk_journal_slot *slot, uint32_t padded)
{
    struct fbk_stats *stats = &journal->segment->stats;
    uint32_t count = slot->descriptor.record_count;
    fbk_count(stats, FBK_C_JOURNAL_BATCHES, 1);
    fbk_count(stats, FBK_C_JOURNAL_BYTES, padded);
    fbk_count(stats, FBK_C_JOURNAL_PADDING_BYTES, padded - slot->content_bytes);
    fbk_observe_many(stats, FBK_H_JOURNAL_BATCH_BYTES, padded, 1);
    fbk_observe_many(stats, FBK_H_JOURNAL_BATCH_RECORDS, count, 1);
    if (count == 0)
        return;
    fbk_count(stats, slot->is_full ? FBK_C_JOURNAL_BATCHES_FULL : FBK_C_JOURNAL_BATCHES_OF_ALL, 1);
    int64_t first_waited_us =
        (int32_t)((uint32_t)(slot->submitted_ns / 1000) - slot->first_received_us);
    int64_t waited_us = first_waited_us * count - slot->received_us_sum;
    fbk_count(stats, FBK_C_JOURNAL_QUEUED, count);
    fbk_count(stats, FBK_C_JOURNAL_QUEUED_US, waited_us > 0 ? (uint64_t)waited_us : 0);
}

/* A batch without records has nothing to write unless it closes the file: it is durable when all
 * before it are. */
int32_t
fbk_journal_submit(struct fbk_journal *journal, struct fbk_journal_slot *slot, uint32_t flags)
{
    struct fbk_batch_descriptor *descriptor = &slot->descriptor;
    journal->slot_count++;
    if (descriptor->record_count == 0 && !(flags & FBK_BATCH_CLOSING)) {
        descriptor->journal_bytes = journal->journal_bytes;
        slot->state = FBK_SLOT_DURABLE;
        return 0;
    }
    uint32_t padded = seal(journal, slot, flags);
    FBK_ASSERT(journal->offset_bytes + padded <= journal->file.size_bytes);
    descriptor->batch_sequence = journal->sequence;
    descriptor->file_id = journal->file.file_id;
    descriptor->offset_bytes = journal->offset_bytes;
    descriptor->size_bytes = padded;
    journal->journal_bytes += padded;
    descriptor->journal_bytes = journal->journal_bytes;
    slot->ticket = ++journal->ticket;
    slot->submitted_ns = fbk_now_ns();
    slot->state = FBK_SLOT_FLYING;
    int32_t rc = journal->io->operations->write(
        journal->io, journal->file.file, slot->buffer, padded, journal->offset_bytes,
        journal->options.unsynced ? 0 : FBK_IO_SYNC, slot->ticket);
    if (rc < 0)
        return fbk_journal_poison(journal, FBK_POISON_WRITE, 0, journal->offset_bytes, rc);
    journal->offset_bytes += padded;
    if (slot->has_runs)
        journal->tail_written += padded;
    descriptor->tail_end = journal->tail_written;
    journal->loose_bytes += slot->loose_bytes;
    note_batch(journal, slot, padded);
    return 0;
}

static struct fbk_journal_slot *
slot_of_ticket(struct fbk_journal *journal, uint64_t ticket)
{
    for (uint32_t i = 0; i < journal->options.depth; i++)
        if (journal->slots[i].state == FBK_SLOT_FLYING && journal->slots[i].ticket == ticket)
            return &journal->slots[i];
    return NULL;
}

/* In whatever order they come.  After a failed one nothing is published, not even what was written
 * before it in the same round (INV-J2). */
int32_t
fbk_journal_completed(struct fbk_journal *journal, const struct fbk_io_completion *completions,
                      int32_t count)
{
    uint64_t now_ns = count > 0 ? fbk_now_ns() : 0;
    for (int32_t i = 0; i < count; i++) {
        struct fbk_journal_slot *slot = slot_of_ticket(journal, completions[i].ticket);
        if (!slot)
            continue; /* of an earlier user of this io */
        int32_t result = completions[i].result;
        if (result < 0 || (uint32_t)result != slot->descriptor.size_bytes)
            return fbk_journal_poison(journal, FBK_POISON_WRITE, 0, slot->descriptor.offset_bytes,
                                      result < 0 ? result : -EIO);
        slot->state = FBK_SLOT_DURABLE;
        slot->completed_ns = journal->completed_ns = now_ns;
        FBK_KILL_POINT("journal.after_completion");
        fbk_observe_many(&journal->segment->stats, FBK_H_JOURNAL_COMMIT_NS,
                         now_ns - slot->submitted_ns, 1);
    }
    return 0;
}

/* Waits until nothing is in flight, and publishes. */
static int32_t
settle(struct fbk_journal *journal)
{
    struct fbk_io_completion completions[FBK_JOURNAL_DEPTH_MAX];
    fbk_journal_publish(journal);
    while (journal->slot_count > 0) {
        int32_t rung = 0;
        int32_t count = journal->io->operations->wait(journal->io, -1, -1, completions,
                                                      FBK_JOURNAL_DEPTH_MAX, &rung);
        if (count < 0 && count != -EINTR)
            return fbk_journal_poison(journal, FBK_POISON_WRITE, 0, journal->offset_bytes, count);
        int32_t rc = fbk_journal_completed(journal, completions, count < 0 ? 0 : count);
        if (rc < 0)
            return rc;
        fbk_journal_publish(journal);
    }
    return 0;
}

/* -EAGAIN: no room for its descriptor yet. */
static int32_t
write_closing_batch(struct fbk_journal *journal)
{
    if (journal->offset_bytes + journal->options.block_size_bytes > journal->file.size_bytes)
        return 0; /* full to the last block: the successor's header ends it as well */
    uint64_t exceptions_room;
    int32_t rc = fbk_journal_room(journal, &exceptions_room);
    if (rc < 0)
        return rc;
    if (rc == 0)
        return -EAGAIN;
    rc = fbk_journal_submit(journal, fbk_journal_begin_slot(journal), FBK_BATCH_CLOSING);
    return rc < 0 ? rc : settle(journal);
}

static void
make_file_header(const struct fbk_journal *journal, const struct fbk_journal_file *next,
                 struct fbk_journal_file_header *header)
{
    memset(header, 0, sizeof *header);
    header->magic = FBK_JOURNAL_MAGIC;
    header->version = next->adopts ? FBK_JOURNAL_VERSION : FBK_JOURNAL_VERSION_PLAIN;
    header->block_size_bytes = journal->options.block_size_bytes;
    header->file_id = next->file_id;
    header->salt = next->salt;
    header->incarnation = journal->options.incarnation;
    header->pair = journal->options.pair;
    header->file_size_bytes = next->size_bytes;
    header->predecessor_file_id = journal->last_file_id;
    header->predecessor_sequence = journal->sequence;
    header->predecessor_crc = journal->last_crc;
    header->first_sequence = journal->sequence + 1;
    header->first_record_sequence = journal->next_record_sequence;
    header->created_s = wall_clock_s();
    memcpy(header->bookie_id, journal->options.bookie_id, sizeof header->bookie_id);
    header->crc = fbk_journal_file_header_crc(header);
}

/* Both blocks in one write: a block is either old or new after a crash, and the reader takes
 * either. */
static int32_t
write_file_headers(struct fbk_journal *journal, const struct fbk_journal_file *next)
{
    struct fbk_journal_file_header header;
    make_file_header(journal, next, &header);
    uint8_t *buffer = journal->slots[journal->first_slot].own; /* nothing is in flight */
    uint32_t block = journal->options.block_size_bytes;
    memset(buffer, 0, 2 * (size_t)block);
    memcpy(buffer, &header, sizeof header);
    memcpy(buffer + block, &header, sizeof header);
    int32_t rc = journal->io->operations->write_wait(journal->io, next->file, buffer, 2 * block, 0,
                                                     FBK_IO_SYNC);
    if (rc != (int32_t)(2 * block))
        return fbk_journal_poison(journal, FBK_POISON_WRITE, 0, 0, rc < 0 ? rc : -EIO);
    return 0;
}

/* A file that is left behind is whole on the disk, however its batches were written. */
static int32_t
sync_if_unsynced(struct fbk_journal *journal)
{
    if (!journal->options.unsynced || !journal->file.file_id)
        return 0;
    int32_t rc = journal->io->operations->sync(journal->io, journal->file.file);
    return rc < 0 ? fbk_journal_poison(journal, FBK_POISON_WRITE, 0, journal->offset_bytes, rc) : 0;
}

int32_t
fbk_journal_roll(struct fbk_journal *journal, const struct fbk_journal_file *next,
                 uint64_t *closed_sequence)
{
    if (journal->poison)
        return FBK_E_POISONED;
    if (journal->slot_count > 0)
        return -EBUSY;
    uint64_t block = journal->options.block_size_bytes;
    if (next->file < 0 || next->file_id <= journal->last_file_id || next->size_bytes % block != 0 ||
        next->size_bytes <
            FBK_JOURNAL_HEADER_BLOCKS * block + fbk_round_up(journal->buffer_bytes, block) + block)
        return -EINVAL;
    int32_t left_behind = -1;
    if (journal->file.file_id) {
        FBK_KILL_POINT("journal.roll_before_closing_batch");
        int32_t rc = write_closing_batch(journal);
        if (rc < 0)
            return rc;
        FBK_KILL_POINT("journal.roll_after_closing_batch");
        left_behind = journal->file.file;
    }
    /* Everything in the old file is durable: the header may name its end (INV-J4). */
    int32_t rc = sync_if_unsynced(journal);
    if (rc < 0)
        return rc;
    rc = write_file_headers(journal, next);
    if (rc < 0)
        return rc;
    FBK_KILL_POINT("journal.roll_after_headers");
    *closed_sequence = journal->sequence;
    journal->file = *next;
    journal->last_file_id = next->file_id;
    journal->offset_bytes = FBK_JOURNAL_HEADER_BLOCKS * block;
    journal->loose_bytes = 0;
    journal->need_roll = false;
    journal->flight_flags |= FBK_FLIGHT_ROLLED;
    fbk_count(&journal->segment->stats, FBK_C_JOURNAL_ROLLS, 1);
    return left_behind;
}

int32_t
fbk_journal_close(struct fbk_journal *journal)
{
    if (journal->poison)
        return FBK_E_POISONED;
    int32_t rc = settle(journal);
    if (rc < 0)
        return rc;
    for (uint32_t w = 0; w < journal->options.worker_count; w++)
        if (fbk_cursor_load(&journal->workers[w].segment->add_written) != journal->workers[w].taken)
            return -EAGAIN;
    if (journal->file.file_id && !journal->closed) {
        rc = write_closing_batch(journal);
        if (rc >= 0)
            rc = sync_if_unsynced(journal);
        if (rc < 0)
            return rc;
    }
    journal->closed = true;
    return 0;
}

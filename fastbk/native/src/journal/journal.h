/* The journal: takes records out of the workers' add rings, decides about each, commits them in
 * batches, publishes one descriptor a batch.  Its order is the bookie's only order.
 *
 *   journal.c   create, step: what happens when
 *   drain.c     rings -> batch buffer, as decide.c decides (INV-F1, INV-F2)
 *   runs.c      a batch's second pass, in a file that may stay as a log (INV-J6, INV-J7)
 *   commit.c    seal, submit, complete, roll, close (INV-J1, INV-J2)
 *   publish.c   descriptors, exceptions, bells, room
 *   ledgers.c   the table of ledger states, and the index's notices
 *   prewrite.c  files ahead of need
 *   flight.c    what took long
 *   status.c    how it stands
 *   format.c    what is valid on disk
 *   scan.c      reads a file back
 *
 * One thread.  Other processes' segments are mapped read-only and believed nothing. */
#pragma once

#include "base/flight.h"
#include "base/header_hash.h"
#include "base/ledgers.h"
#include "base/segment.h"
#include "base/stats.h"
#include "io/delayed.h"
#include "io/io.h"

#include "boundary/journal.h"
#include "base/slots.h"

_Static_assert(FBK_JOURNAL_WORKERS_MAX == FBK_WORKERS_MAX, "the boundary's number");

struct fbk_journal_worker {
    struct fbk_worker_segment *segment;
    struct fbk_ring ring;
    uint64_t written;  /* last look at add_written, checked */
    uint64_t taken;    /* bytes taken out */
    uint64_t sequence; /* of the next record in the ring */
    uint64_t rung;     /* last ticket its bell was rung for */
    int32_t bell_fd;
};

enum fbk_slot_state {
    FBK_SLOT_FREE = 0,
    FBK_SLOT_FLYING,
    FBK_SLOT_DURABLE, /* or nothing to write: may be published when all before it are */
};

/* A batch from take to publish. */
struct fbk_journal_slot {
    uint8_t *buffer; /* `own`, or a place in the journal's ring */
    uint8_t *own;
    bool has_runs;          /* it may have: its place is in the ring */
    uint32_t content_bytes; /* while records are taken: what they will need at most */
    uint32_t record_count;  /* in the buffer; the descriptor counts those taken */
    uint32_t loose_bytes;   /* of records outside of runs */
    uint32_t records_crc;
    uint32_t state;
    uint32_t worker_mask; /* whose records it holds: woken first */
    uint32_t loose_mask;  /* whose records are not all in runs */
    bool wake_index;      /* fences and checks wait for it */
    bool is_full;         /* something was left in a ring */
    bool has_normal_add;
    uint32_t normal_add_us; /* when its first normal add was received */
    uint32_t first_received_us;
    int64_t received_us_sum; /* of all records, after the first */
    uint64_t ticket;
    uint64_t submitted_ns;
    uint64_t completed_ns;
    /* as of its begin: journal->completed_ns, away_ns, flight_flags */
    uint64_t free_ns;
    uint64_t away_ns;
    uint32_t flight_flags;
    uint64_t first_record_sequence;
    struct fbk_batch_descriptor descriptor;
};

/* ------------ journal/runs.c: what a batch takes, by ledger */
#define FBK_GROUPS_MAX 128u
#define FBK_GROUP_SLOTS 256u
#define FBK_NO_GROUP UINT32_MAX

/* A record that was decided about and is still in its ring. */
struct fbk_journal_taken {
    struct fbk_record record; /* a copy, checked */
    uint64_t position;
    const struct fbk_batch_item *table; /* of a batch of adds in a group: a copy, checked */
    uint32_t worker;
    uint32_t group;
    uint32_t next; /* of its group: number + 1, 0 = none */
    uint32_t reserved;
};

/* The new adds of one ledger. */
struct fbk_journal_group {
    int64_t ledger_id;
    uint64_t bytes;         /* of their entries */
    uint64_t planned_bytes; /* what they may take of the batch */
    uint32_t entry_count;
    uint32_t first, last; /* taken: number + 1 */
    uint32_t slot;
    uint32_t creation_mark;
    uint8_t digest_type;
    bool is_mixed; /* others are not like these */
    bool is_run;
};

struct fbk_journal_batch_plan {
    struct fbk_journal_taken *taken;
    uint64_t taken_max;
    uint8_t *tables;
    uint64_t tables_bytes_max;
    uint64_t tables_bytes;
    uint32_t taken_count;
    uint32_t group_count;
    uint32_t last_group;             /* found last */
    uint16_t slots[FBK_GROUP_SLOTS]; /* by ledger: group + 1, 0 = none */
    struct fbk_journal_group groups[FBK_GROUPS_MAX];
};

struct fbk_journal {
    struct fbk_io *io;
    struct fbk_io_delayed delayed; /* what `io` is once a delay was asked for */
    struct fbk_journal_options options;
    struct fbk_header_key header_key;
    struct fbk_journal_segment *segment;
    struct fbk_index_segment *index;
    struct fbk_journal_worker workers[FBK_WORKERS_MAX];
    struct fbk_ledgers ledgers;
    uint64_t unconfirmed; /* of these: metadata was never seen to list them */
    struct fbk_late_ledger late[FBK_LATE_LEDGERS_MAX]; /* noted, not logged yet */
    uint32_t late_count;
    uint64_t late_others; /* that had no room there */

    /* slots[(first_slot + n) % depth], n < slot_count, in the journal's order */
    struct fbk_journal_slot slots[FBK_JOURNAL_DEPTH_MAX];
    uint64_t buffer_bytes;
    uint32_t first_slot;
    uint32_t slot_count;
    uint32_t rotation; /* whose ring is first in the next batch */

    struct fbk_journal_file file; /* file_id 0: none yet */
    uint64_t offset_bytes;
    uint64_t sequence; /* of the last batch submitted */
    uint64_t published_sequence;
    uint64_t next_record_sequence;
    uint64_t last_file_id;
    uint32_t last_crc; /* the chain */
    uint64_t journal_bytes;
    uint64_t ticket;

    uint64_t order;     /* descriptors ever made */
    uint64_t published; /* descriptors ever published */
    /* ever made: those of unpublished batches are in the segment already, unseen */
    uint64_t exceptions;
    uint64_t runs;         /* the same of run summaries */
    uint64_t notices;      /* of the index's, applied */
    struct fbk_ring tail;  /* size 0: there is none, and no runs */
    uint64_t tail_written; /* bytes ever put there */
    struct fbk_journal_batch_plan plan;
    uint64_t taken_bytes; /* of new adds' entries, since start */
    uint64_t grouped_bytes;
    uint64_t loose_bytes; /* in the current file */
    uint64_t index_rung;
    uint64_t index_rung_ns;

    uint32_t limit;
    bool need_roll;
    struct fbk_flight_recorder recorder;
    uint64_t completed_ns; /* when the last write completed */
    uint64_t returned_ns;  /* when the last step ended */
    /* the longest time between two steps, since the last batch began */
    uint64_t away_ns;
    uint32_t flight_flags; /* FBK_FLIGHT_..., since the last batch began */

    uint64_t reads_only; /* the index's word, at the last take */
    bool stalled;        /* a consumer of descriptors is too far behind: no take */
    bool closed;
    uint32_t poison;
    uint32_t poison_worker;
    uint64_t poison_position;
    int32_t poison_error;
};

/* Whether a ledger that is unknown here is refused (INV-G6). */
static inline bool
fbk_journal_ledgers_full(const struct fbk_journal *journal)
{
    return journal->ledgers.count >= journal->ledgers.ledgers_max ||
           (journal->options.unconfirmed_ledgers_max > 0 &&
            journal->unconfirmed >= journal->options.unconfirmed_ledgers_max);
}
/* journal/ledgers.c: gauges; what the index says of ledgers. */
void fbk_journal_show_ledgers(struct fbk_journal *journal);
int32_t fbk_journal_apply_notices(struct fbk_journal *journal);

/* All return FBK_E_POISONED after having set why, or >= 0. */
int32_t fbk_journal_poison(struct fbk_journal *journal, uint32_t reason, uint32_t worker,
                           uint64_t position, int32_t error);

/* journal/drain.c: fills the slot until it is full or the rings are empty.  1 = something was
 * taken. */
int32_t fbk_journal_drain(struct fbk_journal *journal, struct fbk_journal_slot *slot);

/* journal/runs.c */
/* What a run has in front of its items: its record's header and its own. */
#define FBK_JOURNAL_RUN_FRONT_BYTES (sizeof(struct fbk_record) + sizeof(struct fbk_run_header))
int32_t fbk_journal_runs_init(struct fbk_journal *journal);
void fbk_journal_runs_free(struct fbk_journal *journal);
/* First pass.  Begins a batch. */
int32_t fbk_journal_runs_begin(struct fbk_journal *journal, struct fbk_journal_slot *slot);
/* What the record may need in the batch. */
uint64_t fbk_journal_planned_bytes(struct fbk_journal *journal, const struct fbk_journal_slot *slot,
                                   const struct fbk_record *record);
/* Counts a new add that is written as it came. */
void fbk_journal_count_new(struct fbk_journal *journal, const struct fbk_record *record);
/* Notes what is at the ring's `taken`, for the second pass.  False when its table is not what its
 * header says. */
bool fbk_journal_note_taken(struct fbk_journal *journal, uint32_t w,
                            const struct fbk_record *record, bool is_new, uint64_t planned_bytes);
/* Copies the record behind the others of the batch.  FBK_E_POISONED when its body is not what its
 * header says. */
int32_t fbk_journal_put_loose(struct fbk_journal *journal, struct fbk_journal_slot *slot,
                              uint32_t w, uint64_t position, const struct fbk_record *record);
/* Second pass. */
int32_t fbk_journal_lay_out(struct fbk_journal *journal, struct fbk_journal_slot *slot);

/* journal/commit.c */
int32_t fbk_journal_submit(struct fbk_journal *journal, struct fbk_journal_slot *slot,
                           uint32_t flags);
int32_t fbk_journal_completed(struct fbk_journal *journal,
                              const struct fbk_io_completion *completions, int32_t count);

/* journal/publish.c */
int32_t fbk_journal_room(struct fbk_journal *journal, uint64_t *exceptions_room);
/* Starts the batch behind all others: slot, descriptor's order.  There must be a free slot. */
struct fbk_journal_slot *fbk_journal_begin_slot(struct fbk_journal *journal);
/* Publishes what is durable in prefix order (INV-J1) and rings.  Returns how many. */
int32_t fbk_journal_publish(struct fbk_journal *journal);
/* journal/flight.c */
void fbk_journal_note_turn(struct fbk_journal *journal, uint64_t now_ns);
int32_t fbk_journal_note_return(struct fbk_journal *journal, uint64_t now_ns, int32_t reasons);
void fbk_journal_note_sleep(struct fbk_journal *journal, bool timed_out);
void fbk_journal_note_slow(struct fbk_journal *journal, const struct fbk_journal_slot *slot,
                           uint64_t now_ns);

/* journal/publish.c */
void fbk_journal_add_exception(struct fbk_journal *journal, uint32_t worker, uint64_t position,
                               uint32_t verdict);

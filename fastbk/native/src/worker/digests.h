/* What is known of the digests of ledgers that Apache's clients add to: their frames do not name them, metadata does, and the
 * supervisor reads that.
 *
 * A table of sets of four, one cache line each: nothing is allocated, a ledger that finds its set full takes the place of
 * another.  Who is not in it is not known, and asked for: nothing hangs on remembering. */
#ifndef FBK_WORKER_DIGESTS_H
#define FBK_WORKER_DIGESTS_H

#include "base/layout.h"

#include "boundary/wire.h"

#define FBK_DIGEST_WAYS 4u
#define FBK_DIGESTS_WANTED_MAX 1024u /* ledgers that Python has not asked for yet */
#define FBK_DIGESTS_REPEAT_S 5u      /* before a ledger without an answer is asked for again */
#define FBK_DIGESTS_OLD_S 600u       /* before a known one is: an id may be another ledger's by then */

struct fbk_digest_slot {
    uint64_t key;        /* the ledger's id + 1; 0 = free */
    uint32_t ask_at_s;
    uint8_t digest_type; /* FBK_DIGEST_*; NONE until it is known, and where metadata names none */
    uint8_t reserved[3];
};
_Static_assert(FBK_DIGEST_WAYS * sizeof(struct fbk_digest_slot) == FBK_CACHE_LINE_BYTES, "a set is a cache line");

struct fbk_digests {
    struct fbk_digest_slot *slots;
    uint32_t set_mask;
    uint32_t turn;          /* whose place is taken next */
    uint32_t now_s;         /* as of the last sweep */
    uint32_t wanted_count;
    int64_t wanted[FBK_DIGESTS_WANTED_MAX];
};

struct fbk_worker;
int32_t fbk_digests_init(struct fbk_worker *worker);
void fbk_digests_free(struct fbk_worker *worker);
void fbk_digests_tick(struct fbk_worker *worker);
/* The type of a ledger's digest, NONE when nobody knows (yet); true when it has just become wanted. */
bool fbk_digests_look_up(struct fbk_digests *digests, int64_t ledger_id, uint32_t *digest_type);
/* An entry does not have the digest that its ledger is known to have: soon asked for again.  True as above. */
bool fbk_digests_doubt(struct fbk_digests *digests, int64_t ledger_id);

#endif

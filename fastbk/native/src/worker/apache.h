/* Apache's clients at a worker: each of their requests becomes one of ours, whose id is the number of a *context* that knows
 * what was asked and how to say the answer.  What takes several of ours (a poll, then a read; a fence, then a batch; a list,
 * page by page) is one context that takes one step after the other. */
#ifndef FBK_WORKER_APACHE_H
#define FBK_WORKER_APACHE_H

#include "apache/apache.h"
#include "wire/client.h"

#define FBK_NO_CONTEXT 0xffffffffu
#define FBK_APACHE_BATCH_ENTRIES_MAX 8192u /* as many as one of our batches has */
#define FBK_APACHE_PAGE_RANGES 16384u      /* of a list, in one answer of an index */
#define FBK_APACHE_LISTS 8u                /* under way that have a page already */
#define FBK_APACHE_LIST_RANGES_MAX (1u << 20)  /* of one list; 16 bytes each */
#define FBK_APACHE_LISTS_RANGES_MAX (1u << 21) /* of all of them */

/* Which answer a context waits for. */
enum fbk_apache_step {
    FBK_STEP_LAST,  /* it is the answer */
    FBK_STEP_FENCE, /* then a batch is read */
    FBK_STEP_POLL,  /* then an entry is read */
    FBK_STEP_PAGE,  /* then the next page, unless it was the last */
};

struct fbk_apache_context {
    struct fbk_apache_asked asked;
    uint32_t generation;          /* rises with each use: a late answer names an older one */
    uint32_t slot;                /* of its connection; FBK_NO_CONNECTION: it is free */
    uint32_t next, previous;      /* of its connection's, or of the free ones */
    uint32_t line_next, line_previous; /* of those that wait for room in a request ring */
    uint32_t received_us;
    uint32_t flags;               /* FBK_APACHE_* */
    int64_t ledger_id;
    int64_t entry_id;
    union {
        int64_t previous_lac;   /* polls */
        int64_t size_bytes_max; /* batches: of the whole reply, as Apache counts */
        int64_t first_entry_id; /* lists: of the next page */
    };
    uint32_t count_max;           /* batches */
    uint8_t step;                 /* FBK_STEP_* */
    uint8_t lane;                 /* whose line it stands in */
    uint8_t list;                 /* its memory, + 1; 0 = none */
    bool is_in_line;
};
_Static_assert(sizeof(struct fbk_apache_context) <= 112, "contexts are many");

/* The ranges of a list whose pages are still coming. */
struct fbk_apache_list {
    int64_t *ranges; /* NULL: free */
    uint32_t count, room;
};

/* A read that waits for the LAC to pass a value. */
static inline bool
fbk_apache_is_poll(uint32_t operation, uint32_t flags)
{
    return operation == FBK_APACHE_READ &&
           (flags & (FBK_APACHE_HAS_PREVIOUS_LAC | FBK_APACHE_FENCE)) == FBK_APACHE_HAS_PREVIOUS_LAC;
}

struct fbk_context_line {
    uint32_t first, last;
};

/* A worker's part for Apache's clients. */
struct fbk_worker_apache {
    struct fbk_apache_context *contexts;
    uint32_t context_count; /* ever used: those behind it were never touched */
    uint32_t free_first;    /* the one freed last comes first: it is still in the cache */
    uint32_t used;
    uint32_t adds, reads, polls; /* of those in use */
    bool freed;             /* one was given back since those who wait for one had their turn */
    struct fbk_context_line lines[FBK_PAIRS_MAX];
    struct fbk_apache_list lists[FBK_APACHE_LISTS];
    uint64_t list_ranges; /* room of all of them */
    uint8_t *sizes;       /* of the entries of one batch reply: a copy that nobody changes */
    uint8_t *frame;       /* a large reply until the socket has it */
};

#endif

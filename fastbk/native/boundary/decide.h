/* The bookie's decisions over a table of ledger states, without journal and index around them: what
 * simulated bookies run. */

/* What becomes of a record.  The journal turns some of these into a verdict of the batch descriptor
 * (status.h): FBK_TAKE_CHECK is published as FBK_V_CHECK, FBK_TAKE_ORDERED as FBK_V_ORDERED,
 * FBK_TAKE_REFUSED as the status. */
#define FBK_TAKE_NEW 0     /* written; acknowledged when durable */
#define FBK_TAKE_CHECK 1   /* written; acknowledged after a look at what is stored */
#define FBK_TAKE_FENCE 2   /* written; answered by the index */
#define FBK_TAKE_ORDERED 3 /* a fence of a fenced ledger: goes through the order only */
#define FBK_TAKE_BARRIER 4 /* force */
#define FBK_TAKE_REFUSED 5 /* the status says why */

struct fbk_decide_table;

/* One record, and what the bookie has room for. */
struct fbk_decide_request {
    int64_t ledger_id;
    int64_t entry_id;       /* first of a batch */
    uint32_t entry_count;   /* 1 for an add, 0 for a fence */
    uint32_t kind;          /* FBK_KIND_*: 1 add, 2 batch add, 3 fence, 4 force */
    uint32_t flags;         /* 1 = recovery */
    uint32_t journal_limit; /* FBK_JOURNAL_* */
    uint32_t reads_only;
    uint8_t master_key[20];
    uint32_t creation_mark; /* 0 = not said */
};

/* NULL without memory. */
struct fbk_decide_table *fbk_decide_table_create(uint64_t ledgers_max);
struct fbk_decide_table *fbk_decide_table_copy(const struct fbk_decide_table *table);
void fbk_decide_table_destroy(struct fbk_decide_table *table);
uint64_t fbk_decide_table_count(const struct fbk_decide_table *table);

/* The verdict FBK_TAKE_*, *status, and the state changed by it; FBK_E_FULL without memory. */
int32_t fbk_decide_table_decide(struct fbk_decide_table *table,
                                const struct fbk_decide_request *request, uint32_t *status);
/* What a record read back from the journal leaves behind, whatever is in the table; adds are noted
 * by `stored`. */
int32_t fbk_decide_table_replay(struct fbk_decide_table *table,
                                const struct fbk_decide_request *request);
/* An entry was stored. 1: its ledger's LAC grew, 0, FBK_E_FULL. */
int32_t fbk_decide_table_stored(struct fbk_decide_table *table, int64_t ledger_id, int64_t entry_id,
                                int64_t lac);
/* What metadata says of a ledger: 1 deleted, 2 out of limbo, 3 out of limbo and fenced. 1: its
 * state changed, 0. */
int32_t fbk_decide_table_notice(struct fbk_decide_table *table, int64_t ledger_id, uint32_t what);
/* The status for something that is not there: FBK_S_NO_LEDGER, NO_ENTRY or CANNOT_TELL. */
uint32_t fbk_decide_table_no(const struct fbk_decide_table *table, int64_t ledger_id,
                             uint32_t in_doubt);

/* 72 bytes each: struct fbk_ledger_state. get: 1 found, 0. put: FBK_E_CORRUPT, FBK_E_FULL. */
int32_t fbk_decide_table_get(const struct fbk_decide_table *table, int64_t ledger_id,
                             uint8_t *state);
int32_t fbk_decide_table_put(struct fbk_decide_table *table, const uint8_t *state);
/* *cursor starts at 0; 0 at the end. */
int32_t fbk_decide_table_next(const struct fbk_decide_table *table, uint64_t *cursor,
                              uint8_t *state);

/* Do two entries have the same ids, length field and data?  Their LACs and digests may differ. */
int32_t fbk_python_entry_same(const uint8_t *a, uint32_t a_bytes, const uint8_t *b,
                              uint32_t b_bytes, uint32_t digest_type);

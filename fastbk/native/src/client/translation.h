/* What the files of the translation for Apache's bookies share (boundary/apache_translation.h). */
#pragma once

#include "apache/apache.h"
#include "client/apache_pending.h"
#include "wire/client.h"
#include "wire/schema.h"
#include "wire/wire.h"

#include "boundary/apache_translation.h"

enum translation_kind {
    KIND_FREE,
    KIND_HELLO,
    KIND_INFO,
    KIND_POLL, /* a read that waits; then perhaps a question for the LAC's proof */
    KIND_PROOF,
    KIND_LIST,
    KIND_RUN,   /* ReadBatch as one request of version 2 */
    KIND_BATCH, /* ReadBatch as single reads */
};

/* One read of a BATCH. */
struct translation_part {
    uint64_t from; /* the entry's bytes in `bytes` of the context */
    uint32_t size_bytes;
    uint32_t status; /* FBK_APACHE_E*, PART_WAITING */
};
#define PART_WAITING UINT32_MAX

struct translation_context {
    enum translation_kind kind;
    bool is_forgotten;
    uint64_t request_id;
    int64_t ledger_id;
    int64_t first; /* the first entry; POLL: previous_lac */
    uint32_t count_max;
    uint64_t size_bytes_max;
    bool is_piggyback;
    /* BATCH */
    uint32_t sent;
    uint32_t answered;
    bool is_over; /* no more is asked for */
    int64_t lac;
    struct translation_part *parts;
    struct fbk_bytes entries;
};

#define CONTEXTS_MAX 4096u
/* Numbers that no request of ours has: its slot (connection.py) is above the last one that is given
 * out. */
#define ID_BASE (0xffffffull << 40)
#define PART_BITS 16u
/* Single reads of one batch under way at once, until the sizes of entries are known and after
 * that. */
#define FIRST_READS 8u
#define READS_MAX 64u
#define BATCH_ENTRIES_MAX 4096u
#define RANGES_MAX (1u << 20)

struct fbk_apache_translation {
    uint32_t protocol;
    uint32_t frame_size_bytes_max;
    bool takes_batches;
    bool has_batch_answer;
    bool has_batch_request;
    uint64_t dropped;
    struct fbk_bytes in;      /* the beginning of a frame of the bookie's */
    struct fbk_bytes out;     /* to the bookie */
    struct fbk_bytes answers; /* to the client */
    struct fbk_pending_map pending;
    /* CONTEXTS_MAX of them; those from context_end on were never used */
    struct translation_context *contexts;
    uint32_t context_end;
};

/* ---- client/apache_translation.c */
/* NULL: CONTEXTS_MAX are under way. */
struct translation_context *fbk_translation_context_new(struct fbk_apache_translation *translation,
                                                        enum translation_kind kind,
                                                        const struct fbk_request *original);
void fbk_translation_context_end(struct translation_context *context);
uint64_t fbk_translation_id(const struct fbk_apache_translation *translation,
                            const struct translation_context *context, uint32_t part);
/* 0, FBK_E_FULL. */
int32_t fbk_translation_answer(struct fbk_apache_translation *translation, uint64_t request_id,
                               uint32_t status);

/* ---- client/apache_requests.c */
/* Sends it to the bookie; `id` comes back with the answer.  0, FBK_E_FULL; *status is not FBK_S_OK
 * when it can't be sent. */
int32_t fbk_translation_send(struct fbk_apache_translation *translation,
                             struct fbk_apache_request *request, uint64_t id, uint32_t *status);
/* Sends the single reads that are due.  0, FBK_E_FULL. */
int32_t fbk_translation_read_on(struct fbk_apache_translation *translation,
                                struct translation_context *context);

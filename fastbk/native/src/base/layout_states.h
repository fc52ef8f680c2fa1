/* What is known of a ledger beside its entries, and what metadata says of it.  Part of
 * base/layout.h, whose rules hold. */
#pragma once

#include "base/base.h"

#define FBK_MASTER_KEY_BYTES 20u

#define FBK_LEDGER_FENCED 1u
#define FBK_LEDGER_LIMBO 2u
#define FBK_LEDGER_DELETED 4u
#define FBK_LEDGER_HAS_KEY 8u
/* its copies were dropped: others hold them, and nothing came since */
#define FBK_LEDGER_DROPPED 16u
#define FBK_LEDGER_DROPPING 32u /* they are being dropped; counts in memory only */
/* made by a client's record, and metadata was never seen to list it since (INV-G4) */
#define FBK_LEDGER_UNCONFIRMED 64u
/* takes nothing until metadata was read once more; counts in memory only (INV-G5) */
#define FBK_LEDGER_EXPIRING 128u
/* metadata listed it before its first record came; until that comes */
#define FBK_LEDGER_LISTED 256u

/* In locations files and in the memory file that hands all states to the journal at start.  72
 * bytes. */
struct fbk_ledger_state {
    int64_t ledger_id;
    int64_t highest_entry_id; /* -1 = none */
    /* highest LAC seen in an entry or an explicit LAC, -1 = none */
    int64_t lac;
    uint64_t changed_sequence; /* batch sequence of the last change */
    uint32_t flags;
    uint8_t master_key[FBK_MASTER_KEY_BYTES];
    uint32_t deleted_s; /* wall clock, when deleted; 0 = not */
    /* of the ledger's creation token (INV-T1), 0 = none; came with the key */
    uint32_t creation_mark;
    uint32_t reserved;
    uint32_t crc; /* CRC32C of the 68 bytes before it */
};
_Static_assert(sizeof(struct fbk_ledger_state) == 72, "ledger state");

/* What metadata says of a ledger reaches the index through gc, and the journal through these. */
#define FBK_NOTICE_DELETED 1u
#define FBK_NOTICE_LIMBO_OVER 2u
#define FBK_NOTICE_LIMBO_OVER_FENCED 3u
/* no file knows the deleted ledger any more: neither do we */
#define FBK_NOTICE_FORGOTTEN 4u
#define FBK_NOTICE_CONFIRMED 5u /* metadata lists it, with this key and creation */
/* metadata did not for too long: take nothing until it was read once more */
#define FBK_NOTICE_EXPIRING 6u
/* metadata lists a ledger that is not here yet: it counts as confirmed from its first record on */
#define FBK_NOTICE_LISTED 7u
/* metadata is proven not to list it any more, and it was fenced: deleted, and its writer hears
 * so */
#define FBK_NOTICE_ENDED 8u
struct fbk_notice {
    int64_t ledger_id;
    uint32_t what;
    uint32_t reserved;
    uint64_t sequence; /* FORGOTTEN: not if a later batch changed the state */
};
_Static_assert(sizeof(struct fbk_notice) == 24, "notice");

/* The journal's answer to FBK_NOTICE_FORGOTTEN: the order of the first batch that was decided
 * without the state; or this. */
#define FBK_NOTICE_KEPT UINT64_MAX

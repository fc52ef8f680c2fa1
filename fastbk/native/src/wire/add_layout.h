/* The one layout in which our own client writes an Add: shared by its encoder and by the bookie's
 * reader, which knows it by its constants and then need not walk it.  Any other valid layout is
 * read field by field. */
#pragma once

#include "base/base.h"
#include "wire/schema.h"

struct fbk_add_frame {
    uint32_t size_bytes;
    /* from here on constant ... */
    uint32_t root;
    uint16_t request_vtable[6];
    uint16_t add_vtable[8];
    int32_t request_vtable_back; /* the Request table starts here, at 36 */
    /* ... up to here */
    uint64_t request_id;
    uint32_t body; /* constant from here ... */
    uint8_t body_type;
    uint8_t padding2[3]; /* ... up to here */
    uint32_t creation_mark;
    int32_t add_vtable_back; /* constant; the Add table starts here, at 60 */
    int64_t ledger_id;
    int64_t entry_id;
    uint32_t flags;
    uint32_t entry; /* constant */
    uint8_t master_key[20];
    uint8_t digest_type;
    uint8_t padding3[3];
    uint32_t entry_bytes; /* the vector; its bytes follow, and nothing behind them */
    uint32_t end;
};
#define FBK_ADD_FRAME_BYTES 116u
_Static_assert(offsetof(struct fbk_add_frame, end) == FBK_ADD_FRAME_BYTES, "layout");
_Static_assert(offsetof(struct fbk_add_frame, request_vtable_back) == 36, "layout");
_Static_assert(offsetof(struct fbk_add_frame, request_id) == 40, "layout");
/* in each frame of our client but a batch add: at offset 20 of the Request table */
#define FBK_FRAME_CREATION_MARK_AT 56u
_Static_assert(offsetof(struct fbk_add_frame, creation_mark) == FBK_FRAME_CREATION_MARK_AT,
               "layout");
_Static_assert(offsetof(struct fbk_add_frame, add_vtable_back) == 60, "layout");
_Static_assert(offsetof(struct fbk_add_frame, ledger_id) == 64, "layout");

static const struct fbk_add_frame fbk_add_frame_constants = {
    .root = 32,
    .request_vtable = {12, 24, 4, 16, 12, 20},
    .add_vtable = {16, 49, 4, 12, 20, 48, 28, 24},
    .request_vtable_back = 36 - 8,
    .body = 60 - 48,
    .body_type = FBK_REQUEST_BODY_ADD,
    .add_vtable_back = 60 - 20,
    .entry = 112 - 84,
};

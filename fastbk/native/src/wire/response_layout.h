/* The one layout in which the index writes each kind of response: shared by its encoder (wire/responses.c) and by the worker's
 * reader of the same bytes (wire/response_fields.c). */
#ifndef FBK_WIRE_REPLY_LAYOUT_H
#define FBK_WIRE_REPLY_LAYOUT_H

#include "wire/schema.h"
#include "wire/wire.h"

#define FBK_RESPONSE_REQUEST_ID_AT 4
#define FBK_RESPONSE_BODY_AT 12
#define FBK_RESPONSE_STATUS_AT 16
#define FBK_RESPONSE_BODY_TYPE_AT 18

/* Response { request_id, status, body_type, body } as every response with a body has it. */
struct fbk_response_table {
    int32_t vtable; /* from here back to the vtable */
    uint32_t request_id[2];
    uint32_t body;  /* from here on to the body's table */
    uint16_t status;
    uint8_t body_type;
    uint8_t padding[5];
};
_Static_assert(sizeof(struct fbk_response_table) == 24, "no holes");

#define FBK_RESPONSE_VTABLE {12, 19, FBK_RESPONSE_REQUEST_ID_AT, FBK_RESPONSE_STATUS_AT, FBK_RESPONSE_BODY_TYPE_AT, FBK_RESPONSE_BODY_AT}

struct fbk_status_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t vtable[4];
    uint32_t padding;
    int32_t table_vtable; /* the table starts here, at 20 */
    uint64_t request_id;
    uint16_t status;
    uint16_t padding2;
    uint32_t end;
};
#define FBK_STATUS_FRAME_BYTES offsetof(struct fbk_status_frame, end)
_Static_assert(FBK_STATUS_FRAME_BYTES == 36 && FBK_STATUS_FRAME_BYTES <= FBK_WIRE_STATUS_BYTES_MAX, "layout");
_Static_assert(FBK_STATUS_FRAME_BYTES == FBK_WIRE_STATUS_BYTES, "layout");

struct fbk_read_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[6];
    uint16_t body_vtable[5];
    uint16_t padding[3];
    struct fbk_response_table response; /* at 36 */
    int32_t table_vtable;           /* the body's table starts here, at 60 */
    int64_t entry_id;
    int64_t lac;
    uint32_t entry;       /* from here on to the vector */
    uint32_t entry_bytes; /* the vector; its bytes follow */
};
_Static_assert(offsetof(struct fbk_read_frame, response) == 36, "layout");
_Static_assert(offsetof(struct fbk_read_frame, table_vtable) == 60, "layout");
_Static_assert(sizeof(struct fbk_read_frame) == 88, "layout");

struct fbk_read_batch_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[6];
    uint16_t body_vtable[6];
    uint16_t padding[2];
    struct fbk_response_table response; /* at 36 */
    int32_t table_vtable;           /* at 60 */
    int64_t lac;
    int64_t next_entry_id;
    uint32_t entry_sizes;
    uint32_t entries;
    uint32_t entry_count; /* the vector of sizes; then the vector of bytes */
    uint32_t end;
};
#define FBK_READ_BATCH_HEAD_BYTES offsetof(struct fbk_read_batch_frame, end)
_Static_assert(offsetof(struct fbk_read_batch_frame, response) == 36, "layout");
_Static_assert(offsetof(struct fbk_read_batch_frame, table_vtable) == 60, "layout");
_Static_assert(FBK_READ_BATCH_HEAD_BYTES == 92, "layout");
_Static_assert(FBK_READ_BATCH_HEAD_BYTES + 4 + 4 + 3 <= FBK_ENTRY_ROOM_BYTES, "one size, the vector's length, padding");

struct fbk_read_lac_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[6];
    uint16_t body_vtable[7];
    uint16_t padding;
    struct fbk_response_table response; /* at 36 */
    int32_t table_vtable;           /* at 60 */
    int64_t lac;
    int64_t last_entry_id;
    uint32_t lac_body;   /* at 80; absent (vtable 0) when there is none */
    uint32_t last_entry; /* at 84; the same */
    uint8_t fenced;
    uint8_t padding2[3];
    uint32_t end;
};
#define FBK_READ_LAC_HEAD_BYTES offsetof(struct fbk_read_lac_frame, end)
_Static_assert(offsetof(struct fbk_read_lac_frame, response) == 36, "layout");
_Static_assert(offsetof(struct fbk_read_lac_frame, table_vtable) == 60, "layout");
_Static_assert(offsetof(struct fbk_read_lac_frame, lac_body) == 80, "layout");
_Static_assert(FBK_READ_LAC_HEAD_BYTES == 92, "layout");
_Static_assert(FBK_READ_LAC_HEAD_BYTES + 4 + 3 <= FBK_ENTRY_ROOM_BYTES, "the vector's length, padding");

struct fbk_list_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[6];
    uint16_t body_vtable[4];
    uint16_t padding[4];
    struct fbk_response_table response; /* at 36 */
    int32_t table_vtable;           /* at 60 */
    int64_t next_entry_id;
    uint32_t ranges;
    uint32_t range_count; /* the vector, at 76: its structs are aligned to 8 */
    uint32_t end[2];
};
#define FBK_LIST_HEAD_BYTES offsetof(struct fbk_list_frame, end)
_Static_assert(offsetof(struct fbk_list_frame, response) == 36, "layout");
_Static_assert(offsetof(struct fbk_list_frame, table_vtable) == 60, "layout");
_Static_assert(FBK_LIST_HEAD_BYTES == 80, "layout");

#endif

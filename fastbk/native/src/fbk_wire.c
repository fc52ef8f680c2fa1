/* Encodes responses.  Each kind has one fixed layout, a struct below: vtables and offsets are constants, the
 * scalars are filled in, vectors come last.  They are ordinary flatbuffers: offsets count from the field that
 * holds them, alignment counts from the frame's first byte (its length prefix). */
#include "fbk_wire.h"

#include "fbk_schema.h"

#define REQUEST_ID_AT 4
#define BODY_AT 12
#define STATUS_AT 16
#define BODY_TYPE_AT 18

/* Response { request_id, status, body_type, body } as every response with a body has it. */
struct response_table {
    int32_t vtable; /* from here back to the vtable */
    uint32_t request_id[2];
    uint32_t body;  /* from here on to the body's table */
    uint16_t status;
    uint8_t body_type;
    uint8_t padding[5];
};
_Static_assert(sizeof(struct response_table) == 24, "no holes");

#define RESPONSE_VTABLE {12, 19, REQUEST_ID_AT, STATUS_AT, BODY_TYPE_AT, BODY_AT}

static uint32_t
padded(uint64_t size_bytes)
{
    return (uint32_t)fbk_round_up(size_bytes, 4);
}

/* Frames are padded to 4 with zeros, so that nothing of the buffer's past goes out. */
static uint32_t
end_frame(uint8_t *out, uint64_t used_bytes)
{
    uint32_t size_bytes = padded(used_bytes);
    memset(out + used_bytes, 0, size_bytes - used_bytes);
    fbk_store_u32(out, size_bytes - 4);
    return size_bytes;
}

/* ------------------------------------------------------------------ a status alone */

struct status_frame {
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
#define STATUS_FRAME_BYTES offsetof(struct status_frame, end)
_Static_assert(STATUS_FRAME_BYTES == 36 && STATUS_FRAME_BYTES <= FBK_WIRE_STATUS_BYTES_MAX, "layout");
_Static_assert(STATUS_FRAME_BYTES == FBK_WIRE_STATUS_BYTES, "layout");

uint32_t
fbk_wire_put_status(uint8_t *out, uint64_t request_id, uint32_t status)
{
    const struct status_frame frame = {
        .size_bytes = STATUS_FRAME_BYTES - 4,
        .root = 16,
        .vtable = {8, 14, 4, 12},
        .table_vtable = 12,
        .request_id = request_id,
        .status = (uint16_t)status,
    };
    memcpy(out, &frame, STATUS_FRAME_BYTES);
    return STATUS_FRAME_BYTES;
}

/* ------------------------------------------------------------------ ReadReply */

struct read_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[6];
    uint16_t body_vtable[5];
    uint16_t padding[3];
    struct response_table response; /* at 36 */
    int32_t table_vtable;           /* the body's table starts here, at 60 */
    int64_t entry_id;
    int64_t lac;
    uint32_t entry;       /* from here on to the vector */
    uint32_t entry_bytes; /* the vector; its bytes follow */
};
_Static_assert(offsetof(struct read_frame, response) == 36, "layout");
_Static_assert(offsetof(struct read_frame, table_vtable) == 60, "layout");
_Static_assert(sizeof(struct read_frame) == 88, "layout");

static struct response_table
response_of(uint64_t request_id, uint32_t status, uint8_t body_type)
{
    struct response_table response = {
        .vtable = 36 - 8,
        .body = 60 - (36 + BODY_AT),
        .status = (uint16_t)status,
        .body_type = body_type,
    };
    memcpy(response.request_id, &request_id, 8);
    return response;
}

_Static_assert(sizeof(struct read_frame) + 3 <= FBK_ENTRY_ROOM_BYTES, "padding");

uint32_t
fbk_wire_read_size(uint32_t entry_bytes)
{
    return padded(sizeof(struct read_frame) + (uint64_t)entry_bytes);
}

uint32_t
fbk_wire_put_read(uint8_t *out, uint64_t request_id, uint32_t status, int64_t entry_id, int64_t lac, const uint8_t *entry,
                  uint32_t entry_bytes, uint8_t **entry_at)
{
    const struct read_frame frame = {
        .root = 32,
        .response_vtable = RESPONSE_VTABLE,
        .body_vtable = {10, 24, 4, 12, 20},
        .response = response_of(request_id, status, FBK_RESPONSE_BODY_READ_REPLY),
        .table_vtable = 60 - 20,
        .entry_id = entry_id,
        .lac = lac,
        .entry = 4,
        .entry_bytes = entry_bytes,
    };
    memcpy(out, &frame, sizeof frame);
    if (entry != NULL)
        memcpy(out + sizeof frame, entry, entry_bytes);
    if (entry_at != NULL)
        *entry_at = out + sizeof frame;
    return end_frame(out, sizeof frame + (uint64_t)entry_bytes);
}

/* ------------------------------------------------------------------ ReadBatchReply */

struct read_batch_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[6];
    uint16_t body_vtable[6];
    uint16_t padding[2];
    struct response_table response; /* at 36 */
    int32_t table_vtable;           /* at 60 */
    int64_t lac;
    int64_t next_entry_id;
    uint32_t entry_sizes;
    uint32_t entries;
    uint32_t entry_count; /* the vector of sizes; then the vector of bytes */
    uint32_t end;
};
#define READ_BATCH_HEAD_BYTES offsetof(struct read_batch_frame, end)
_Static_assert(offsetof(struct read_batch_frame, response) == 36, "layout");
_Static_assert(offsetof(struct read_batch_frame, table_vtable) == 60, "layout");
_Static_assert(READ_BATCH_HEAD_BYTES == 92, "layout");
_Static_assert(READ_BATCH_HEAD_BYTES + 4 + 4 + 3 <= FBK_ENTRY_ROOM_BYTES, "one size, the vector's length, padding");

uint32_t
fbk_wire_read_batch_size(uint32_t entry_count, uint64_t entries_bytes)
{
    return padded(READ_BATCH_HEAD_BYTES + 4ull * entry_count + 4 + entries_bytes);
}

uint32_t
fbk_wire_put_read_batch(uint8_t *out, uint64_t request_id, uint32_t status, int64_t lac, int64_t next_entry_id,
                        uint32_t entry_count, uint32_t entries_bytes, uint8_t **sizes_at, uint8_t **entries_at)
{
    const struct read_batch_frame frame = {
        .root = 32,
        .response_vtable = RESPONSE_VTABLE,
        .body_vtable = {12, 28, 4, 12, 20, 24},
        .response = response_of(request_id, status, FBK_RESPONSE_BODY_READ_BATCH_REPLY),
        .table_vtable = 60 - 20,
        .lac = lac,
        .next_entry_id = next_entry_id,
        .entry_sizes = 8,
        .entries = 8 + 4 * entry_count,
        .entry_count = entry_count,
    };
    uint64_t entries_from = READ_BATCH_HEAD_BYTES + 4ull * entry_count;
    memcpy(out, &frame, READ_BATCH_HEAD_BYTES);
    fbk_store_u32(out + entries_from, entries_bytes);
    *sizes_at = out + READ_BATCH_HEAD_BYTES;
    *entries_at = out + entries_from + 4;
    return end_frame(out, entries_from + 4 + entries_bytes);
}

/* ------------------------------------------------------------------ ReadLacReply */

struct read_lac_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[6];
    uint16_t body_vtable[7];
    uint16_t padding;
    struct response_table response; /* at 36 */
    int32_t table_vtable;           /* at 60 */
    int64_t lac;
    int64_t last_entry_id;
    uint32_t lac_body;   /* at 80; absent (vtable 0) when there is none */
    uint32_t last_entry; /* at 84; the same */
    uint8_t fenced;
    uint8_t padding2[3];
    uint32_t end;
};
#define READ_LAC_HEAD_BYTES offsetof(struct read_lac_frame, end)
_Static_assert(offsetof(struct read_lac_frame, response) == 36, "layout");
_Static_assert(offsetof(struct read_lac_frame, table_vtable) == 60, "layout");
_Static_assert(offsetof(struct read_lac_frame, lac_body) == 80, "layout");
_Static_assert(READ_LAC_HEAD_BYTES == 92, "layout");
_Static_assert(READ_LAC_HEAD_BYTES + 4 + 3 <= FBK_ENTRY_ROOM_BYTES, "the vector's length, padding");

static uint64_t
vector_bytes(uint32_t size_bytes)
{
    return size_bytes == 0 ? 0 : 4 + (uint64_t)size_bytes;
}

uint32_t
fbk_wire_read_lac_size(uint32_t body_bytes, uint32_t entry_bytes)
{
    return padded(READ_LAC_HEAD_BYTES + fbk_round_up(vector_bytes(body_bytes), 4) + vector_bytes(entry_bytes));
}

uint32_t
fbk_wire_put_read_lac(uint8_t *out, uint64_t request_id, uint32_t status, int64_t lac, bool fenced, const uint8_t *body,
                      uint32_t body_bytes, int64_t last_entry_id, const uint8_t *entry, uint32_t entry_bytes,
                      uint8_t **entry_at)
{
    uint64_t body_from = READ_LAC_HEAD_BYTES;
    uint64_t body_end = body_from + vector_bytes(body_bytes);
    uint64_t entry_from = fbk_round_up(body_end, 4);
    const struct read_lac_frame frame = {
        .root = 32,
        .response_vtable = RESPONSE_VTABLE,
        .body_vtable = {14, 29, 4, 28, body_bytes != 0 ? 20 : 0, entry_bytes != 0 ? 24 : 0, 12},
        .response = response_of(request_id, status, FBK_RESPONSE_BODY_READ_LAC_REPLY),
        .table_vtable = 60 - 20,
        .lac = lac,
        .last_entry_id = last_entry_id,
        .lac_body = body_bytes != 0 ? (uint32_t)(body_from - 80) : 0,
        .last_entry = entry_bytes != 0 ? (uint32_t)(entry_from - 84) : 0,
        .fenced = fenced,
    };
    memcpy(out, &frame, READ_LAC_HEAD_BYTES);
    if (body_bytes != 0) {
        fbk_store_u32(out + body_from, body_bytes);
        memcpy(out + body_from + 4, body, body_bytes);
        memset(out + body_end, 0, entry_from - body_end);
    }
    if (entry_at != NULL)
        *entry_at = out + entry_from + 4;
    if (entry_bytes == 0)
        return end_frame(out, entry_from);
    fbk_store_u32(out + entry_from, entry_bytes);
    if (entry != NULL)
        memcpy(out + entry_from + 4, entry, entry_bytes);
    return end_frame(out, entry_from + 4 + entry_bytes);
}

/* ------------------------------------------------------------------ ListEntriesReply */

struct list_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[6];
    uint16_t body_vtable[4];
    uint16_t padding[4];
    struct response_table response; /* at 36 */
    int32_t table_vtable;           /* at 60 */
    int64_t next_entry_id;
    uint32_t ranges;
    uint32_t range_count; /* the vector, at 76: its structs are aligned to 8 */
    uint32_t end[2];
};
#define LIST_HEAD_BYTES offsetof(struct list_frame, end)
_Static_assert(offsetof(struct list_frame, response) == 36, "layout");
_Static_assert(offsetof(struct list_frame, table_vtable) == 60, "layout");
_Static_assert(LIST_HEAD_BYTES == 80, "layout");

uint32_t
fbk_wire_list_size(uint32_t range_count)
{
    return (uint32_t)(LIST_HEAD_BYTES + 16ull * range_count);
}

uint32_t
fbk_wire_put_list(uint8_t *out, uint64_t request_id, uint32_t status, int64_t next_entry_id, const int64_t *ranges,
                  uint32_t range_count)
{
    const struct list_frame frame = {
        .root = 32,
        .response_vtable = RESPONSE_VTABLE,
        .body_vtable = {8, 16, 4, 12},
        .response = response_of(request_id, status, FBK_RESPONSE_BODY_LIST_ENTRIES_REPLY),
        .table_vtable = 60 - 20,
        .next_entry_id = next_entry_id,
        .ranges = 4,
        .range_count = range_count,
    };
    memcpy(out, &frame, LIST_HEAD_BYTES);
    if (range_count != 0)
        memcpy(out + LIST_HEAD_BYTES, ranges, 16ull * range_count);
    return end_frame(out, LIST_HEAD_BYTES + 16ull * range_count);
}

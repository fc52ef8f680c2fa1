/* Responses as an index writes them and its own worker reads them.  Each kind has one fixed layout:
 * vtables and offsets are constants.  The encoder fills in a template; the worker's reader knows
 * the frame by the same constants and need not walk it, whatever happens to the frame's memory
 * meanwhile.  They are ordinary flatbuffers: offsets count from the field that holds them,
 * alignment counts from the frame's first byte (its length prefix). */
#include "wire/wire.h"

#include "wire/client.h"
#include "wire/schema.h"

#define FBK_RESPONSE_REQUEST_ID_AT 4
#define FBK_RESPONSE_BODY_AT 12
#define FBK_RESPONSE_STATUS_AT 16
#define FBK_RESPONSE_BODY_TYPE_AT 18
#define FBK_RESPONSE_ADD_WAIT_US_AT 20

/* Response { request_id, status, body_type, body, add_wait_us } as every response with a body has
 * it. */
struct fbk_response_table {
    int32_t vtable; /* from here back to the vtable */
    uint32_t request_id[2];
    uint32_t body; /* from here on to the body's table */
    uint16_t status;
    uint8_t body_type;
    uint8_t padding;
    uint32_t add_wait_us;
};
_Static_assert(sizeof(struct fbk_response_table) == 24, "no holes");

#define FBK_RESPONSE_VTABLE      \
    {14,                         \
     24,                         \
     FBK_RESPONSE_REQUEST_ID_AT, \
     FBK_RESPONSE_STATUS_AT,     \
     FBK_RESPONSE_BODY_TYPE_AT,  \
     FBK_RESPONSE_BODY_AT,       \
     FBK_RESPONSE_ADD_WAIT_US_AT}

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
_Static_assert(FBK_STATUS_FRAME_BYTES == 36 && FBK_STATUS_FRAME_BYTES <= FBK_WIRE_STATUS_BYTES_MAX,
               "layout");
_Static_assert(FBK_STATUS_FRAME_BYTES == FBK_WIRE_STATUS_BYTES, "layout");

struct fbk_read_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[7];
    uint16_t body_vtable[5];
    uint16_t padding[2];
    struct fbk_response_table response; /* at 36 */
    int32_t table_vtable;               /* the body's table starts here, at 60 */
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
    uint16_t response_vtable[7];
    uint16_t body_vtable[6];
    uint16_t padding;
    struct fbk_response_table response; /* at 36 */
    int32_t table_vtable;               /* at 60 */
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
_Static_assert(FBK_READ_BATCH_HEAD_BYTES + 4 + 4 + 3 <= FBK_ENTRY_ROOM_BYTES,
               "one size, the vector's length, padding");

struct fbk_read_lac_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[7];
    uint16_t body_vtable[7];
    struct fbk_response_table response; /* at 36 */
    int32_t table_vtable;               /* at 60 */
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
_Static_assert(FBK_READ_LAC_HEAD_BYTES + 4 + 3 <= FBK_ENTRY_ROOM_BYTES,
               "the vector's length, padding");

struct fbk_list_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[7];
    uint16_t body_vtable[4];
    uint16_t padding[3];
    struct fbk_response_table response; /* at 36 */
    int32_t table_vtable;               /* at 60 */
    int64_t next_entry_id;
    uint32_t ranges;
    uint32_t range_count; /* the vector, at 76: its structs are aligned to 8 */
    uint32_t end[2];
};
#define FBK_LIST_HEAD_BYTES offsetof(struct fbk_list_frame, end)
_Static_assert(offsetof(struct fbk_list_frame, response) == 36, "layout");
_Static_assert(offsetof(struct fbk_list_frame, table_vtable) == 60, "layout");
_Static_assert(FBK_LIST_HEAD_BYTES == 80, "layout");

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

/* ------------ a status alone */

uint32_t
fbk_wire_put_status(uint8_t *out, uint64_t request_id, uint32_t status)
{
    const struct fbk_status_frame frame = {
        .size_bytes = FBK_STATUS_FRAME_BYTES - 4,
        .root = 16,
        .vtable = {8, 14, 4, 12},
        .table_vtable = 12,
        .request_id = request_id,
        .status = (uint16_t)status,
    };
    memcpy(out, &frame, FBK_STATUS_FRAME_BYTES);
    return FBK_STATUS_FRAME_BYTES;
}

/* The same with add_wait_us. */
struct fbk_waited_status_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t vtable[7];
    uint16_t padding[3];
    int32_t table_vtable; /* the table starts here, at 28 */
    uint64_t request_id;
    uint16_t status;
    uint16_t padding2;
    uint32_t add_wait_us;
};
#define FBK_WAITED_STATUS_VTABLE {14, 20, 4, 12, 0, 0, 16}
_Static_assert(offsetof(struct fbk_waited_status_frame, table_vtable) == 28, "layout");
_Static_assert(sizeof(struct fbk_waited_status_frame) == FBK_WIRE_WAITED_STATUS_BYTES, "layout");

uint32_t
fbk_wire_put_waited_status(uint8_t *out, uint64_t request_id, uint32_t status, uint32_t add_wait_us)
{
    const struct fbk_waited_status_frame frame = {
        .size_bytes = FBK_WIRE_WAITED_STATUS_BYTES - 4,
        .root = 24,
        .vtable = FBK_WAITED_STATUS_VTABLE,
        .table_vtable = 20,
        .request_id = request_id,
        .status = (uint16_t)status,
        .add_wait_us = add_wait_us,
    };
    memcpy(out, &frame, sizeof frame);
    return sizeof frame;
}

/* ------------ ReadReply */

static struct fbk_response_table
response_of(uint64_t request_id, uint32_t status, uint8_t body_type)
{
    struct fbk_response_table response = {
        .vtable = 36 - 8,
        .body = 60 - (36 + FBK_RESPONSE_BODY_AT),
        .status = (uint16_t)status,
        .body_type = body_type,
    };
    memcpy(response.request_id, &request_id, 8);
    return response;
}

_Static_assert(sizeof(struct fbk_read_frame) + 3 <= FBK_ENTRY_ROOM_BYTES, "padding");

uint32_t
fbk_wire_read_size(uint32_t entry_bytes)
{
    return padded(sizeof(struct fbk_read_frame) + (uint64_t)entry_bytes);
}

uint32_t
fbk_wire_put_read(uint8_t *out, uint64_t request_id, uint32_t status, int64_t entry_id, int64_t lac,
                  const uint8_t *entry, uint32_t entry_bytes, uint8_t **entry_at)
{
    const struct fbk_read_frame frame = {
        .root = 32,
        .response_vtable = FBK_RESPONSE_VTABLE,
        .body_vtable = {10, 24, 4, 12, 20},
        .response = response_of(request_id, status, FBK_RESPONSE_BODY_READ_REPLY),
        .table_vtable = 60 - 22,
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

/* ------------ ReadBatchReply */

uint32_t
fbk_wire_read_batch_size(uint32_t entry_count, uint64_t entries_bytes)
{
    return padded(FBK_READ_BATCH_HEAD_BYTES + 4ull * entry_count + 4 + entries_bytes);
}

uint32_t
fbk_wire_put_read_batch(uint8_t *out, uint64_t request_id, uint32_t status, int64_t lac,
                        int64_t next_entry_id, uint32_t entry_count, uint32_t entries_bytes,
                        uint8_t **sizes_at, uint8_t **entries_at)
{
    const struct fbk_read_batch_frame frame = {
        .root = 32,
        .response_vtable = FBK_RESPONSE_VTABLE,
        .body_vtable = {12, 28, 4, 12, 20, 24},
        .response = response_of(request_id, status, FBK_RESPONSE_BODY_READ_BATCH_REPLY),
        .table_vtable = 60 - 22,
        .lac = lac,
        .next_entry_id = next_entry_id,
        .entry_sizes = 8,
        .entries = 8 + 4 * entry_count,
        .entry_count = entry_count,
    };
    uint64_t entries_from = FBK_READ_BATCH_HEAD_BYTES + 4ull * entry_count;
    memcpy(out, &frame, FBK_READ_BATCH_HEAD_BYTES);
    fbk_store_u32(out + entries_from, entries_bytes);
    *sizes_at = out + FBK_READ_BATCH_HEAD_BYTES;
    *entries_at = out + entries_from + 4;
    return end_frame(out, entries_from + 4 + entries_bytes);
}

void
fbk_wire_set_add_wait(uint8_t *frame, uint32_t add_wait_us)
{
    fbk_store_u32(frame + offsetof(struct fbk_read_batch_frame, response) +
                      FBK_RESPONSE_ADD_WAIT_US_AT,
                  add_wait_us);
}

/* ------------ ReadLacReply */

static uint64_t
vector_bytes(uint32_t size_bytes)
{
    return size_bytes == 0 ? 0 : 4 + (uint64_t)size_bytes;
}

uint32_t
fbk_wire_read_lac_size(uint32_t body_bytes, uint32_t entry_bytes)
{
    return padded(FBK_READ_LAC_HEAD_BYTES + fbk_round_up(vector_bytes(body_bytes), 4) +
                  vector_bytes(entry_bytes));
}

uint32_t
fbk_wire_put_read_lac(uint8_t *out, uint64_t request_id, uint32_t status, int64_t lac, bool fenced,
                      const uint8_t *body, uint32_t body_bytes, int64_t last_entry_id,
                      const uint8_t *entry, uint32_t entry_bytes, uint8_t **entry_at)
{
    uint64_t body_from = FBK_READ_LAC_HEAD_BYTES;
    uint64_t body_end = body_from + vector_bytes(body_bytes);
    uint64_t entry_from = fbk_round_up(body_end, 4);
    const struct fbk_read_lac_frame frame = {
        .root = 32,
        .response_vtable = FBK_RESPONSE_VTABLE,
        .body_vtable = {14, 29, 4, 28, body_bytes != 0 ? 20 : 0, entry_bytes != 0 ? 24 : 0, 12},
        .response = response_of(request_id, status, FBK_RESPONSE_BODY_READ_LAC_REPLY),
        .table_vtable = 60 - 22,
        .lac = lac,
        .last_entry_id = last_entry_id,
        .lac_body = body_bytes != 0 ? (uint32_t)(body_from - 80) : 0,
        .last_entry = entry_bytes != 0 ? (uint32_t)(entry_from - 84) : 0,
        .fenced = fenced,
    };
    memcpy(out, &frame, FBK_READ_LAC_HEAD_BYTES);
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

/* ------------ ListEntriesReply */

uint32_t
fbk_wire_list_size(uint32_t range_count)
{
    return (uint32_t)(FBK_LIST_HEAD_BYTES + 16ull * range_count);
}

uint32_t
fbk_wire_put_list(uint8_t *out, uint64_t request_id, uint32_t status, int64_t next_entry_id,
                  const int64_t *ranges, uint32_t range_count)
{
    const struct fbk_list_frame frame = {
        .root = 32,
        .response_vtable = FBK_RESPONSE_VTABLE,
        .body_vtable = {8, 16, 4, 12},
        .response = response_of(request_id, status, FBK_RESPONSE_BODY_LIST_ENTRIES_REPLY),
        .table_vtable = 60 - 22,
        .next_entry_id = next_entry_id,
        .ranges = 4,
        .range_count = range_count,
    };
    memcpy(out, &frame, FBK_LIST_HEAD_BYTES);
    if (range_count != 0)
        memcpy(out + FBK_LIST_HEAD_BYTES, ranges, 16ull * range_count);
    return end_frame(out, FBK_LIST_HEAD_BYTES + 16ull * range_count);
}

/* ------------ InfoReply */

struct info_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[7];
    uint16_t padding[7];
    struct fbk_response_table response; /* at 36 */
    uint16_t body_vtable[9];            /* at 60 */
    uint16_t padding2[3];
    int32_t table_vtable; /* at 84 */
    uint64_t total_bytes;
    uint64_t free_bytes;
    uint8_t writable;
    uint8_t padding3[7];
};
_Static_assert(offsetof(struct info_frame, response) == 36, "layout");
_Static_assert(offsetof(struct info_frame, table_vtable) == 84, "layout");
_Static_assert(offsetof(struct info_frame, padding3) + 3 == FBK_WIRE_INFO_BYTES, "padded to 4");

uint32_t
fbk_wire_put_info_reply(uint8_t *out, uint64_t request_id, uint64_t total_bytes,
                        uint64_t free_bytes)
{
    struct info_frame frame = {
        .root = 32,
        .response_vtable = FBK_RESPONSE_VTABLE,
        .response = response_of(request_id, 0, FBK_RESPONSE_BODY_INFO_REPLY),
        .body_vtable = {18, 21, 0, 0, 0, 20, 0, 4, 12},
        .table_vtable = 84 - 60,
        .total_bytes = total_bytes,
        .free_bytes = free_bytes,
        .writable = 1,
    };
    frame.response.body = 84 - (36 + FBK_RESPONSE_BODY_AT);
    memcpy(out, &frame, FBK_WIRE_INFO_BYTES);
    return end_frame(out, FBK_WIRE_INFO_BYTES);
}

/* ------------ ProduceReply */

struct produce_reply_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t response_vtable[7];
    uint16_t body_vtable[5];
    uint16_t padding[2];
    struct fbk_response_table response; /* at 36 */
    int32_t table_vtable;               /* at 60 */
    int64_t entry_id;
    uint32_t segment;
    uint32_t slot;
};
_Static_assert(offsetof(struct produce_reply_frame, response) == 36, "layout");
_Static_assert(offsetof(struct produce_reply_frame, table_vtable) == 60, "layout");
_Static_assert(sizeof(struct produce_reply_frame) == FBK_WIRE_PRODUCE_REPLY_BYTES, "layout");

uint32_t
fbk_wire_put_produce_reply(uint8_t *out, uint64_t request_id, uint32_t segment, int64_t entry_id,
                           uint32_t slot)
{
    const struct produce_reply_frame frame = {
        .size_bytes = FBK_WIRE_PRODUCE_REPLY_BYTES - 4,
        .root = 32,
        .response_vtable = FBK_RESPONSE_VTABLE,
        .body_vtable = {10, 20, 12, 4, 16},
        .response = response_of(request_id, 0, FBK_RESPONSE_BODY_PRODUCE_REPLY),
        .table_vtable = 60 - 22,
        .entry_id = entry_id,
        .segment = segment,
        .slot = slot,
    };
    memcpy(out, &frame, sizeof frame);
    return sizeof frame;
}

#define BODY_TABLE_AT 60u

/* ------------ reading */

/* Heads with a body, as far as they are alike: up to the body's table. */
union head {
    uint8_t bytes[FBK_READ_BATCH_HEAD_BYTES + 4];
    struct fbk_status_frame status;
    struct fbk_waited_status_frame waited;
    struct fbk_read_frame read;
    struct fbk_read_batch_frame batch;
    struct fbk_read_lac_frame lac;
    struct fbk_list_frame list;
};

static bool
check_read(const uint8_t *frame, uint32_t frame_bytes, const struct fbk_read_frame *head,
           struct fbk_response *response)
{
    if (head->entry_bytes > frame_bytes - sizeof *head)
        return false;
    response->entry_id = head->entry_id;
    response->lac = head->lac;
    response->entry = frame + sizeof *head;
    response->entry_bytes = head->entry_bytes;
    return true;
}

static bool
check_batch(const uint8_t *frame, uint32_t frame_bytes, const struct fbk_read_batch_frame *head,
            struct fbk_response *response)
{
    uint64_t entries_from = FBK_READ_BATCH_HEAD_BYTES + 4ull * head->entry_count + 4;
    if (entries_from > frame_bytes)
        return false;
    response->entry_bytes = fbk_load_u32(frame + entries_from - 4);
    if (response->entry_bytes > frame_bytes - entries_from)
        return false;
    response->lac = head->lac;
    response->entry_id = head->next_entry_id;
    response->entry_count = head->entry_count;
    response->entry_sizes = frame + FBK_READ_BATCH_HEAD_BYTES;
    response->entry = frame + entries_from;
    return true;
}

/* A vector of bytes whose offset lies at `field`; 0 = absent. */
static bool
check_vector(const uint8_t *frame, uint32_t frame_bytes, uint32_t field, uint32_t offset,
             const uint8_t **data, uint32_t *size_bytes)
{
    *data = NULL;
    *size_bytes = 0;
    if (offset == 0)
        return true;
    uint64_t at = (uint64_t)field + offset;
    if (at + 4 > frame_bytes)
        return false;
    *size_bytes = fbk_load_u32(frame + at);
    *data = frame + at + 4;
    return *size_bytes <= frame_bytes - at - 4;
}

static bool
check_lac(const uint8_t *frame, uint32_t frame_bytes, const struct fbk_read_lac_frame *head,
          struct fbk_response *response)
{
    response->lac = head->lac;
    response->entry_id = head->last_entry_id;
    response->fenced = head->fenced;
    return check_vector(frame, frame_bytes, offsetof(struct fbk_read_lac_frame, lac_body),
                        head->lac_body, &response->lac_body, &response->lac_body_bytes) &&
           check_vector(frame, frame_bytes, offsetof(struct fbk_read_lac_frame, last_entry),
                        head->last_entry, &response->entry, &response->entry_bytes);
}

static bool
check_list(const uint8_t *frame, uint32_t frame_bytes, const struct fbk_list_frame *head,
           struct fbk_response *response)
{
    if (head->range_count > (frame_bytes - FBK_LIST_HEAD_BYTES) / 16)
        return false;
    response->entry_id = head->next_entry_id;
    response->ranges = frame + FBK_LIST_HEAD_BYTES;
    response->range_count = head->range_count;
    return true;
}

int32_t
fbk_wire_read_own_response(const uint8_t *frame, uint32_t frame_bytes,
                           struct fbk_response *response)
{
    union head head;
    memset(response, 0, sizeof *response);
    memset(&head, 0, sizeof head);
    if (frame_bytes < FBK_STATUS_FRAME_BYTES)
        return FBK_E_PROTOCOL;
    memcpy(&head, frame, frame_bytes < sizeof head ? frame_bytes : sizeof head);
    __asm__ volatile("" ::: "memory");
    static const uint16_t status_vtable[] = {8, 14, 4, 12};
    static const uint16_t response_vtable[] = FBK_RESPONSE_VTABLE;
    if (head.status.root == 16) {
        if (memcmp(head.status.vtable, status_vtable, sizeof status_vtable) != 0)
            return FBK_E_PROTOCOL;
        response->request_id = head.status.request_id;
        response->status = head.status.status;
        return 0;
    }
    if (head.waited.root == 24) {
        static const uint16_t waited_vtable[] = FBK_WAITED_STATUS_VTABLE;
        if (frame_bytes < sizeof head.waited ||
            memcmp(head.waited.vtable, waited_vtable, sizeof waited_vtable) != 0)
            return FBK_E_PROTOCOL;
        response->request_id = head.waited.request_id;
        response->status = head.waited.status;
        response->add_wait_us = head.waited.add_wait_us;
        return 0;
    }
    const struct fbk_response_table *table = &head.read.response;
    if (head.status.root != 32 ||
        memcmp(head.read.response_vtable, response_vtable, sizeof response_vtable) != 0 ||
        table->body != BODY_TABLE_AT - (36 + FBK_RESPONSE_BODY_AT))
        return FBK_E_PROTOCOL;
    memcpy(&response->request_id, table->request_id, 8);
    response->status = table->status;
    response->body_type = table->body_type;
    response->add_wait_us = table->add_wait_us;
    bool is_good = false;
    switch (table->body_type) {
    case FBK_RESPONSE_BODY_READ_REPLY:
        is_good =
            frame_bytes >= sizeof head.read && check_read(frame, frame_bytes, &head.read, response);
        break;
    case FBK_RESPONSE_BODY_READ_BATCH_REPLY:
        is_good = frame_bytes >= FBK_READ_BATCH_HEAD_BYTES &&
                  check_batch(frame, frame_bytes, &head.batch, response);
        break;
    case FBK_RESPONSE_BODY_READ_LAC_REPLY:
        is_good = frame_bytes >= FBK_READ_LAC_HEAD_BYTES &&
                  check_lac(frame, frame_bytes, &head.lac, response);
        break;
    case FBK_RESPONSE_BODY_LIST_ENTRIES_REPLY:
        is_good = frame_bytes >= FBK_LIST_HEAD_BYTES &&
                  check_list(frame, frame_bytes, &head.list, response);
        break;
    default: break;
    }
    return is_good ? 0 : FBK_E_PROTOCOL;
}

/* The client's frames.  Requests have one fixed layout each (structs below: constants, scalars,
 * vectors last); every scalar is always written.  Responses are verified, then read field by
 * field. */
#include "wire/client.h"

#include "base/layout.h"
#include "wire/add_layout.h"
#include "wire/verify.h"

/* ------------ Add */

uint32_t
fbk_wire_add_size(uint32_t entry_bytes)
{
    return FBK_WIRE_ADD_HEAD_BYTES + entry_bytes;
}

uint32_t
fbk_wire_put_add(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t entry_id,
                 uint32_t flags, uint32_t digest_type, const uint8_t *master_key,
                 const uint8_t *entry, uint32_t entry_bytes, uint8_t **entry_at)
{
    _Static_assert(FBK_WIRE_ADD_HEAD_BYTES == FBK_ADD_FRAME_BYTES, "layout");
    struct fbk_add_frame frame = fbk_add_frame_constants;
    frame.size_bytes = FBK_ADD_FRAME_BYTES - 4 + entry_bytes;
    frame.request_id = request_id;
    frame.ledger_id = ledger_id;
    frame.entry_id = entry_id;
    frame.flags = flags;
    memcpy(frame.master_key, master_key, FBK_MASTER_KEY_BYTES);
    frame.digest_type = (uint8_t)digest_type;
    frame.entry_bytes = entry_bytes;
    memcpy(out, &frame, FBK_ADD_FRAME_BYTES);
    if (entry != NULL)
        memcpy(out + FBK_ADD_FRAME_BYTES, entry, entry_bytes);
    if (entry_at != NULL)
        *entry_at = out + FBK_ADD_FRAME_BYTES;
    return fbk_wire_add_size(entry_bytes);
}

/* ------------ AddBatch */

struct add_batch_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t request_vtable[6];
    uint16_t batch_vtable[9];
    uint16_t padding[3];
    int32_t request_vtable_back; /* the Request table, at 44 */
    uint64_t request_id;
    uint32_t body;
    uint8_t body_type;
    uint8_t padding2[3];
    uint32_t creation_mark;
    int32_t batch_vtable_back; /* the AddBatch table, at 68 */
    int64_t ledger_id;
    int64_t first_entry_id;
    uint32_t flags;
    uint32_t entry_sizes; /* at 92 */
    uint32_t entries;     /* at 96 */
    uint8_t master_key[20];
    uint8_t digest_type;
    uint8_t padding3[3];
    uint32_t entry_count; /* at 124; then the sizes, then the vector of bytes */
};
#define ADD_BATCH_HEAD_BYTES 128u
_Static_assert(sizeof(struct add_batch_frame) == ADD_BATCH_HEAD_BYTES, "layout");
_Static_assert(offsetof(struct add_batch_frame, request_vtable_back) == 44, "layout");
_Static_assert(offsetof(struct add_batch_frame, batch_vtable_back) == 68, "layout");

uint32_t
fbk_wire_add_batch_size(uint32_t entry_count, uint64_t entries_bytes)
{
    return (uint32_t)(ADD_BATCH_HEAD_BYTES + 4ull * entry_count + 4 + entries_bytes);
}

uint32_t
fbk_wire_put_add_batch(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t first_entry_id,
                       uint32_t flags, uint32_t digest_type, const uint8_t *master_key,
                       uint32_t creation_mark, uint32_t entry_count, uint32_t entries_bytes,
                       uint8_t **sizes_at, uint8_t **entries_at)
{
    uint32_t size_bytes = fbk_wire_add_batch_size(entry_count, entries_bytes);
    struct add_batch_frame frame = {
        .size_bytes = size_bytes - 4,
        .root = 40,
        .request_vtable = {12, 24, 4, 16, 12, 20},
        .batch_vtable = {18, 53, 4, 12, 20, 52, 32, 24, 28},
        .request_vtable_back = 44 - 8,
        .request_id = request_id,
        .body = 68 - 56,
        .body_type = FBK_REQUEST_BODY_ADD_BATCH,
        .creation_mark = creation_mark,
        .batch_vtable_back = 68 - 20,
        .ledger_id = ledger_id,
        .first_entry_id = first_entry_id,
        .flags = flags,
        .entry_sizes = 124 - 92,
        .entries = ADD_BATCH_HEAD_BYTES + 4 * entry_count - 96,
        .digest_type = (uint8_t)digest_type,
        .entry_count = entry_count,
    };
    memcpy(frame.master_key, master_key, FBK_MASTER_KEY_BYTES);
    memcpy(out, &frame, sizeof frame);
    uint8_t *vector = out + ADD_BATCH_HEAD_BYTES + 4ull * entry_count;
    fbk_store_u32(vector, entries_bytes);
    *sizes_at = out + ADD_BATCH_HEAD_BYTES;
    *entries_at = vector + 4;
    return size_bytes;
}

void
fbk_wire_set_creation_mark(uint8_t *frame, uint32_t creation_mark)
{
    fbk_store_u32(frame + FBK_FRAME_CREATION_MARK_AT, creation_mark);
}

/* ------------ small requests */

/* All small requests begin alike: Request at 36, its body's table at 60 with the vtable at 20 (room
 * for 8 entries). */
struct small_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t request_vtable[6];
    uint16_t body_vtable[8];
    int32_t request_vtable_back; /* at 36 */
    uint64_t request_id;
    uint32_t body;
    uint8_t body_type;
    uint8_t padding[3];
    uint32_t creation_mark;   /* at FBK_FRAME_CREATION_MARK_AT */
    int32_t body_vtable_back; /* at 60 */
    int64_t numbers[3];       /* at 64, 72, 80: the table's offsets 4, 12, 20 */
    uint32_t words[2];        /* at 88, 92: offsets 28, 32 */
    uint8_t master_key[20];   /* at 96: offset 36 */
    uint32_t end;
};
#define SMALL_FRAME_BYTES 116u
#define NUMBER_0 4
#define NUMBER_1 12
#define NUMBER_2 20
#define WORD_0 28
#define WORD_1 32
#define KEY 36
_Static_assert(offsetof(struct small_frame, end) == SMALL_FRAME_BYTES, "layout");
_Static_assert(SMALL_FRAME_BYTES <= FBK_WIRE_REQUEST_BYTES_MAX, "layout");
_Static_assert(offsetof(struct small_frame, creation_mark) == FBK_FRAME_CREATION_MARK_AT, "layout");
_Static_assert(offsetof(struct small_frame, body_vtable_back) == 60, "layout");
_Static_assert(offsetof(struct small_frame, words) == 60 + WORD_0, "layout");
_Static_assert(offsetof(struct small_frame, master_key) == 60 + KEY, "layout");

/* vtable: field_count places in the table, 0 = absent.  used_bytes: of the frame. */
static uint32_t
put_small(uint8_t *out, struct small_frame *frame, uint64_t request_id, uint8_t body_type,
          uint32_t field_count, uint32_t used_bytes)
{
    static const uint16_t request_vtable[6] = {12, 24, 4, 16, 12, 20};
    frame->size_bytes = used_bytes - 4;
    frame->root = 32;
    memcpy(frame->request_vtable, request_vtable, sizeof request_vtable);
    frame->body_vtable[0] = (uint16_t)(4 + 2 * field_count);
    frame->body_vtable[1] =
        (uint16_t)(used_bytes < SMALL_FRAME_BYTES ? used_bytes - 60 : SMALL_FRAME_BYTES - 60);
    frame->request_vtable_back = 36 - 8;
    frame->request_id = request_id;
    frame->body = 60 - 48;
    frame->body_type = body_type;
    frame->body_vtable_back = 60 - 20;
    memcpy(out, frame, used_bytes < SMALL_FRAME_BYTES ? used_bytes : SMALL_FRAME_BYTES);
    return used_bytes;
}

uint32_t
fbk_wire_put_read_request(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t entry_id,
                          uint32_t flags, const uint8_t *master_key)
{
    struct small_frame frame = {
        .body_vtable = {0, 0, NUMBER_0, NUMBER_1, WORD_0, master_key != NULL ? KEY : 0},
        .numbers = {ledger_id, entry_id},
        .words = {flags},
    };
    if (master_key != NULL)
        memcpy(frame.master_key, master_key, FBK_MASTER_KEY_BYTES);
    return put_small(out, &frame, request_id, FBK_REQUEST_BODY_READ, 4, SMALL_FRAME_BYTES);
}

uint32_t
fbk_wire_put_read_batch_request(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                                int64_t first_entry_id, int64_t last_entry_id,
                                uint32_t entry_count_max, uint32_t size_bytes_max)
{
    struct small_frame frame = {
        .body_vtable = {0, 0, NUMBER_0, NUMBER_1, NUMBER_2, WORD_0, WORD_1},
        .numbers = {ledger_id, first_entry_id, last_entry_id},
        .words = {entry_count_max, size_bytes_max},
    };
    return put_small(out, &frame, request_id, FBK_REQUEST_BODY_READ_BATCH, 5, SMALL_FRAME_BYTES);
}

uint32_t
fbk_wire_put_read_lac_request(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                              int64_t previous_lac, uint32_t timeout_ms, uint32_t flags)
{
    struct small_frame frame = {
        .body_vtable = {0, 0, NUMBER_0, NUMBER_1, WORD_0, WORD_1},
        .numbers = {ledger_id, previous_lac},
        .words = {timeout_ms, flags},
    };
    return put_small(out, &frame, request_id, FBK_REQUEST_BODY_READ_LAC, 4, SMALL_FRAME_BYTES);
}

uint32_t
fbk_wire_put_write_lac(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t lac,
                       const uint8_t *master_key, const uint8_t *body, uint32_t body_bytes)
{
    struct small_frame frame = {
        .body_vtable = {0, 0, NUMBER_0, NUMBER_1, KEY, WORD_0},
        .numbers = {ledger_id, lac},
        .words = {SMALL_FRAME_BYTES - (60 + WORD_0)},
    };
    memcpy(frame.master_key, master_key, FBK_MASTER_KEY_BYTES);
    fbk_store_u32(out + SMALL_FRAME_BYTES, body_bytes);
    memcpy(out + SMALL_FRAME_BYTES + 4, body, body_bytes);
    return put_small(out, &frame, request_id, FBK_REQUEST_BODY_WRITE_LAC, 4,
                     SMALL_FRAME_BYTES + 4 + body_bytes);
}

uint32_t
fbk_wire_put_force(uint8_t *out, uint64_t request_id, int64_t ledger_id)
{
    struct small_frame frame = {.body_vtable = {0, 0, NUMBER_0}, .numbers = {ledger_id}};
    return put_small(out, &frame, request_id, FBK_REQUEST_BODY_FORCE, 1, 72);
}

uint32_t
fbk_wire_put_list_request(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                          int64_t first_entry_id, uint32_t range_count_max)
{
    struct small_frame frame = {
        .body_vtable = {0, 0, NUMBER_0, NUMBER_1, WORD_0},
        .numbers = {ledger_id, first_entry_id},
        .words = {range_count_max},
    };
    return put_small(out, &frame, request_id, FBK_REQUEST_BODY_LIST_ENTRIES, 3, SMALL_FRAME_BYTES);
}

uint32_t
fbk_wire_put_ping(uint8_t *out, uint64_t request_id)
{
    struct small_frame frame = {0};
    return put_small(out, &frame, request_id, FBK_REQUEST_BODY_PING, 0, 64);
}

uint32_t
fbk_wire_put_info(uint8_t *out, uint64_t request_id)
{
    struct small_frame frame = {0};
    return put_small(out, &frame, request_id, FBK_REQUEST_BODY_INFO, 0, 64);
}

uint32_t
fbk_wire_put_hello(uint8_t *out, uint64_t request_id, uint32_t version_min, uint32_t version_max,
                   const uint8_t *name, uint32_t name_bytes)
{
    struct small_frame frame = {
        .body_vtable = {0, 0, NUMBER_0, NUMBER_0 + 2, WORD_0},
        .numbers = {(int64_t)((uint64_t)(version_min & 0xffffu) | (uint64_t)(version_max & 0xffffu)
                                                                      << 16)},
        .words = {SMALL_FRAME_BYTES - (60 + WORD_0)},
    };
    fbk_store_u32(out + SMALL_FRAME_BYTES, name_bytes);
    if (name_bytes != 0)
        memcpy(out + SMALL_FRAME_BYTES + 4, name, name_bytes);
    /* strings end in a zero that their length does not count */
    out[SMALL_FRAME_BYTES + 4 + name_bytes] = 0;
    return put_small(out, &frame, request_id, FBK_REQUEST_BODY_HELLO, 3,
                     SMALL_FRAME_BYTES + 4 + name_bytes + 1);
}

/* ------------ Produce */

struct produce_frame {
    uint32_t size_bytes;
    uint32_t root;
    uint16_t request_vtable[6];
    uint16_t produce_vtable[8];
    int32_t request_vtable_back; /* the Request table, at 36 */
    uint64_t request_id;
    uint32_t body;
    uint8_t body_type;
    uint8_t padding[3];
    uint32_t creation_mark;
    int32_t produce_vtable_back; /* the Produce table, at 60 */
    int64_t follows;
    int64_t first_number;
    uint32_t producer;
    uint32_t record_count;
    uint32_t numbers; /* at 88; absent (vtable 0) when they follow each other */
    uint32_t records; /* at 92 */
    uint32_t padding2;
    uint32_t
        number_count; /* the vector, at 100: its numbers are aligned to 8; then that of bytes */
};
#define PRODUCE_HEAD_BYTES 96u
#define PRODUCE_NUMBERS_AT 100u
_Static_assert(offsetof(struct produce_frame, request_vtable_back) == 36, "layout");
_Static_assert(offsetof(struct produce_frame, produce_vtable_back) == 60, "layout");
_Static_assert(offsetof(struct produce_frame, padding2) == PRODUCE_HEAD_BYTES, "layout");
_Static_assert(offsetof(struct produce_frame, number_count) == PRODUCE_NUMBERS_AT, "layout");

static uint64_t
produce_records_at(uint32_t number_count)
{
    return number_count == 0 ? PRODUCE_HEAD_BYTES : PRODUCE_NUMBERS_AT + 4 + 8ull * number_count;
}

uint32_t
fbk_wire_produce_size(uint32_t number_count, uint32_t records_bytes)
{
    return (uint32_t)(produce_records_at(number_count) + 4 + records_bytes);
}

uint32_t
fbk_wire_put_produce(uint8_t *out, uint64_t request_id, uint32_t producer, int64_t follows,
                     int64_t first_number, uint32_t record_count, const int64_t *numbers,
                     const uint8_t *records, uint32_t records_bytes)
{
    const uint32_t number_count = numbers == NULL ? 0 : record_count;
    const uint64_t records_at = produce_records_at(number_count);
    const struct produce_frame frame = {
        .size_bytes = fbk_wire_produce_size(number_count, records_bytes) - 4,
        .root = 32,
        .request_vtable = {12, 24, 4, 16, 12, 20},
        .produce_vtable = {16, 36, 20, 4, 12, 24, number_count == 0 ? 0 : 28, 32},
        .request_vtable_back = 36 - 8,
        .request_id = request_id,
        .body = 60 - 48,
        .body_type = FBK_REQUEST_BODY_PRODUCE,
        .produce_vtable_back = 60 - 20,
        .follows = follows,
        .first_number = first_number,
        .producer = producer,
        .record_count = record_count,
        .numbers = number_count == 0 ? 0 : PRODUCE_NUMBERS_AT - 88,
        .records = (uint32_t)records_at - 92,
        .number_count = number_count,
    };
    memcpy(out, &frame, number_count == 0 ? PRODUCE_HEAD_BYTES : sizeof frame);
    if (number_count != 0)
        memcpy(out + sizeof frame, numbers, 8ull * number_count);
    fbk_store_u32(out + records_at, records_bytes);
    if (records_bytes != 0)
        memcpy(out + records_at + 4, records, records_bytes);
    return frame.size_bytes + 4;
}

/* ------------ responses */

static void
read_read_reply(const uint8_t *frame, uint32_t table, struct fbk_response *response)
{
    response->entry_id = fbk_table_i64(frame, table, FBK_READ_REPLY_ENTRY_ID);
    response->lac = fbk_table_i64(frame, table, FBK_READ_REPLY_LAC);
    response->entry = fbk_table_vector(frame, table, FBK_READ_REPLY_ENTRY, &response->entry_bytes);
}

static bool
read_batch_reply(const uint8_t *frame, uint32_t table, struct fbk_response *response)
{
    response->lac = fbk_table_i64(frame, table, FBK_READ_BATCH_REPLY_LAC);
    response->entry_id = fbk_table_i64(frame, table, FBK_READ_BATCH_REPLY_NEXT_ENTRY_ID);
    response->entry_sizes =
        fbk_table_vector(frame, table, FBK_READ_BATCH_REPLY_ENTRY_SIZES, &response->entry_count);
    response->entry =
        fbk_table_vector(frame, table, FBK_READ_BATCH_REPLY_ENTRIES, &response->entry_bytes);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < response->entry_count; i++)
        sum += fbk_load_u32(response->entry_sizes + 4ull * i);
    return sum == response->entry_bytes;
}

static void
read_lac_reply(const uint8_t *frame, uint32_t table, struct fbk_response *response)
{
    response->lac = fbk_table_i64(frame, table, FBK_READ_LAC_REPLY_LAC);
    response->fenced = fbk_table_u8(frame, table, FBK_READ_LAC_REPLY_FENCED);
    response->lac_body =
        fbk_table_vector(frame, table, FBK_READ_LAC_REPLY_LAC_BODY, &response->lac_body_bytes);
    response->entry =
        fbk_table_vector(frame, table, FBK_READ_LAC_REPLY_LAST_ENTRY, &response->entry_bytes);
    response->entry_id = fbk_table_i64(frame, table, FBK_READ_LAC_REPLY_LAST_ENTRY_ID);
}

static void
read_hello_reply(const uint8_t *frame, uint32_t table, struct fbk_response *response)
{
    response->version = fbk_table_u16(frame, table, FBK_HELLO_REPLY_VERSION);
    response->frame_size_bytes_max =
        fbk_table_u32(frame, table, FBK_HELLO_REPLY_FRAME_SIZE_BYTES_MAX);
    response->batch_entry_count_max =
        fbk_table_u32(frame, table, FBK_HELLO_REPLY_BATCH_ENTRY_COUNT_MAX);
    response->pending_requests_max =
        fbk_table_u32(frame, table, FBK_HELLO_REPLY_PENDING_REQUESTS_MAX);
    response->incarnation = fbk_table_u64(frame, table, FBK_HELLO_REPLY_INCARNATION);
}

int32_t
fbk_wire_read_response(const uint8_t *frame, uint32_t frame_bytes, struct fbk_response *response)
{
    memset(response, 0, sizeof *response);
    if (!fbk_verify(frame, frame_bytes, FBK_VERIFY_RESPONSE))
        return FBK_E_PROTOCOL;
    uint32_t root = fbk_frame_root(frame);
    response->request_id = fbk_table_u64(frame, root, FBK_RESPONSE_REQUEST_ID);
    response->status = fbk_table_u16(frame, root, FBK_RESPONSE_STATUS);
    response->add_wait_us = fbk_table_u32(frame, root, FBK_RESPONSE_ADD_WAIT_US);
    uint32_t table = fbk_table_target(frame, root, FBK_RESPONSE_BODY);
    uint32_t body_type = fbk_table_u8(frame, root, FBK_RESPONSE_BODY_TYPE);
    if (table == 0 || body_type > FBK_RESPONSE_BODY_PRODUCE_REPLY)
        return 0;
    response->body_type = body_type;
    switch (body_type) {
    case FBK_RESPONSE_BODY_READ_REPLY: read_read_reply(frame, table, response); break;
    case FBK_RESPONSE_BODY_READ_BATCH_REPLY:
        return read_batch_reply(frame, table, response) ? 0 : FBK_E_PROTOCOL;
    case FBK_RESPONSE_BODY_READ_LAC_REPLY: read_lac_reply(frame, table, response); break;
    case FBK_RESPONSE_BODY_HELLO_REPLY: read_hello_reply(frame, table, response); break;
    case FBK_RESPONSE_BODY_LIST_ENTRIES_REPLY:
        response->entry_id = fbk_table_i64(frame, table, FBK_LIST_ENTRIES_REPLY_NEXT_ENTRY_ID);
        response->ranges =
            fbk_table_vector(frame, table, FBK_LIST_ENTRIES_REPLY_RANGES, &response->range_count);
        break;
    case FBK_RESPONSE_BODY_PRODUCE_REPLY:
        response->entry_id = fbk_table_i64(frame, table, FBK_PRODUCE_REPLY_ENTRY);
        response->segment = fbk_table_u32(frame, table, FBK_PRODUCE_REPLY_SEGMENT);
        response->slot = fbk_table_u32(frame, table, FBK_PRODUCE_REPLY_SLOT);
        break;
    default: break; /* InfoReply, ErrorReply, OpenProducerReply: read in Python */
    }
    return 0;
}

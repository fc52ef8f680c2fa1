/* Reads requests: by its constants where the frame is laid out as our own client does it, else
 * verified and then field by field.  Either way nothing outside the frame is looked at, whatever it
 * says. */
#include "wire/add_layout.h"
#include "wire/verify.h"
#include "wire/wire.h"

_Static_assert(FBK_ENTRY_ROOM_BYTES == FBK_ADD_FRAME_BYTES,
               "our client fills a frame with the largest entry");

/* Whether [from, from + size) of the frame is as in the template. */
#define SAME(frame, from, upto)                                                               \
    (memcmp((frame) + offsetof(struct fbk_add_frame, from),                                   \
            (const uint8_t *)&fbk_add_frame_constants + offsetof(struct fbk_add_frame, from), \
            offsetof(struct fbk_add_frame, upto) - offsetof(struct fbk_add_frame, from)) == 0)

static bool
read_own_add(const uint8_t *frame, uint32_t frame_bytes, struct fbk_request *request)
{
    /* An empty entry would make the vector the last thing in the buffer; the verifier shall judge
     * that. */
    if (frame_bytes <= FBK_ADD_FRAME_BYTES || !SAME(frame, root, request_id) ||
        !SAME(frame, body, creation_mark) || !SAME(frame, add_vtable_back, ledger_id) ||
        !SAME(frame, entry, master_key))
        return false;
    struct fbk_add_frame head;
    memcpy(&head, frame, FBK_ADD_FRAME_BYTES);
    if (head.size_bytes != frame_bytes - 4 || head.entry_bytes != frame_bytes - FBK_ADD_FRAME_BYTES)
        return false;
    request->request_id = head.request_id;
    request->body_type = FBK_REQUEST_BODY_ADD;
    request->creation_mark = head.creation_mark;
    request->flags = head.flags;
    request->ledger_id = head.ledger_id;
    request->entry_id = head.entry_id;
    request->digest_type = head.digest_type;
    request->master_key = frame + offsetof(struct fbk_add_frame, master_key);
    request->body = frame + FBK_ADD_FRAME_BYTES;
    request->body_bytes = head.entry_bytes;
    return true;
}

static const uint8_t *
struct_field(const uint8_t *frame, uint32_t table, uint32_t slot)
{
    uint32_t at = fbk_table_field(frame, table, slot);
    return at == 0 ? NULL : frame + at;
}

static void
read_add(const uint8_t *frame, uint32_t table, struct fbk_request *request)
{
    request->ledger_id = fbk_table_i64(frame, table, FBK_ADD_LEDGER_ID);
    request->entry_id = fbk_table_i64(frame, table, FBK_ADD_ENTRY_ID);
    request->flags = fbk_table_u32(frame, table, FBK_ADD_FLAGS);
    request->digest_type = fbk_table_u8(frame, table, FBK_ADD_DIGEST_TYPE);
    request->master_key = struct_field(frame, table, FBK_ADD_MASTER_KEY);
    request->body = fbk_table_vector(frame, table, FBK_ADD_ENTRY, &request->body_bytes);
}

static void
read_add_batch(const uint8_t *frame, uint32_t table, struct fbk_request *request)
{
    request->ledger_id = fbk_table_i64(frame, table, FBK_ADD_BATCH_LEDGER_ID);
    request->entry_id = fbk_table_i64(frame, table, FBK_ADD_BATCH_FIRST_ENTRY_ID);
    request->flags = fbk_table_u32(frame, table, FBK_ADD_BATCH_FLAGS);
    request->digest_type = fbk_table_u8(frame, table, FBK_ADD_BATCH_DIGEST_TYPE);
    request->master_key = struct_field(frame, table, FBK_ADD_BATCH_MASTER_KEY);
    request->entry_sizes =
        fbk_table_vector(frame, table, FBK_ADD_BATCH_ENTRY_SIZES, &request->entry_count);
    request->body = fbk_table_vector(frame, table, FBK_ADD_BATCH_ENTRIES, &request->body_bytes);
}

static void
read_read(const uint8_t *frame, uint32_t table, struct fbk_request *request)
{
    request->ledger_id = fbk_table_i64(frame, table, FBK_READ_LEDGER_ID);
    request->entry_id = fbk_table_i64(frame, table, FBK_READ_ENTRY_ID);
    request->flags = fbk_table_u32(frame, table, FBK_READ_FLAGS);
    request->master_key = struct_field(frame, table, FBK_READ_MASTER_KEY);
}

static void
read_read_batch(const uint8_t *frame, uint32_t table, struct fbk_request *request)
{
    request->ledger_id = fbk_table_i64(frame, table, FBK_READ_BATCH_LEDGER_ID);
    request->entry_id = fbk_table_i64(frame, table, FBK_READ_BATCH_FIRST_ENTRY_ID);
    request->other_id = fbk_table_i64(frame, table, FBK_READ_BATCH_LAST_ENTRY_ID);
    request->count_max = fbk_table_u32(frame, table, FBK_READ_BATCH_ENTRY_COUNT_MAX);
    request->size_bytes_max = fbk_table_u32(frame, table, FBK_READ_BATCH_SIZE_BYTES_MAX);
}

static void
read_read_lac(const uint8_t *frame, uint32_t table, struct fbk_request *request)
{
    request->ledger_id = fbk_table_i64(frame, table, FBK_READ_LAC_LEDGER_ID);
    request->other_id = fbk_table_i64(frame, table, FBK_READ_LAC_PREVIOUS_LAC);
    request->timeout_ms = fbk_table_u32(frame, table, FBK_READ_LAC_TIMEOUT_MS);
    request->flags = fbk_table_u32(frame, table, FBK_READ_LAC_FLAGS);
}

static void
read_write_lac(const uint8_t *frame, uint32_t table, struct fbk_request *request)
{
    request->ledger_id = fbk_table_i64(frame, table, FBK_WRITE_LAC_LEDGER_ID);
    request->entry_id = fbk_table_i64(frame, table, FBK_WRITE_LAC_LAC);
    request->master_key = struct_field(frame, table, FBK_WRITE_LAC_MASTER_KEY);
    request->body = fbk_table_vector(frame, table, FBK_WRITE_LAC_BODY, &request->body_bytes);
}

static void
read_list(const uint8_t *frame, uint32_t table, struct fbk_request *request)
{
    request->ledger_id = fbk_table_i64(frame, table, FBK_LIST_ENTRIES_LEDGER_ID);
    request->entry_id = fbk_table_i64(frame, table, FBK_LIST_ENTRIES_FIRST_ENTRY_ID);
    request->count_max = fbk_table_u32(frame, table, FBK_LIST_ENTRIES_RANGE_COUNT_MAX);
}

int32_t
fbk_wire_read_request(const uint8_t *frame, uint32_t frame_bytes, struct fbk_request *request)
{
    memset(request, 0, sizeof *request);
    if (FBK_LIKELY(read_own_add(frame, frame_bytes, request)))
        return 0;
    if (!fbk_verify(frame, frame_bytes, FBK_VERIFY_REQUEST))
        return FBK_E_PROTOCOL;
    uint32_t root = fbk_frame_root(frame);
    request->request_id = fbk_table_u64(frame, root, FBK_REQUEST_REQUEST_ID);
    uint32_t table = fbk_table_target(frame, root, FBK_REQUEST_BODY);
    uint32_t body_type = fbk_table_u8(frame, root, FBK_REQUEST_BODY_TYPE);
    /* A type without its table says nothing, a table whose type is unknown was not verified, and
     * what is behind Ping is asked of write services alone. */
    if (table == 0 || body_type > FBK_REQUEST_BODY_PING)
        return 0;
    request->body_type = body_type;
    request->creation_mark = fbk_table_u32(frame, root, FBK_REQUEST_CREATION_MARK);
    switch (body_type) {
    case FBK_REQUEST_BODY_ADD: read_add(frame, table, request); break;
    case FBK_REQUEST_BODY_ADD_BATCH: read_add_batch(frame, table, request); break;
    case FBK_REQUEST_BODY_READ: read_read(frame, table, request); break;
    case FBK_REQUEST_BODY_READ_BATCH: read_read_batch(frame, table, request); break;
    case FBK_REQUEST_BODY_READ_LAC: read_read_lac(frame, table, request); break;
    case FBK_REQUEST_BODY_WRITE_LAC: read_write_lac(frame, table, request); break;
    case FBK_REQUEST_BODY_FORCE:
        request->ledger_id = fbk_table_i64(frame, table, FBK_FORCE_LEDGER_ID);
        break;
    case FBK_REQUEST_BODY_LIST_ENTRIES: read_list(frame, table, request); break;
    default: break; /* Hello, Info, Ping: nothing that C looks at */
    }
    return 0;
}

/* ------------ of write services */

int32_t
fbk_wire_read_service_request(const uint8_t *frame, uint32_t frame_bytes, uint64_t *request_id,
                              struct fbk_produce *produce)
{
    if (!fbk_verify(frame, frame_bytes, FBK_VERIFY_REQUEST))
        return FBK_E_PROTOCOL;
    const uint32_t root = fbk_frame_root(frame);
    *request_id = fbk_table_u64(frame, root, FBK_REQUEST_REQUEST_ID);
    const uint32_t table = fbk_table_target(frame, root, FBK_REQUEST_BODY);
    const uint32_t body_type = fbk_table_u8(frame, root, FBK_REQUEST_BODY_TYPE);
    if (table == 0 || body_type > FBK_REQUEST_BODY_CLOSE_PRODUCER)
        return 0;
    if (body_type != FBK_REQUEST_BODY_PRODUCE)
        return (int32_t)body_type;
    produce->producer = fbk_table_u32(frame, table, FBK_PRODUCE_PRODUCER);
    produce->record_count = fbk_table_u32(frame, table, FBK_PRODUCE_RECORD_COUNT);
    produce->follows = fbk_table_i64(frame, table, FBK_PRODUCE_FOLLOWS);
    produce->first_number = fbk_table_i64(frame, table, FBK_PRODUCE_FIRST_NUMBER);
    produce->numbers = fbk_table_vector(frame, table, FBK_PRODUCE_NUMBERS, &produce->number_count);
    produce->records = fbk_table_vector(frame, table, FBK_PRODUCE_RECORDS, &produce->records_bytes);
    return FBK_REQUEST_BODY_PRODUCE;
}

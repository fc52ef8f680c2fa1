/* What the worker looks up in a frame that an index wrote (wire/responses.c): by its constants, without a walk.  The frame lies in
 * the index's shared memory, so its head is copied first, and only the copy is checked and used. */
#include "wire/client.h"

#include "wire/response_layout.h"

#define BODY_TABLE_AT 60u

/* Heads with a body, as far as they are alike: up to the body's table. */
union head {
    uint8_t bytes[FBK_READ_BATCH_HEAD_BYTES + 4];
    struct fbk_status_frame status;
    struct fbk_read_frame read;
    struct fbk_read_batch_frame batch;
    struct fbk_read_lac_frame lac;
    struct fbk_list_frame list;
};

static bool
look_read(const uint8_t *frame, uint32_t frame_bytes, const struct fbk_read_frame *head, struct fbk_response *response)
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
look_batch(const uint8_t *frame, uint32_t frame_bytes, const struct fbk_read_batch_frame *head, struct fbk_response *response)
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
look_vector(const uint8_t *frame, uint32_t frame_bytes, uint32_t field, uint32_t offset, const uint8_t **data, uint32_t *size_bytes)
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
look_lac(const uint8_t *frame, uint32_t frame_bytes, const struct fbk_read_lac_frame *head, struct fbk_response *response)
{
    response->lac = head->lac;
    response->entry_id = head->last_entry_id;
    response->fenced = head->fenced;
    return look_vector(frame, frame_bytes, offsetof(struct fbk_read_lac_frame, lac_body), head->lac_body, &response->lac_body,
                       &response->lac_body_bytes) &&
           look_vector(frame, frame_bytes, offsetof(struct fbk_read_lac_frame, last_entry), head->last_entry, &response->entry,
                       &response->entry_bytes);
}

static bool
look_list(const uint8_t *frame, uint32_t frame_bytes, const struct fbk_list_frame *head, struct fbk_response *response)
{
    if (head->range_count > (frame_bytes - FBK_LIST_HEAD_BYTES) / 16)
        return false;
    response->entry_id = head->next_entry_id;
    response->ranges = frame + FBK_LIST_HEAD_BYTES;
    response->range_count = head->range_count;
    return true;
}

int32_t
fbk_wire_look(const uint8_t *frame, uint32_t frame_bytes, struct fbk_response *response)
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
    const struct fbk_response_table *table = &head.read.response;
    if (head.status.root != 32 || memcmp(head.read.response_vtable, response_vtable, sizeof response_vtable) != 0 ||
        table->body != BODY_TABLE_AT - (36 + FBK_RESPONSE_BODY_AT))
        return FBK_E_PROTOCOL;
    memcpy(&response->request_id, table->request_id, 8);
    response->status = table->status;
    response->body_type = table->body_type;
    bool is_good = false;
    switch (table->body_type) {
    case FBK_RESPONSE_BODY_READ_REPLY:
        is_good = frame_bytes >= sizeof head.read && look_read(frame, frame_bytes, &head.read, response);
        break;
    case FBK_RESPONSE_BODY_READ_BATCH_REPLY:
        is_good = frame_bytes >= FBK_READ_BATCH_HEAD_BYTES && look_batch(frame, frame_bytes, &head.batch, response);
        break;
    case FBK_RESPONSE_BODY_READ_LAC_REPLY:
        is_good = frame_bytes >= FBK_READ_LAC_HEAD_BYTES && look_lac(frame, frame_bytes, &head.lac, response);
        break;
    case FBK_RESPONSE_BODY_LIST_ENTRIES_REPLY:
        is_good = frame_bytes >= FBK_LIST_HEAD_BYTES && look_list(frame, frame_bytes, &head.list, response);
        break;
    default: break;
    }
    return is_good ? 0 : FBK_E_PROTOCOL;
}

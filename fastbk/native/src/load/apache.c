/* The load generator in Apache's protocols.  Version 3's answers carry the slot that they are for; version 2's name the ledger
 * and the entry, and are looked for among what the connection asked, from the oldest on: mostly it is that one. */
#include "load/state.h"

#include "apache/apache.h"

static void
put(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index, struct fbk_apache_request *request)
{
    struct load_slot *slot = &load->slots[slot_index];
    request->protocol = (uint8_t)load->options.protocol;
    request->version = (uint8_t)load->options.protocol;
    request->transaction_id = slot_index;
    request->ledger_id = load->ledgers[slot->ledger_index].ledger_id;
    request->entry_id = slot->entry_id;
    uint64_t room = load->send_bytes - connection->send_used;
    connection->send_used += (uint32_t)fbk_apache_put_request(connection->send + connection->send_used, room, request);
    slot->next_asked = LOAD_NO_SLOT;
    if (connection->asked_last == LOAD_NO_SLOT)
        connection->asked_first = slot_index;
    else
        load->slots[connection->asked_last].next_asked = slot_index;
    connection->asked_last = slot_index;
}

void
fbk_load_apache_add(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index, uint32_t entry_bytes)
{
    struct fbk_apache_request request = {
        .operation = FBK_APACHE_ADD,
        .master_key = load->options.master_key,
        .body = load->entry,
        .body_bytes = entry_bytes,
    };
    put(load, connection, slot_index, &request);
}

void
fbk_load_apache_read(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index, uint32_t count)
{
    bool is_batch = load->options.entries_a_read > 1 && !load->slots[slot_index].tail;
    struct fbk_apache_request request = {
        .operation = is_batch ? FBK_APACHE_READ_BATCH : FBK_APACHE_READ,
        .count_max = (int32_t)count,
        .size_bytes_max = 1024 * 1024,
    };
    put(load, connection, slot_index, &request);
}

static bool
is_asked(const struct fbk_load *load, uint32_t slot_index, const struct fbk_apache_reply *reply)
{
    const struct load_slot *slot = &load->slots[slot_index];
    if (load->options.protocol == 3)
        return reply->asked.transaction_id == slot_index;
    bool is_add = !load->reading && !slot->tail;
    return (reply->asked.operation == FBK_APACHE_ADD) == is_add && reply->asked.entry_id == slot->entry_id &&
           reply->asked.ledger_id == load->ledgers[slot->ledger_index].ledger_id;
}

/* Out of what the connection asked; LOAD_NO_SLOT: nobody asked for that. */
static uint32_t
take_asked(struct fbk_load *load, struct load_connection *connection, const struct fbk_apache_reply *reply)
{
    uint32_t before = LOAD_NO_SLOT, slot_index = connection->asked_first;
    while (slot_index != LOAD_NO_SLOT && !is_asked(load, slot_index, reply)) {
        before = slot_index;
        slot_index = load->slots[slot_index].next_asked;
    }
    if (slot_index == LOAD_NO_SLOT)
        return LOAD_NO_SLOT;
    uint32_t next = load->slots[slot_index].next_asked;
    if (before == LOAD_NO_SLOT)
        connection->asked_first = next;
    else
        load->slots[before].next_asked = next;
    if (next == LOAD_NO_SLOT)
        connection->asked_last = before;
    return slot_index;
}

int32_t
fbk_load_apache_answer(struct fbk_load *load, struct load_connection *connection, const uint8_t *frame, uint32_t frame_bytes,
                       struct fbk_response *response)
{
    struct fbk_apache_reply reply;
    memset(response, 0, sizeof *response);
    if (fbk_apache_read_reply(frame + 4, frame_bytes - 4, load->options.protocol, &reply) != 0)
        return FBK_E_PROTOCOL;
    uint32_t slot_index = take_asked(load, connection, &reply);
    if (slot_index == LOAD_NO_SLOT)
        return FBK_E_PROTOCOL;
    response->request_id = slot_index;
    response->status = reply.status; /* Apache's number; OK is 0 in both */
    /* A batch's entries lie between their sizes. */
    response->entry = reply.asked.operation == FBK_APACHE_READ_BATCH ? reply.entry_sizes : reply.entry;
    response->entry_bytes = reply.entry_bytes;
    response->entry_count = reply.entry_count;
    response->entry_sizes = reply.entry_sizes;
    return 0;
}

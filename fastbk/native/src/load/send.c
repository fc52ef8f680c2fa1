/* The load generator's requests: entries made, frames written, sent.  Adds of a ledger go out in order on one connection;
 * their request id is a slot of the window, so that an answer finds its start time without a search. */
#include "load/state.h"

#include <sys/socket.h>

static void
load_encode_add(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index, uint64_t started_ns)
{
    struct load_slot *slot = &load->slots[slot_index];
    const uint32_t connection_index = (uint32_t)(connection - load->connections);
    const uint32_t ledger_index = connection_index + connection->next_ledger * load->options.connection_count;
    struct load_ledger *ledger = &load->ledgers[ledger_index];
    if (ledger_index + load->options.connection_count < load->options.ledger_count)
        connection->next_ledger++;
    else
        connection->next_ledger = 0;
    slot->started_ns = started_ns;
    slot->entry_id = ledger->next_entry_id++;
    slot->ledger_index = ledger_index;
    slot->tail = false;
    ledger->length_bytes += load->options.size_bytes;

    const uint32_t digest_bytes = (uint32_t)fbk_digest_bytes(load->options.digest_type);
    const uint32_t entry_bytes = FBK_ENTRY_HEADER_BYTES + digest_bytes + load->options.size_bytes;
    uint8_t *entry = load->entry;
    if (load->options.protocol == 0)
        connection->send_used += fbk_wire_put_add(connection->send + connection->send_used, slot_index, ledger->ledger_id,
                                                  slot->entry_id, 0, load->options.digest_type, load->options.master_key,
                                                  NULL, entry_bytes, &entry);
    fbk_store_be64(entry, (uint64_t)ledger->ledger_id);
    fbk_store_be64(entry + 8, (uint64_t)slot->entry_id);
    fbk_store_be64(entry + 16, (uint64_t)ledger->last_add_confirmed);
    fbk_store_be64(entry + 24, ledger->length_bytes);
    fbk_load_data(entry + FBK_ENTRY_HEADER_BYTES + digest_bytes, load->options.size_bytes, ledger->ledger_id, slot->entry_id);
    fbk_digest_put(load->options.digest_type, entry, entry_bytes);
    if (load->options.protocol != 0)
        fbk_load_apache_add(load, connection, slot_index, entry_bytes);
}

static void
load_encode_read(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index, uint64_t started_ns)
{
    struct load_slot *slot = &load->slots[slot_index];
    const uint32_t connection_index = (uint32_t)(connection - load->connections);
    const uint32_t ledger_index = connection_index + connection->next_ledger * load->options.connection_count;
    struct load_ledger *ledger = &load->ledgers[ledger_index];
    slot->started_ns = started_ns;
    slot->entry_id = ledger->next_entry_id;
    slot->ledger_index = ledger_index;
    const int64_t count = (int64_t)load->entry_counts[ledger_index];
    int64_t last = ledger->next_entry_id + (int64_t)load->options.entries_a_read - 1;
    last = last < count ? last : count - 1;
    if (load->options.protocol != 0)
        fbk_load_apache_read(load, connection, slot_index, (uint32_t)(last - slot->entry_id + 1));
    else if (load->options.entries_a_read <= 1)
        connection->send_used += fbk_wire_put_read_request(connection->send + connection->send_used, slot_index,
                                                           ledger->ledger_id, slot->entry_id, 0, NULL);
    else
        connection->send_used += fbk_wire_put_read_batch_request(connection->send + connection->send_used, slot_index,
                                                                 ledger->ledger_id, slot->entry_id, last,
                                                                 load->options.entries_a_read, 1024u * 1024u);
    ledger->next_entry_id = last + 1;
    if (ledger->next_entry_id >= count) {
        ledger->next_entry_id = 0;
        connection->next_ledger = ledger_index + load->options.connection_count < load->options.ledger_count
                                      ? connection->next_ledger + 1 : 0;
    }
}

int32_t
fbk_load_send(struct load_connection *connection)
{
    while (connection->send_done < connection->send_used) {
        ssize_t sent = send(connection->socket, connection->send + connection->send_done,
                            connection->send_used - connection->send_done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return 0;
            return -errno;
        }
        connection->send_done += (uint32_t)sent;
    }
    connection->send_done = connection->send_used = 0;
    return 0;
}

int32_t
fbk_load_start(struct fbk_load *load, uint64_t now_ns)
{
    const uint32_t count = load->options.connection_count;
    const uint64_t gap_ns = load->options.rate_per_s == 0 ? 0 : 1000000000ull / load->options.rate_per_s;
    const uint32_t frame_bytes = load->reading ? LOAD_FRAME_OVERHEAD_BYTES : load->options.size_bytes + LOAD_FRAME_OVERHEAD_BYTES;
    uint32_t full = 0;
    while (load->free_slot != UINT32_MAX && now_ns < load->stop_ns && full < count) {
        uint64_t started_ns = now_ns;
        if (gap_ns != 0) {
            if (load->next_start_ns > now_ns)
                break;
            started_ns = load->next_start_ns;
            if (now_ns - started_ns > gap_ns)
                load->result.late++;
        }
        struct load_connection *connection = &load->connections[load->next_connection];
        load->next_connection = load->next_connection + 1 < count ? load->next_connection + 1 : 0;
        if (connection->send_used + frame_bytes > load->send_bytes) {
            full++;
            continue;
        }
        full = 0;
        const uint32_t slot_index = load->free_slot;
        load->free_slot = load->slots[slot_index].next_free;
        load->next_start_ns += gap_ns;
        load->in_flight++;
        if (load->reading)
            load_encode_read(load, connection, slot_index, started_ns);
        else
            load_encode_add(load, connection, slot_index, started_ns);
        if (connection->send_used - connection->send_done >= LOAD_SEND_TARGET_BYTES) {
            int32_t error = fbk_load_send(connection);
            if (error != 0)
                return error;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (load->connections[i].send_used == 0)
            continue;
        int32_t error = fbk_load_send(&load->connections[i]);
        if (error != 0)
            return error;
    }
    return 0;
}

bool
fbk_load_ask_again(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index, uint64_t now_ns)
{
    struct load_slot *slot = &load->slots[slot_index];
    if (connection->send_used + LOAD_FRAME_OVERHEAD_BYTES > load->send_bytes)
        return false;
    slot->tail = true;
    slot->started_ns = now_ns;
    if (load->options.protocol != 0) {
        fbk_load_apache_read(load, connection, slot_index, 1);
        return true;
    }
    connection->send_used += fbk_wire_put_read_request(connection->send + connection->send_used, slot_index,
                                                       load->ledgers[slot->ledger_index].ledger_id, slot->entry_id, 0, NULL);
    return true;
}

/* The load generator's answers: each is checked, timed, and its slot is free again. */
#include "load/state.h"

#include <sys/socket.h>

static bool
load_entry_is_right(struct fbk_load *load, const struct load_slot *slot, const uint8_t *entry, uint32_t entry_bytes,
                    int64_t entry_id)
{
    const uint32_t overhead = FBK_ENTRY_HEADER_BYTES + (uint32_t)fbk_digest_bytes(load->options.digest_type);
    const int64_t ledger_id = load->ledgers[slot->ledger_index].ledger_id;
    if (entry_bytes != overhead + load->options.size_bytes || fbk_load_be64(entry) != (uint64_t)ledger_id
        || fbk_load_be64(entry + 8) != (uint64_t)entry_id
        || fbk_digest_check(load->options.digest_type, entry, entry_bytes) != FBK_S_OK)
        return false;
    fbk_load_data(load->expected, load->options.size_bytes, ledger_id, entry_id);
    return memcmp(load->expected, entry + overhead, load->options.size_bytes) == 0;
}

static uint32_t
load_check_read(struct fbk_load *load, const struct load_slot *slot, const struct fbk_response *response)
{
    if (load->options.entries_a_read <= 1)
        return response->entry != NULL
               && load_entry_is_right(load, slot, response->entry, response->entry_bytes, slot->entry_id);
    const uint8_t *entry = response->entry;
    const bool sizes_are_between = load->options.protocol != 0; /* Apache's: big-endian, each in front of its entry */
    for (uint32_t i = 0; i < response->entry_count; i++) {
        const uint32_t size_bytes = sizes_are_between ? fbk_load_be32(entry) : fbk_load_u32(response->entry_sizes + 4u * i);
        entry += sizes_are_between ? 4 : 0;
        if (!load_entry_is_right(load, slot, entry, size_bytes, slot->entry_id + i))
            return 0;
        entry += size_bytes;
    }
    return response->entry_count;
}

static void
load_end_tail_read(struct fbk_load *load, struct load_slot *slot, const struct fbk_response *response, uint64_t now_ns)
{
    const uint64_t latency_ns = now_ns - slot->started_ns;
    slot->tail = false;
    if (response->status != FBK_S_OK || response->entry == NULL
        || !load_entry_is_right(load, slot, response->entry, response->entry_bytes, slot->entry_id)) {
        load->result.errors++;
        if (load->result.first_error_status == 0)
            load->result.first_error_status = response->status;
        return;
    }
    load->result.tail_latency_buckets[fbk_load_bucket(latency_ns)]++;
    if (latency_ns > load->result.tail_latency_max_ns)
        load->result.tail_latency_max_ns = latency_ns;
}

static void
load_free_slot(struct fbk_load *load, uint32_t slot_index)
{
    load->slots[slot_index].next_free = load->free_slot;
    load->free_slot = slot_index;
    load->in_flight--;
}

static int32_t
load_answer(struct fbk_load *load, struct load_connection *connection, const struct fbk_response *response, uint64_t now_ns)
{
    if (response->request_id >= load->options.window || load->in_flight == 0)
        return FBK_E_PROTOCOL;
    struct load_slot *slot = &load->slots[response->request_id];
    const uint64_t latency_ns = now_ns - slot->started_ns;
    uint32_t entries = 1;
    if (slot->tail) {
        load_end_tail_read(load, slot, response, now_ns);
        load_free_slot(load, (uint32_t)response->request_id);
        return 0;
    }
    if (response->status != FBK_S_OK)
        entries = 0;
    else if (load->reading)
        entries = load_check_read(load, slot, response);
    if (entries == 0) {
        load->result.errors++;
        if (load->result.first_error_status == 0)
            load->result.first_error_status = response->status;
    } else {
        load->result.entries += entries;
        load->result.bytes += (uint64_t)entries * load->options.size_bytes;
        load->result.latency_buckets[fbk_load_bucket(latency_ns)] += 1;
        load->result.latency_sum_ns += latency_ns;
        if (latency_ns > load->result.latency_max_ns)
            load->result.latency_max_ns = latency_ns;
        struct load_ledger *ledger = &load->ledgers[slot->ledger_index];
        if (!load->reading && slot->entry_id > ledger->last_add_confirmed)
            ledger->last_add_confirmed = slot->entry_id;
    }
    const uint32_t tail_every = load->reading || entries == 0 ? 0 : load->options.tail_every;
    if (tail_every == 0 || slot->entry_id % tail_every != 0
        || !fbk_load_ask_again(load, connection, (uint32_t)response->request_id, now_ns))
        load_free_slot(load, (uint32_t)response->request_id);
    return 0;
}

int32_t
fbk_load_receive(struct fbk_load *load, struct load_connection *connection)
{
    ssize_t got = recv(connection->socket, connection->receive + connection->receive_used,
                       load->receive_bytes - connection->receive_used, MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (got == 0)
        return -ECONNRESET;
    connection->receive_used += (uint32_t)got;
    const uint64_t now_ns = fbk_load_now_ns();
    uint32_t at = 0;
    while (connection->receive_used - at >= 4) {
        const uint8_t *frame = connection->receive + at;
        const bool is_ours = load->options.protocol == 0;
        const uint32_t frame_bytes = 4 + (is_ours ? fbk_load_u32(frame) : fbk_load_be32(frame));
        if (frame_bytes < 4 || frame_bytes > load->receive_bytes)
            return FBK_E_PROTOCOL;
        if (connection->receive_used - at < frame_bytes)
            break;
        struct fbk_response response;
        int32_t error = is_ours ? fbk_wire_read_response(frame, frame_bytes, &response)
                                : fbk_load_apache_answer(load, connection, frame, frame_bytes, &response);
        if (error == 0)
            error = load_answer(load, connection, &response, now_ns);
        if (error != 0)
            return error;
        at += frame_bytes;
    }
    if (at != 0) {
        connection->receive_used -= at;
        memmove(connection->receive, connection->receive + at, connection->receive_used);
    }
    return 0;
}

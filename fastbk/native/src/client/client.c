/* One call encodes a batch of adds, one call turns a received buffer into events: what Python is
 * handed grows with the number of runs, not of entries. */
#include "client/client.h"

#include "base/digest.h"
#include "wire/add_layout.h"
#include "wire/client.h"

#define ENTRY_HEADER_BYTES 32u
#define VERSION_MIN 1u
#define VERSION_MAX 1u

_Static_assert(FBK_CLIENT_REQUEST_BYTES_MAX == FBK_WIRE_REQUEST_BYTES_MAX,
               "one bound, two headers");
_Static_assert(FBK_CLIENT_CREATION_MARK_AT == FBK_FRAME_CREATION_MARK_AT,
               "one layout, two headers");

/* ------------ adds */

uint64_t
fbk_client_adds_size(uint32_t digest_type, uint64_t data_bytes, uint32_t count)
{
    int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (digest_bytes < 0)
        return 0;
    return data_bytes + (uint64_t)count *
                            (FBK_WIRE_ADD_HEAD_BYTES + ENTRY_HEADER_BYTES + (uint32_t)digest_bytes);
}

/* Returns the entry's bytes, or FBK_E_PROTOCOL. */
static int64_t
put_entry(const struct fbk_client_ledger *ledger, uint8_t *entry, int64_t entry_id, int64_t lac,
          int64_t length, const uint8_t *data, uint32_t data_bytes, const uint8_t *hmac)
{
    fbk_store_be64(entry, (uint64_t)ledger->ledger_id);
    fbk_store_be64(entry + 8, (uint64_t)entry_id);
    fbk_store_be64(entry + 16, (uint64_t)lac);
    fbk_store_be64(entry + 24, (uint64_t)length);
    if (hmac == NULL)
        return fbk_digest_put_data(ledger->digest_type, entry, data, data_bytes);
    memcpy(entry + ENTRY_HEADER_BYTES, hmac, 20);
    memcpy(entry + ENTRY_HEADER_BYTES + 20, data, data_bytes);
    return (int64_t)ENTRY_HEADER_BYTES + 20 + data_bytes;
}

int64_t
fbk_client_encode_adds(const struct fbk_client_ledger *ledger, uint64_t first_request_id,
                       int64_t first_entry_id, int64_t lac, int64_t length_before,
                       const uint8_t *data, const uint32_t *data_sizes, uint32_t count,
                       const uint8_t *digests, uint8_t *out, uint64_t out_bytes)
{
    const int32_t digest_bytes = fbk_digest_bytes(ledger->digest_type);
    if (digest_bytes < 0 || (ledger->digest_type == FBK_DIGEST_HMAC) != (digests != NULL))
        return FBK_E_PROTOCOL;
    uint64_t at = 0;
    int64_t length = length_before;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t entry_bytes = ENTRY_HEADER_BYTES + (uint64_t)digest_bytes + data_sizes[i];
        if (entry_bytes > INT32_MAX || at + FBK_WIRE_ADD_HEAD_BYTES + entry_bytes > out_bytes ||
            at > INT32_MAX)
            return FBK_E_FULL;
        uint8_t *entry;
        const uint32_t frame_bytes =
            fbk_wire_put_add(out + at, first_request_id + i, ledger->ledger_id,
                             first_entry_id + (int64_t)i, ledger->flags, ledger->digest_type,
                             ledger->master_key, NULL, (uint32_t)entry_bytes, &entry);
        fbk_wire_set_creation_mark(out + at, ledger->creation_mark);
        length += data_sizes[i];
        const int64_t put =
            put_entry(ledger, entry, first_entry_id + (int64_t)i, lac, length, data, data_sizes[i],
                      digests == NULL ? NULL : digests + 20u * (uint64_t)i);
        if (put < 0)
            return FBK_E_PROTOCOL;
        FBK_ASSERT((uint64_t)put == entry_bytes);
        data += data_sizes[i];
        at += frame_bytes;
    }
    return (int64_t)at;
}

uint64_t
fbk_client_add_batch_size(uint32_t digest_type, uint64_t data_bytes, uint32_t count)
{
    const int32_t digest_bytes = fbk_digest_bytes(digest_type);
    const uint64_t entries_bytes =
        data_bytes + (uint64_t)count * (ENTRY_HEADER_BYTES + (uint32_t)digest_bytes);
    if (digest_bytes < 0 || entries_bytes > INT32_MAX)
        return 0;
    return fbk_wire_add_batch_size(count, entries_bytes);
}

int64_t
fbk_client_encode_add_batch(const struct fbk_client_ledger *ledger, uint64_t request_id,
                            int64_t first_entry_id, const int64_t *lacs, const int64_t *lengths,
                            const uint8_t *data, const uint32_t *data_sizes, uint32_t count,
                            const uint8_t *digests, uint8_t *out, uint64_t out_bytes)
{
    const int32_t digest_bytes = fbk_digest_bytes(ledger->digest_type);
    if (digest_bytes < 0 || (ledger->digest_type == FBK_DIGEST_HMAC) != (digests != NULL))
        return FBK_E_PROTOCOL;
    uint64_t entries_bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        entries_bytes += ENTRY_HEADER_BYTES + (uint64_t)digest_bytes + data_sizes[i];
    if (entries_bytes > INT32_MAX || fbk_wire_add_batch_size(count, entries_bytes) != out_bytes)
        return FBK_E_FULL;
    uint8_t *sizes, *entry;
    fbk_wire_put_add_batch(out, request_id, ledger->ledger_id, first_entry_id, ledger->flags,
                           ledger->digest_type, ledger->master_key, ledger->creation_mark, count,
                           (uint32_t)entries_bytes, &sizes, &entry);
    for (uint32_t i = 0; i < count; i++) {
        const int64_t put =
            put_entry(ledger, entry, first_entry_id + (int64_t)i, lacs[i], lengths[i], data,
                      data_sizes[i], digests == NULL ? NULL : digests + 20u * (uint64_t)i);
        if (put < 0)
            return FBK_E_PROTOCOL;
        fbk_store_u32(sizes + 4ull * i, (uint32_t)put);
        entry += put;
        data += data_sizes[i];
    }
    return (int64_t)out_bytes;
}

/* ------------ answers */

static uint64_t
place(const uint8_t *bytes, const uint8_t *part, uint32_t size)
{
    return part == NULL ? 0 : (uint64_t)(part - bytes) << 32 | size;
}

static void
put_event(uint64_t *event, const uint8_t *bytes, const uint8_t *frame, uint32_t frame_bytes,
          const struct fbk_response *response)
{
    event[0] = response->body_type | (uint64_t)response->status << 16 |
               (uint64_t)(response->fenced != 0) << 32 |
               (uint64_t)(response->add_wait_us & INT32_MAX) << 33;
    event[1] = response->request_id;
    event[2] = 1;
    event[3] = (uint64_t)response->entry_id;
    event[4] = response->body_type == FBK_RESPONSE_BODY_PRODUCE_REPLY
                   ? (uint64_t)response->segment << 32 | response->slot
                   : (uint64_t)response->lac;
    event[5] = place(bytes, response->entry, response->entry_bytes);
    if (response->entry_sizes != NULL)
        event[6] = place(bytes, response->entry_sizes, response->entry_count);
    else if (response->lac_body != NULL)
        event[6] = place(bytes, response->lac_body, response->lac_body_bytes);
    else
        event[6] = place(bytes, response->ranges, response->range_count);
    event[7] = place(bytes, frame, frame_bytes);
}

/* Is this response one more of the run that `event` is? */
static bool
continues(const uint64_t *event, const struct fbk_response *response)
{
    return event[0] == (uint64_t)response->status << 16 && response->body_type == 0 &&
           response->request_id == event[1] + event[2];
}

int32_t
fbk_client_parse(const uint8_t *bytes, uint32_t size_bytes, uint32_t frame_size_bytes_max,
                 uint64_t *events, uint32_t event_count_max, uint32_t *consumed, uint32_t *wanted)
{
    uint32_t at = 0, count = 0;
    *wanted = 0;
    while (size_bytes - at >= 4) {
        const uint64_t frame_bytes = 4 + (uint64_t)fbk_load_u32(bytes + at);
        struct fbk_response response;
        if (frame_bytes > frame_size_bytes_max)
            return FBK_E_PROTOCOL;
        if (frame_bytes > size_bytes - at) {
            *wanted = (uint32_t)frame_bytes;
            break;
        }
        if (fbk_wire_read_response(bytes + at, (uint32_t)frame_bytes, &response) != 0)
            return FBK_E_PROTOCOL;
        uint64_t *last = events + (size_t)FBK_CLIENT_EVENT_WORDS * (count == 0 ? 0 : count - 1);
        if (count > 0 && continues(last, &response)) {
            last[2]++;
        } else {
            if (count == event_count_max)
                break;
            put_event(events + (size_t)FBK_CLIENT_EVENT_WORDS * count, bytes, bytes + at,
                      (uint32_t)frame_bytes, &response);
            count++;
        }
        at += (uint32_t)frame_bytes;
    }
    *consumed = at;
    return (int32_t)count;
}

int32_t
fbk_client_check_entries(uint32_t digest_type, int64_t ledger_id, const uint8_t *entries,
                         uint32_t entries_bytes, const uint8_t *entry_sizes, uint32_t count,
                         int64_t *out)
{
    const int32_t digest_bytes = fbk_digest_bytes(digest_type);
    uint64_t at = 0;
    int64_t previous = -1;
    if (digest_bytes < 0)
        return FBK_E_PROTOCOL;
    const uint32_t head_bytes = ENTRY_HEADER_BYTES + (uint32_t)digest_bytes;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t size_bytes = fbk_load_u32(entry_sizes + 4u * (size_t)i);
        const uint8_t *entry = entries + at;
        if (size_bytes < head_bytes || at + size_bytes > entries_bytes)
            return (int32_t)i;
        const int64_t entry_id = (int64_t)fbk_load_be64(entry + 8);
        if ((int64_t)fbk_load_be64(entry) != ledger_id || entry_id <= previous)
            return (int32_t)i;
        if (digest_type != FBK_DIGEST_HMAC &&
            fbk_digest_check(digest_type, entry, size_bytes) != FBK_S_OK)
            return (int32_t)i;
        out[5 * i] = entry_id;
        out[5 * i + 1] = (int64_t)fbk_load_be64(entry + 16);
        out[5 * i + 2] = (int64_t)fbk_load_be64(entry + 24);
        out[5 * i + 3] = (int64_t)(at + head_bytes);
        out[5 * i + 4] = size_bytes - head_bytes;
        previous = entry_id;
        at += size_bytes;
    }
    return (int32_t)count;
}

/* ------------ other requests */

uint32_t
fbk_client_put_hello(uint8_t *out, uint64_t request_id, const uint8_t *name, uint32_t name_bytes)
{
    return fbk_wire_put_hello(out, request_id, VERSION_MIN, VERSION_MAX, name, name_bytes);
}

uint32_t
fbk_client_put_read(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t entry_id,
                    uint32_t flags, const uint8_t *master_key)
{
    return fbk_wire_put_read_request(out, request_id, ledger_id, entry_id, flags, master_key);
}

uint32_t
fbk_client_put_read_batch(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                          int64_t first_entry_id, int64_t last_entry_id, uint32_t entry_count_max,
                          uint32_t size_bytes_max)
{
    return fbk_wire_put_read_batch_request(out, request_id, ledger_id, first_entry_id,
                                           last_entry_id, entry_count_max, size_bytes_max);
}

uint32_t
fbk_client_put_read_lac(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t previous_lac,
                        uint32_t timeout_ms, uint32_t flags)
{
    return fbk_wire_put_read_lac_request(out, request_id, ledger_id, previous_lac, timeout_ms,
                                         flags);
}

uint32_t
fbk_client_put_write_lac(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t lac,
                         const uint8_t *master_key, const uint8_t *body, uint32_t body_bytes)
{
    return fbk_wire_put_write_lac(out, request_id, ledger_id, lac, master_key, body, body_bytes);
}

uint32_t
fbk_client_put_force(uint8_t *out, uint64_t request_id, int64_t ledger_id)
{
    return fbk_wire_put_force(out, request_id, ledger_id);
}

uint32_t
fbk_client_put_list(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t first_entry_id,
                    uint32_t range_count_max)
{
    return fbk_wire_put_list_request(out, request_id, ledger_id, first_entry_id, range_count_max);
}

uint32_t
fbk_client_put_info(uint8_t *out, uint64_t request_id)
{
    return fbk_wire_put_info(out, request_id);
}

uint32_t
fbk_client_put_ping(uint8_t *out, uint64_t request_id)
{
    return fbk_wire_put_ping(out, request_id);
}

uint64_t
fbk_client_produce_size(uint32_t number_count, uint64_t records_bytes)
{
    if (number_count > FBK_CLIENT_PRODUCE_RECORDS_MAX || records_bytes > INT32_MAX / 2)
        return 0;
    return fbk_wire_produce_size(number_count, (uint32_t)records_bytes);
}

uint32_t
fbk_client_put_produce(uint8_t *out, uint64_t request_id, uint32_t producer, int64_t follows,
                       int64_t first_number, uint32_t record_count, const int64_t *numbers,
                       const uint8_t *records, uint32_t records_bytes)
{
    return fbk_wire_put_produce(out, request_id, producer, follows, first_number, record_count,
                                numbers, records, records_bytes);
}

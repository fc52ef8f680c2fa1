/* Requests of Apache's protocols as a bookie reads them.  Where Apache's bookie would answer an
 * error its number is the verdict's status; where its decoder throws, which ends the connection,
 * the verdict is CLOSE. */
#include "apache/apache.h"
#include "apache/messages.h"
#include "apache/packet.h"

uint32_t
fbk_apache_frame_version(const uint8_t *body, uint32_t body_bytes)
{
    if (body_bytes == 0)
        return 0;
    return body[0] == FBK_APACHE_FIRST_BYTE_V3 ? 3 : 2;
}

static int32_t
refuse(uint32_t *status, uint32_t reason)
{
    *status = reason;
    return FBK_APACHE_REFUSE;
}

/* The ids that an add is stored under are those in its entry. */
static int32_t
take_entry(struct fbk_apache_request *request, const uint8_t *entry, uint32_t entry_bytes,
           uint32_t *status)
{
    if (entry_bytes < FBK_APACHE_ENTRY_BYTES_MIN)
        return refuse(status, FBK_APACHE_EBADREQ);
    request->body = entry;
    request->body_bytes = entry_bytes;
    request->ledger_id = (int64_t)fbk_load_be64(entry);
    request->entry_id = (int64_t)fbk_load_be64(entry + 8);
    return request->master_key == NULL ? refuse(status, FBK_APACHE_EUA) : FBK_APACHE_GOOD;
}

/* ------------ version 2 */

static uint32_t
flags_of_packet(uint32_t flags, uint32_t opcode)
{
    if (opcode == FBK_APACHE_PACKET_AUTH)
        return 0;
    uint32_t known = (flags & FBK_APACHE_PACKET_HIGH_PRIORITY) != 0 ? FBK_APACHE_HIGH_PRIORITY : 0;
    if (opcode == FBK_APACHE_PACKET_ADD)
        return known | ((flags & FBK_APACHE_PACKET_RECOVERY) != 0 ? FBK_APACHE_RECOVERY : 0);
    return known | ((flags & FBK_APACHE_PACKET_FENCE) != 0 ? FBK_APACHE_FENCE : 0);
}

static int32_t
read_packet_add(const uint8_t *body, uint32_t body_bytes, struct fbk_apache_request *request,
                uint32_t *status)
{
    const uint32_t head_bytes = 4 + FBK_APACHE_MASTER_KEY_BYTES;
    if (body_bytes < head_bytes + 16)
        return FBK_APACHE_CLOSE;
    request->operation = FBK_APACHE_ADD;
    request->master_key = body + 4;
    const uint8_t *entry = body + head_bytes;
    request->echo_ledger_id = (int64_t)fbk_load_be64(entry);
    request->echo_entry_id = (int64_t)fbk_load_be64(entry + 8);
    return take_entry(request, entry, body_bytes - head_bytes, status);
}

/* Single reads and batch reads; bytes behind what is asked for mean nothing. */
static int32_t
read_packet_read(const uint8_t *body, uint32_t body_bytes, bool is_batch,
                 struct fbk_apache_request *request, uint32_t *status)
{
    uint32_t size_bytes = is_batch ? 4 + 16 + 8 + 4 + 8 : 4 + 16;
    if (body_bytes < size_bytes)
        return FBK_APACHE_CLOSE;
    request->operation = is_batch ? FBK_APACHE_READ_BATCH : FBK_APACHE_READ;
    request->ledger_id = request->echo_ledger_id = (int64_t)fbk_load_be64(body + 4);
    request->entry_id = request->echo_entry_id = (int64_t)fbk_load_be64(body + 12);
    if (is_batch) {
        request->transaction_id = fbk_load_be64(body + 20);
        request->count_max = (int32_t)fbk_load_be32(body + 28);
        request->size_bytes_max = (int64_t)fbk_load_be64(body + 32);
    }
    if ((request->flags & FBK_APACHE_FENCE) == 0)
        return FBK_APACHE_GOOD;
    /* Versions 0 and 1 could fence without a key; no bookie lets them any more. */
    if ((int8_t)request->version < 2)
        return refuse(status, FBK_APACHE_EUA);
    if (body_bytes < size_bytes + FBK_APACHE_MASTER_KEY_BYTES)
        return FBK_APACHE_CLOSE;
    request->master_key = body + size_bytes;
    return FBK_APACHE_GOOD;
}

static int32_t
read_packet_auth(const uint8_t *body, uint32_t body_bytes, struct fbk_apache_request *request)
{
    uint64_t present;
    struct fbk_protobuf_value values[AUTH_SLOTS];
    if (!fbk_protobuf_read(&fbk_apache_auth_message, body + 4, body_bytes - 4, &present, values))
        return FBK_APACHE_CLOSE;
    request->operation = FBK_APACHE_AUTH;
    request->plugin = values[AUTH_PLUGIN].bytes;
    request->plugin_bytes = (uint32_t)values[AUTH_PLUGIN].number;
    request->body = values[AUTH_PAYLOAD].bytes;
    request->body_bytes = (uint32_t)values[AUTH_PAYLOAD].number;
    return FBK_APACHE_GOOD;
}

static int32_t
read_packet(const uint8_t *body, uint32_t body_bytes, struct fbk_apache_request *request,
            uint32_t *status)
{
    if (body_bytes < 4)
        return FBK_APACHE_CLOSE;
    uint32_t header = fbk_load_be32(body);
    request->protocol = 2;
    request->version = (uint8_t)(header >> 24);
    /* Version 0 had a bare number there, and no flags. */
    uint32_t opcode = request->version == 0 ? header & 0xff : header >> 16 & 0xff;
    request->flags = request->version == 0 ? 0 : flags_of_packet(header & 0xffff, opcode);
    int32_t verdict;
    switch (opcode) {
    case FBK_APACHE_PACKET_ADD: verdict = read_packet_add(body, body_bytes, request, status); break;
    case FBK_APACHE_PACKET_READ:
        verdict = read_packet_read(body, body_bytes, false, request, status);
        break;
    case FBK_APACHE_PACKET_READ_BATCH:
        verdict = read_packet_read(body, body_bytes, true, request, status);
        break;
    case FBK_APACHE_PACKET_AUTH: return read_packet_auth(body, body_bytes, request);
    default: return FBK_APACHE_CLOSE;
    }
    /* The version is judged after the decoder has had its say. */
    if (verdict != FBK_APACHE_CLOSE && request->version > FBK_APACHE_PACKET_VERSION)
        return refuse(status, FBK_APACHE_EBADVERSION);
    return verdict;
}

/* ------------ version 3 */

/* What was parsed of a Request; a slot that did not come reads as 0 or NULL. */
struct message {
    uint64_t present;
    struct fbk_protobuf_value values[REQUEST_SLOTS];
};

static bool
has(const struct message *message, uint32_t slot)
{
    return (message->present >> slot & 1) != 0;
}

static int64_t
number_of(const struct message *message, uint32_t slot)
{
    return has(message, slot) ? (int64_t)message->values[slot].number : 0;
}

static const uint8_t *
bytes_of(const struct message *message, uint32_t slot, uint32_t *size_bytes)
{
    bool is_there = has(message, slot);
    *size_bytes = is_there ? (uint32_t)message->values[slot].number : 0;
    return is_there ? message->values[slot].bytes : NULL;
}

static const uint8_t *
key_of(const struct message *message, uint32_t slot)
{
    uint32_t size_bytes;
    const uint8_t *key = bytes_of(message, slot, &size_bytes);
    return size_bytes == FBK_APACHE_MASTER_KEY_BYTES ? key : NULL;
}

static int32_t
read_add(const struct message *message, struct fbk_apache_request *request, uint32_t *status)
{
    request->echo_ledger_id = number_of(message, REQUEST_ADD_LEDGER_ID);
    request->echo_entry_id = number_of(message, REQUEST_ADD_ENTRY_ID);
    request->master_key = key_of(message, REQUEST_ADD_MASTER_KEY);
    if (has(message, REQUEST_ADD_FLAG)) /* the only one is RECOVERY_ADD */
        request->flags |= FBK_APACHE_RECOVERY;
    else if ((number_of(message, REQUEST_ADD_WRITE_FLAGS) & 1) != 0)
        request->flags |= FBK_APACHE_DEFERRED_SYNC;
    uint32_t entry_bytes;
    const uint8_t *entry = bytes_of(message, REQUEST_ADD_BODY, &entry_bytes);
    return take_entry(request, entry, entry_bytes, status);
}

static int32_t
read_long_poll(const struct message *message, struct fbk_apache_request *request, uint32_t *status)
{
    request->flags |= FBK_APACHE_HAS_PREVIOUS_LAC;
    request->previous_lac = number_of(message, REQUEST_READ_PREVIOUS_LAC);
    if (has(message, REQUEST_READ_TIMEOUT)) {
        request->flags |= FBK_APACHE_HAS_TIMEOUT;
        request->timeout_ms = number_of(message, REQUEST_READ_TIMEOUT);
    }
    if (!has(message, REQUEST_READ_FLAG))
        return FBK_APACHE_GOOD;
    request->flags |= FBK_APACHE_PIGGYBACK;
    return request->entry_id == FBK_APACHE_NO_ENTRY ? FBK_APACHE_GOOD
                                                    : refuse(status, FBK_APACHE_EBADREQ);
}

static int32_t
read_read(const struct message *message, struct fbk_apache_request *request, uint32_t *status)
{
    request->ledger_id = request->echo_ledger_id = number_of(message, REQUEST_READ_LEDGER_ID);
    request->entry_id = request->echo_entry_id = number_of(message, REQUEST_READ_ENTRY_ID);
    request->master_key = key_of(message, REQUEST_READ_MASTER_KEY);
    if (number_of(message, REQUEST_READ_FLAG) == FBK_APACHE_READ_FLAG_FENCE) {
        request->flags |= FBK_APACHE_FENCE;
        return request->master_key == NULL ? refuse(status, FBK_APACHE_EUA) : FBK_APACHE_GOOD;
    }
    /* ENTRY_PIGGYBACK without previousLAC is a read like any other to Apache's bookies. */
    return has(message, REQUEST_READ_PREVIOUS_LAC) ? read_long_poll(message, request, status)
                                                   : FBK_APACHE_GOOD;
}

/* Like an entry, the body says where it belongs: ledger, LAC, digest. */
static int32_t
read_write_lac(const struct message *message, struct fbk_apache_request *request, uint32_t *status)
{
    request->echo_ledger_id = number_of(message, REQUEST_WRITE_LAC_LEDGER_ID);
    request->master_key = key_of(message, REQUEST_WRITE_LAC_MASTER_KEY);
    request->body = bytes_of(message, REQUEST_WRITE_LAC_BODY, &request->body_bytes);
    if (request->body_bytes < 16)
        return refuse(status, FBK_APACHE_EBADREQ);
    request->ledger_id = (int64_t)fbk_load_be64(request->body);
    request->entry_id = (int64_t)fbk_load_be64(request->body + 8);
    return request->master_key == NULL ? refuse(status, FBK_APACHE_EUA) : FBK_APACHE_GOOD;
}

static int32_t
read_ledger_only(const struct message *message, uint32_t slot, struct fbk_apache_request *request)
{
    request->ledger_id = request->echo_ledger_id = number_of(message, slot);
    return FBK_APACHE_GOOD;
}

/* The message that an operation is about; CONTEXT, which is about none, for those that nobody
 * knows. */
static uint32_t
slot_of(uint32_t operation)
{
    switch (operation) {
    case FBK_APACHE_READ: return REQUEST_READ;
    case FBK_APACHE_ADD: return REQUEST_ADD;
    case FBK_APACHE_WRITE_LAC: return REQUEST_WRITE_LAC;
    case FBK_APACHE_READ_LAC: return REQUEST_READ_LAC;
    case FBK_APACHE_INFO: return REQUEST_INFO;
    case FBK_APACHE_FORCE: return REQUEST_FORCE;
    case FBK_APACHE_LIST: return REQUEST_LIST;
    default: return REQUEST_CONTEXT;
    }
}

static int32_t
read_body(const struct message *message, struct fbk_apache_request *request, uint32_t *status)
{
    switch (request->operation) {
    case FBK_APACHE_READ: return read_read(message, request, status);
    case FBK_APACHE_ADD: return read_add(message, request, status);
    case FBK_APACHE_WRITE_LAC: return read_write_lac(message, request, status);
    case FBK_APACHE_READ_LAC: return read_ledger_only(message, REQUEST_READ_LAC_LEDGER_ID, request);
    case FBK_APACHE_FORCE: return read_ledger_only(message, REQUEST_FORCE_LEDGER_ID, request);
    case FBK_APACHE_LIST: return read_ledger_only(message, REQUEST_LIST_LEDGER_ID, request);
    case FBK_APACHE_INFO:
        request->info_wanted = number_of(message, REQUEST_INFO_WANTED);
        return FBK_APACHE_GOOD;
    default: return refuse(status, FBK_APACHE_EBADREQ);
    }
}

/* Numbers have at most ten bytes, sizes five; what is longer, or does not end, is left to the
 * tables. */
#define NUMBER_BYTES_MAX FBK_PROTOBUF_VARINT_BYTES_MAX
#define SIZE_BYTES_MAX 5u

static inline const uint8_t *
scan_varint(const uint8_t *at, const uint8_t *end, uint32_t bytes_max, uint64_t *value)
{
    uint64_t sum = 0;
    for (uint32_t shift = 0; shift < 7 * bytes_max && at < end; shift += 7) {
        uint8_t byte = *at++;
        sum |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = sum;
            return at;
        }
    }
    return NULL;
}

/* An add as every client writes nearly all of its adds: a header of three fields, then the message
 * alone, its four required fields in order.  Anything else, good or bad, is for the tables: false,
 * and nothing of *request means anything. */
static bool
scan_add(const uint8_t *body, uint32_t body_bytes, struct fbk_apache_request *request,
         uint32_t *entry_bytes)
{
    static const uint8_t header[5] = {1 << 3, FBK_APACHE_PROTOCOL_VERSION, 2 << 3, FBK_APACHE_ADD,
                                      3 << 3};
    const uint8_t *at = body + 2, *end = body + body_bytes;
    uint64_t ledger_id, entry_id, size_bytes;
    if (body_bytes < 64 || memcmp(at, header, sizeof header) != 0)
        return false;
    at = scan_varint(at + sizeof header, end, NUMBER_BYTES_MAX, &request->transaction_id);
    /* field 101 */
    if (at == NULL || at != body + 2 + body[1] || end - at < 2 || at[0] != 0xaa || at[1] != 0x06)
        return false;
    at = scan_varint(at + 2, end, SIZE_BYTES_MAX, &size_bytes);
    if (at == NULL || size_bytes != (uint64_t)(end - at) || at == end || *at != 1 << 3)
        return false;
    at = scan_varint(at + 1, end, NUMBER_BYTES_MAX, &ledger_id);
    if (at == NULL || at == end || *at != 2 << 3)
        return false;
    at = scan_varint(at + 1, end, NUMBER_BYTES_MAX, &entry_id);
    if (at == NULL || end - at < 2 + FBK_APACHE_MASTER_KEY_BYTES + 1 ||
        at[0] != (3 << 3 | FBK_PROTOBUF_WIRE_BYTES) || at[1] != FBK_APACHE_MASTER_KEY_BYTES ||
        at[2 + FBK_APACHE_MASTER_KEY_BYTES] != (4 << 3 | FBK_PROTOBUF_WIRE_BYTES))
        return false;
    request->master_key = at + 2;
    at = scan_varint(at + 2 + FBK_APACHE_MASTER_KEY_BYTES + 1, end, SIZE_BYTES_MAX, &size_bytes);
    if (at == NULL || size_bytes != (uint64_t)(end - at))
        return false;
    request->echo_ledger_id = (int64_t)ledger_id;
    request->echo_entry_id = (int64_t)entry_id;
    *entry_bytes = (uint32_t)size_bytes;
    return true;
}

static int32_t
read_message(const uint8_t *body, uint32_t body_bytes, struct fbk_apache_request *request,
             uint32_t *status)
{
    struct message message;
    uint32_t entry_bytes;
    request->protocol = 3;
    if (FBK_LIKELY(scan_add(body, body_bytes, request, &entry_bytes))) {
        request->version = FBK_APACHE_PROTOCOL_VERSION;
        request->operation = FBK_APACHE_ADD;
        return take_entry(request, body + body_bytes - entry_bytes, entry_bytes, status);
    }
    request->master_key = NULL;
    request->transaction_id = 0;
    if (!fbk_protobuf_read(&fbk_apache_requests, body, body_bytes, &message.present,
                           message.values))
        return FBK_APACHE_CLOSE;
    request->version = (uint8_t)number_of(&message, REQUEST_HEADER_VERSION);
    request->operation = (uint16_t)number_of(&message, REQUEST_HEADER_OPERATION);
    request->transaction_id = (uint64_t)number_of(&message, REQUEST_HEADER_TRANSACTION_ID);
    /* Java has no unsigned numbers */
    if ((int32_t)number_of(&message, REQUEST_HEADER_PRIORITY) > 0)
        request->flags |= FBK_APACHE_HIGH_PRIORITY;
    /* These two come before everything else, the judgement of the version too. */
    if (request->operation == FBK_APACHE_AUTH) {
        request->plugin = bytes_of(&message, REQUEST_AUTH_PLUGIN, &request->plugin_bytes);
        request->body = bytes_of(&message, REQUEST_AUTH_PAYLOAD, &request->body_bytes);
        return FBK_APACHE_GOOD;
    }
    if (request->operation == FBK_APACHE_START_TLS)
        return FBK_APACHE_GOOD;
    uint32_t slot = slot_of(request->operation);
    bool is_known = slot != REQUEST_CONTEXT;
    /* An operation without its message: what the ids default to is nobody's wish. */
    int32_t verdict = is_known && !has(&message, slot) ? refuse(status, FBK_APACHE_EBADREQ)
                                                       : read_body(&message, request, status);
    if (is_known && request->version != FBK_APACHE_PROTOCOL_VERSION)
        return refuse(status, FBK_APACHE_EBADVERSION);
    return verdict;
}

int32_t
fbk_apache_read_request(const uint8_t *body, uint32_t body_bytes,
                        struct fbk_apache_request *request, uint32_t *status)
{
    memset(request, 0, sizeof *request);
    *status = FBK_APACHE_EOK;
    switch (fbk_apache_frame_version(body, body_bytes)) {
    case 3: return read_message(body, body_bytes, request, status);
    case 2: return read_packet(body, body_bytes, request, status);
    default: return FBK_APACHE_CLOSE;
    }
}

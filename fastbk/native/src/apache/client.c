/* The client's half of Apache's protocols: requests written, replies read. */
#include "apache/apache.h"
#include "apache/messages.h"
#include "apache/packet.h"

#include "boundary/status.h"

/* ------------ version 2: requests */

#define READ_BATCH_BYTES 40u /* header, ledger, first entry, request id, count, size */
#define REPLY_BYTES 24u      /* header, error, ledger, entry */
#define LENGTH_BYTES 4u

static void
put_v2_head(uint8_t *out, uint64_t size_bytes, const struct fbk_apache_request *request,
            uint32_t opcode)
{
    const uint32_t flags =
        ((request->flags & FBK_APACHE_FENCE) != 0 ? FBK_APACHE_PACKET_FENCE : 0) |
        ((request->flags & FBK_APACHE_RECOVERY) != 0 ? FBK_APACHE_PACKET_RECOVERY : 0) |
        ((request->flags & FBK_APACHE_HIGH_PRIORITY) != 0 ? FBK_APACHE_PACKET_HIGH_PRIORITY : 0);
    fbk_store_be32(out, (uint32_t)(size_bytes - LENGTH_BYTES));
    fbk_store_be32(out + 4, fbk_apache_packet_header(request->version, opcode, flags));
}

static uint64_t
put_v2_add(uint8_t *out, uint64_t out_bytes, const struct fbk_apache_request *request,
           uint32_t opcode)
{
    const uint64_t size_bytes = 8 + FBK_APACHE_MASTER_KEY_BYTES + (uint64_t)request->body_bytes;
    if (size_bytes > out_bytes || size_bytes > INT32_MAX || request->master_key == NULL)
        return 0;
    put_v2_head(out, size_bytes, request, opcode);
    memcpy(out + 8, request->master_key, FBK_APACHE_MASTER_KEY_BYTES);
    if (request->body_bytes != 0)
        memcpy(out + 8 + FBK_APACHE_MASTER_KEY_BYTES, request->body, request->body_bytes);
    return size_bytes;
}

static uint64_t
put_v2_read(uint8_t *out, uint64_t out_bytes, const struct fbk_apache_request *request,
            uint32_t opcode)
{
    const uint64_t key_bytes =
        (request->flags & FBK_APACHE_FENCE) != 0 ? FBK_APACHE_MASTER_KEY_BYTES : 0;
    const uint64_t fixed_bytes =
        LENGTH_BYTES + (opcode == FBK_APACHE_PACKET_READ ? 4 + 8 + 8 : READ_BATCH_BYTES);
    const uint64_t size_bytes = fixed_bytes + key_bytes;
    if (size_bytes > out_bytes || (key_bytes != 0 && request->master_key == NULL))
        return 0;
    put_v2_head(out, size_bytes, request, opcode);
    fbk_store_be64(out + 8, (uint64_t)request->ledger_id);
    fbk_store_be64(out + 16, (uint64_t)request->entry_id);
    if (opcode == FBK_APACHE_PACKET_READ_BATCH) {
        fbk_store_be64(out + 24, request->transaction_id);
        fbk_store_be32(out + 32, (uint32_t)request->count_max);
        fbk_store_be64(out + 36, (uint64_t)request->size_bytes_max);
    }
    if (key_bytes != 0)
        memcpy(out + fixed_bytes, request->master_key, key_bytes);
    return size_bytes;
}

/* AuthMessage: what authentication is asked for, and what it says. */
static void
put_auth(struct fbk_protobuf_writer *writer, const struct fbk_apache_request *request)
{
    fbk_protobuf_put_bytes(writer, 1, request->plugin, request->plugin_bytes);
    fbk_protobuf_put_bytes(writer, 2, request->body, request->body_bytes);
}

static uint64_t
put_v2_auth(uint8_t *out, uint64_t out_bytes, const struct fbk_apache_request *request,
            uint32_t opcode)
{
    struct fbk_protobuf_writer message = {0};
    put_auth(&message, request);
    const uint64_t size_bytes = 8 + message.size_bytes;
    if (size_bytes > out_bytes || size_bytes > INT32_MAX)
        return 0;
    put_v2_head(out, size_bytes, request, opcode);
    message = (struct fbk_protobuf_writer){.out = out, .size_bytes = 8};
    put_auth(&message, request);
    return size_bytes;
}

static uint64_t
put_v2_request(uint8_t *out, uint64_t out_bytes, const struct fbk_apache_request *request)
{
    const uint32_t opcode = fbk_apache_packet_opcode(request->operation);
    switch (opcode) {
    case FBK_APACHE_PACKET_ADD: return put_v2_add(out, out_bytes, request, opcode);
    case FBK_APACHE_PACKET_AUTH: return put_v2_auth(out, out_bytes, request, opcode);
    case FBK_APACHE_PACKET_READ:
    case FBK_APACHE_PACKET_READ_BATCH: return put_v2_read(out, out_bytes, request, opcode);
    default: return 0;
    }
}

/* ------------ version 3: requests */

#define V3_PRIORITY_HIGH 100u
#define V3_WRITE_FLAG_DEFERRED_SYNC 1u

static void
put_key(struct fbk_protobuf_writer *writer, uint32_t field, const uint8_t *master_key)
{
    if (master_key != NULL)
        fbk_protobuf_put_bytes(writer, field, master_key, FBK_APACHE_MASTER_KEY_BYTES);
}

static void
put_header(struct fbk_protobuf_writer *writer, const struct fbk_apache_request *request)
{
    fbk_protobuf_put_number(writer, 1, FBK_APACHE_PROTOCOL_VERSION);
    fbk_protobuf_put_number(writer, 2, request->operation);
    fbk_protobuf_put_number(writer, 3, request->transaction_id);
    if ((request->flags & FBK_APACHE_HIGH_PRIORITY) != 0)
        fbk_protobuf_put_number(writer, 4, V3_PRIORITY_HIGH);
}

static void
put_read(struct fbk_protobuf_writer *writer, const struct fbk_apache_request *request)
{
    fbk_protobuf_put_number(writer, 1, (uint64_t)request->ledger_id);
    fbk_protobuf_put_number(writer, 2, (uint64_t)request->entry_id);
    put_key(writer, 3, request->master_key);
    if ((request->flags & FBK_APACHE_HAS_PREVIOUS_LAC) != 0)
        fbk_protobuf_put_number(writer, 4, (uint64_t)request->previous_lac);
    if ((request->flags & FBK_APACHE_HAS_TIMEOUT) != 0)
        fbk_protobuf_put_number(writer, 5, (uint64_t)request->timeout_ms);
    if ((request->flags & (FBK_APACHE_FENCE | FBK_APACHE_PIGGYBACK)) != 0)
        fbk_protobuf_put_number(writer, 100,
                                (request->flags & FBK_APACHE_FENCE) != 0
                                    ? FBK_APACHE_READ_FLAG_FENCE
                                    : FBK_APACHE_READ_FLAG_PIGGYBACK);
}

/* What an add and an explicit LAC begin with. */
static void
put_body(struct fbk_protobuf_writer *writer, const struct fbk_apache_request *request)
{
    fbk_protobuf_put_number(writer, 1, (uint64_t)request->ledger_id);
    fbk_protobuf_put_number(writer, 2, (uint64_t)request->entry_id);
    put_key(writer, 3, request->master_key);
    fbk_protobuf_put_bytes(writer, 4, request->body, request->body_bytes);
}

/* False: version 3 has no such request. */
static bool
put_message(struct fbk_protobuf_writer *writer, const struct fbk_apache_request *request)
{
    switch (request->operation) {
    case FBK_APACHE_READ: put_read(writer, request); return true;
    case FBK_APACHE_ADD:
        put_body(writer, request);
        if ((request->flags & FBK_APACHE_DEFERRED_SYNC) != 0)
            fbk_protobuf_put_number(writer, 5, V3_WRITE_FLAG_DEFERRED_SYNC);
        if ((request->flags & FBK_APACHE_RECOVERY) != 0)
            fbk_protobuf_put_number(writer, 100, FBK_APACHE_ADD_FLAG_RECOVERY);
        return request->master_key != NULL;
    case FBK_APACHE_WRITE_LAC: put_body(writer, request); return request->master_key != NULL;
    case FBK_APACHE_AUTH: put_auth(writer, request); return true;
    case FBK_APACHE_READ_LAC:
    case FBK_APACHE_FORCE:
    case FBK_APACHE_LIST:
        fbk_protobuf_put_number(writer, 1, (uint64_t)request->ledger_id);
        return true;
    case FBK_APACHE_INFO:
        fbk_protobuf_put_number(writer, 1, (uint64_t)request->info_wanted);
        return true;
    case FBK_APACHE_START_TLS: return true;
    default: return false;
    }
}

static uint64_t
put_v3_request(uint8_t *out, uint64_t out_bytes, const struct fbk_apache_request *request)
{
    const uint32_t field = fbk_apache_body_field(request->operation);
    struct fbk_protobuf_writer header = {0}, message = {0}, frame = {0};
    put_header(&header, request);
    if (field == 0 || !put_message(&message, request))
        return 0;
    fbk_protobuf_put_head(&frame, FBK_APACHE_HEADER, header.size_bytes);
    fbk_protobuf_put_head(&frame, field, message.size_bytes);
    const uint64_t body_bytes = frame.size_bytes + header.size_bytes + message.size_bytes;
    if (LENGTH_BYTES + body_bytes > out_bytes || body_bytes > INT32_MAX)
        return 0;
    fbk_store_be32(out, (uint32_t)body_bytes);
    frame = (struct fbk_protobuf_writer){.out = out, .size_bytes = LENGTH_BYTES};
    fbk_protobuf_put_head(&frame, FBK_APACHE_HEADER, header.size_bytes);
    put_header(&frame, request);
    fbk_protobuf_put_head(&frame, field, message.size_bytes);
    put_message(&frame, request);
    return frame.size_bytes;
}

uint64_t
fbk_apache_put_request(uint8_t *out, uint64_t out_bytes, const struct fbk_apache_request *request)
{
    return request->protocol == 2 ? put_v2_request(out, out_bytes, request)
                                  : put_v3_request(out, out_bytes, request);
}

/* ------------ version 2: replies */

static uint32_t
status_of_v2(uint32_t error)
{
    static const uint16_t from_100[8] = {
        FBK_APACHE_EBADREQ,
        FBK_APACHE_EIO,
        FBK_APACHE_EUA,
        FBK_APACHE_EBADVERSION,
        FBK_APACHE_EFENCED,
        FBK_APACHE_EREADONLY,
        FBK_APACHE_ETOOMANYREQUESTS,
        FBK_APACHE_EUNKNOWNLEDGERSTATE,
    };
    switch (error) {
    case 0: return FBK_APACHE_EOK;
    case 1: return FBK_APACHE_ENOLEDGER;
    case 2: return FBK_APACHE_ENOENTRY;
    default: return error >= 100 && error - 100 < 8 ? from_100[error - 100] : FBK_APACHE_EIO;
    }
}

/* Size, bytes, size, bytes ...; how many, or -1 when they do not end where the frame does. */
static int64_t
count_entries(const uint8_t *bytes, uint32_t size_bytes)
{
    int64_t count = 0;
    for (uint32_t at = 0; at < size_bytes; count++) {
        if (size_bytes - at < 4)
            return -1;
        const uint32_t entry_bytes = fbk_load_be32(bytes + at);
        if (entry_bytes > size_bytes - at - 4)
            return -1;
        at += 4 + entry_bytes;
    }
    return count;
}

static int32_t
read_v2_reply(const uint8_t *body, uint32_t body_bytes, struct fbk_apache_reply *reply)
{
    if (body_bytes < 4)
        return FBK_E_PROTOCOL;
    const uint32_t head = fbk_load_be32(body), opcode = head >> 16 & 0xff;
    reply->echo.version = (uint8_t)(head >> 24);
    if (opcode == FBK_APACHE_PACKET_AUTH) {
        struct fbk_protobuf_value values[AUTH_SLOTS];
        uint64_t present;
        if (!fbk_protobuf_read(&fbk_apache_auth_message, body + 4, body_bytes - 4, &present,
                               values))
            return FBK_E_PROTOCOL;
        reply->echo.operation = FBK_APACHE_AUTH;
        reply->plugin = values[AUTH_PLUGIN].bytes;
        reply->plugin_bytes = (uint32_t)values[AUTH_PLUGIN].number;
        reply->blob = values[AUTH_PAYLOAD].bytes;
        reply->blob_bytes = (uint32_t)values[AUTH_PAYLOAD].number;
        return 0;
    }
    if (body_bytes < REPLY_BYTES)
        return FBK_E_PROTOCOL;
    reply->status = status_of_v2(fbk_load_be32(body + 4));
    reply->echo.ledger_id = (int64_t)fbk_load_be64(body + 8);
    reply->echo.entry_id = (int64_t)fbk_load_be64(body + 16);
    if (opcode == FBK_APACHE_PACKET_ADD) {
        reply->echo.operation = FBK_APACHE_ADD;
        return 0;
    }
    if (opcode == FBK_APACHE_PACKET_READ) {
        reply->echo.operation = FBK_APACHE_READ;
        if (reply->status == FBK_APACHE_EOK) {
            reply->entry = body + REPLY_BYTES;
            reply->entry_bytes = body_bytes - REPLY_BYTES;
        }
        return 0;
    }
    if (opcode != FBK_APACHE_PACKET_READ_BATCH || body_bytes < REPLY_BYTES + 8)
        return FBK_E_PROTOCOL;
    reply->echo.operation = FBK_APACHE_READ_BATCH;
    reply->echo.transaction_id = fbk_load_be64(body + REPLY_BYTES);
    reply->entry_sizes = body + REPLY_BYTES + 8;
    reply->entry_bytes = body_bytes - REPLY_BYTES - 8;
    const int64_t count = count_entries(reply->entry_sizes, reply->entry_bytes);
    reply->entry_count = (uint32_t)count;
    return count < 0 ? FBK_E_PROTOCOL : 0;
}

/* ------------ version 3: replies */

struct values {
    uint64_t present;
    struct fbk_protobuf_value slots[RESPONSE_SLOTS];
};

static bool
has(const struct values *values, uint32_t slot)
{
    return (values->present >> slot & 1) != 0;
}

static int64_t
number_or(const struct values *values, uint32_t slot, int64_t absent)
{
    return has(values, slot) ? (int64_t)values->slots[slot].number : absent;
}

static void
take_bytes(const struct values *values, uint32_t slot, const uint8_t **bytes, uint32_t *size_bytes)
{
    if (!has(values, slot))
        return;
    *bytes = values->slots[slot].bytes;
    *size_bytes = (uint32_t)values->slots[slot].number;
}

/* What the answer itself says; Apache's clients look at it, too, where the one outside is good. */
static uint32_t
inner_status(const struct values *values, uint32_t operation)
{
    static const uint8_t slots[13] = {
        [FBK_APACHE_READ] = RESPONSE_READ_STATUS,
        [FBK_APACHE_ADD] = RESPONSE_ADD_STATUS,
        [FBK_APACHE_WRITE_LAC] = RESPONSE_WRITE_LAC_STATUS,
        [FBK_APACHE_READ_LAC] = RESPONSE_READ_LAC_STATUS,
        [FBK_APACHE_INFO] = RESPONSE_INFO_STATUS,
        [FBK_APACHE_FORCE] = RESPONSE_FORCE_STATUS,
        [FBK_APACHE_LIST] = RESPONSE_LIST_STATUS,
    };
    const uint32_t slot = operation < sizeof slots ? slots[operation] : 0;
    return slot != 0 ? (uint32_t)number_or(values, slot, FBK_APACHE_EOK) : FBK_APACHE_EOK;
}

static int32_t
read_v3_reply(const uint8_t *body, uint32_t body_bytes, struct fbk_apache_reply *reply)
{
    struct values values = {0};
    if (!fbk_protobuf_read(&fbk_apache_responses, body, body_bytes, &values.present, values.slots))
        return FBK_E_PROTOCOL;
    reply->echo.version = (uint8_t)values.slots[RESPONSE_HEADER_VERSION].number;
    reply->echo.operation = (uint16_t)values.slots[RESPONSE_HEADER_OPERATION].number;
    reply->echo.transaction_id = values.slots[RESPONSE_HEADER_TRANSACTION_ID].number;
    reply->status = (uint32_t)values.slots[RESPONSE_STATUS].number;
    switch (reply->echo.operation) {
    case FBK_APACHE_READ:
        reply->echo.ledger_id = number_or(&values, RESPONSE_READ_LEDGER_ID, 0);
        reply->echo.entry_id = number_or(&values, RESPONSE_READ_ENTRY_ID, FBK_APACHE_NO_ENTRY);
        reply->lac = number_or(&values, RESPONSE_READ_MAX_LAC, FBK_APACHE_ABSENT);
        reply->lac_time_ms = number_or(&values, RESPONSE_READ_LAC_TIME, FBK_APACHE_ABSENT);
        take_bytes(&values, RESPONSE_READ_BODY, &reply->entry, &reply->entry_bytes);
        break;
    case FBK_APACHE_ADD:
        reply->echo.ledger_id = number_or(&values, RESPONSE_ADD_LEDGER_ID, 0);
        reply->echo.entry_id = number_or(&values, RESPONSE_ADD_ENTRY_ID, FBK_APACHE_NO_ENTRY);
        break;
    case FBK_APACHE_READ_LAC:
        take_bytes(&values, RESPONSE_READ_LAC_BODY, &reply->lac_body, &reply->lac_body_bytes);
        take_bytes(&values, RESPONSE_READ_LAC_LAST_ENTRY, &reply->entry, &reply->entry_bytes);
        break;
    case FBK_APACHE_INFO:
        reply->total_bytes = number_or(&values, RESPONSE_INFO_TOTAL, FBK_APACHE_ABSENT);
        reply->free_bytes = number_or(&values, RESPONSE_INFO_FREE, FBK_APACHE_ABSENT);
        break;
    case FBK_APACHE_AUTH:
        take_bytes(&values, RESPONSE_AUTH_PLUGIN, &reply->plugin, &reply->plugin_bytes);
        take_bytes(&values, RESPONSE_AUTH_PAYLOAD, &reply->blob, &reply->blob_bytes);
        break;
    case FBK_APACHE_LIST:
        take_bytes(&values, RESPONSE_LIST_AVAILABILITY, &reply->blob, &reply->blob_bytes);
        break;
    default: break; /* a status alone */
    }
    if (reply->status == FBK_APACHE_EOK)
        reply->status = inner_status(&values, reply->echo.operation);
    return 0;
}

int32_t
fbk_apache_read_reply(const uint8_t *body, uint32_t body_bytes, uint32_t protocol,
                      struct fbk_apache_reply *reply)
{
    *reply = (struct fbk_apache_reply){
        .echo = {.protocol = (uint8_t)protocol},
        .lac = FBK_APACHE_ABSENT,
        .lac_time_ms = FBK_APACHE_ABSENT,
        .total_bytes = FBK_APACHE_ABSENT,
        .free_bytes = FBK_APACHE_ABSENT,
    };
    return protocol == 2 ? read_v2_reply(body, body_bytes, reply)
                         : read_v3_reply(body, body_bytes, reply);
}

/* Replies of Apache's protocols as a bookie writes them. */
#include "apache/apache.h"
#include "apache/messages.h"
#include "apache/packet.h"

/* int32 length, header, error, ledger, entry. */
#define PACKET_REPLY_BYTES (4u + 24u)

int32_t
fbk_apache_error_v2(uint32_t status)
{
    switch (status) {
    case FBK_APACHE_EOK: return 0;
    case FBK_APACHE_ENOLEDGER: return 1;
    case FBK_APACHE_ENOENTRY: return 2;
    case FBK_APACHE_EBADREQ: return 100;
    case FBK_APACHE_EUA: return 102;
    case FBK_APACHE_EBADVERSION: return 103;
    case FBK_APACHE_EFENCED: return 104;
    case FBK_APACHE_EREADONLY: return 105;
    case FBK_APACHE_ETOOMANYREQUESTS: return 106;
    default: return 101; /* EIO, and EUNKNOWNLEDGERSTATE */
    }
}

/* ------------ version 2 */

static void
put_packet_head(uint8_t *out, uint64_t frame_bytes, const struct fbk_apache_echo *echo,
                uint32_t opcode, uint32_t status)
{
    fbk_store_be32(out, (uint32_t)(frame_bytes - 4));
    fbk_store_be32(out + 4, fbk_apache_packet_header(echo->version, opcode, 0));
    fbk_store_be32(out + 8, (uint32_t)fbk_apache_error_v2(status));
    fbk_store_be64(out + 12, (uint64_t)echo->ledger_id);
    fbk_store_be64(out + 20, (uint64_t)echo->entry_id);
}

static void
put_packet_entries(uint8_t *at, const struct fbk_apache_reply *reply)
{
    const uint8_t *entry = reply->entry;
    for (uint32_t i = 0; i < reply->entry_count; i++) {
        uint32_t size_bytes = fbk_load_u32(reply->entry_sizes + 4ull * i);
        fbk_store_be32(at, size_bytes);
        memcpy(at + 4, entry, size_bytes);
        at += 4 + size_bytes;
        entry += size_bytes;
    }
}

/* The answer to an AUTH has neither error nor ids. */
static void
put_auth_message(struct fbk_protobuf_writer *writer, const struct fbk_apache_reply *reply)
{
    fbk_protobuf_put_bytes(writer, 1, reply->plugin, reply->plugin_bytes);
    fbk_protobuf_put_bytes(writer, 2, reply->blob, reply->blob_bytes);
}

static uint64_t
put_packet_auth(uint8_t *out, const struct fbk_apache_reply *reply)
{
    struct fbk_protobuf_writer writer = {.out = out == NULL ? NULL : out + 8};
    put_auth_message(&writer, reply);
    if (out != NULL) {
        fbk_store_be32(out, (uint32_t)(4 + writer.size_bytes));
        fbk_store_be32(out + 4, fbk_apache_packet_header(FBK_APACHE_PACKET_VERSION,
                                                         FBK_APACHE_PACKET_AUTH, 0));
    }
    return 8 + writer.size_bytes;
}

static uint64_t
put_packet(uint8_t *out, const struct fbk_apache_reply *reply)
{
    uint32_t opcode = fbk_apache_packet_opcode(reply->echo.operation);
    uint64_t frame_bytes = PACKET_REPLY_BYTES;
    uint64_t entry_bytes = reply->status == FBK_APACHE_EOK ? reply->entry_bytes : 0;
    switch (opcode) {
    case FBK_APACHE_PACKET_ADD: break;
    case FBK_APACHE_PACKET_AUTH: return put_packet_auth(out, reply);
    case FBK_APACHE_PACKET_READ:
        frame_bytes += entry_bytes;
        if (out != NULL && reply->entry != NULL)
            memcpy(out + PACKET_REPLY_BYTES, reply->entry, entry_bytes);
        break;
    case FBK_APACHE_PACKET_READ_BATCH:
        frame_bytes += 8;
        if (out != NULL)
            fbk_store_be64(out + PACKET_REPLY_BYTES, reply->echo.transaction_id);
        if (reply->status != FBK_APACHE_EOK)
            break;
        frame_bytes += 4ull * reply->entry_count + entry_bytes;
        if (out != NULL)
            put_packet_entries(out + PACKET_REPLY_BYTES + 8, reply);
        break;
    default: return 0;
    }
    if (out != NULL)
        put_packet_head(out, frame_bytes, &reply->echo, opcode, reply->status);
    return frame_bytes;
}

/* ------------ version 3 */

static void
put_present(struct fbk_protobuf_writer *writer, uint32_t field, int64_t value)
{
    if (value != FBK_APACHE_ABSENT)
        fbk_protobuf_put_number(writer, field, (uint64_t)value);
}

static void
put_status_and_ledger(struct fbk_protobuf_writer *writer, const struct fbk_apache_reply *reply)
{
    fbk_protobuf_put_number(writer, 1, reply->status);
    fbk_protobuf_put_number(writer, 2, (uint64_t)reply->echo.ledger_id);
}

static void
put_read(struct fbk_protobuf_writer *writer, const struct fbk_apache_reply *reply)
{
    put_status_and_ledger(writer, reply);
    fbk_protobuf_put_number(writer, 3, (uint64_t)reply->echo.entry_id);
    put_present(writer, 5, reply->lac);
    put_present(writer, 6, reply->lac_time_ms);
    /* Last, though its number is not, so that a frame is a head and then the entry wherever that
     * is. */
    if (reply->status == FBK_APACHE_EOK && reply->entry_bytes > 0)
        fbk_protobuf_put_bytes(writer, 4, reply->entry, reply->entry_bytes);
}

static void
put_read_lac(struct fbk_protobuf_writer *writer, const struct fbk_apache_reply *reply)
{
    put_status_and_ledger(writer, reply);
    if (reply->lac_body != NULL)
        fbk_protobuf_put_bytes(writer, 3, reply->lac_body, reply->lac_body_bytes);
    if (reply->entry_bytes > 0)
        fbk_protobuf_put_bytes(writer, 4, reply->entry, reply->entry_bytes);
}

/* The fields of the message that answers the operation. */
static void
put_inner(struct fbk_protobuf_writer *writer, const struct fbk_apache_reply *reply)
{
    switch (reply->echo.operation) {
    case FBK_APACHE_READ: put_read(writer, reply); break;
    case FBK_APACHE_ADD:
        put_status_and_ledger(writer, reply);
        fbk_protobuf_put_number(writer, 3, (uint64_t)reply->echo.entry_id);
        break;
    case FBK_APACHE_AUTH: put_auth_message(writer, reply); break;
    case FBK_APACHE_READ_LAC: put_read_lac(writer, reply); break;
    case FBK_APACHE_INFO:
        fbk_protobuf_put_number(writer, 1, reply->status);
        put_present(writer, 2, reply->total_bytes);
        put_present(writer, 3, reply->free_bytes);
        break;
    case FBK_APACHE_LIST:
        put_status_and_ledger(writer, reply);
        if (reply->blob != NULL)
            fbk_protobuf_put_bytes(writer, 3, reply->blob, reply->blob_bytes);
        break;
    case FBK_APACHE_START_TLS: break; /* an empty message */
    default: put_status_and_ledger(writer, reply); break;
    }
}

/* The field that holds it; 0 where a status says everything. */
static uint32_t
inner_field(const struct fbk_apache_reply *reply)
{
    if (reply->echo.operation == FBK_APACHE_AUTH && reply->plugin == NULL)
        return 0;
    if (reply->echo.operation == FBK_APACHE_START_TLS && reply->status != FBK_APACHE_EOK)
        return 0;
    return fbk_apache_body_field(reply->echo.operation);
}

static void
put_header(struct fbk_protobuf_writer *writer, const struct fbk_apache_echo *echo)
{
    fbk_protobuf_put_number(writer, 1, FBK_APACHE_PROTOCOL_VERSION);
    fbk_protobuf_put_number(writer, 2, echo->operation);
    fbk_protobuf_put_number(writer, 3, echo->transaction_id);
}

static uint64_t
put_message(uint8_t *out, const struct fbk_apache_reply *reply)
{
    struct fbk_protobuf_writer header = {0}, inner = {0};
    struct fbk_protobuf_writer writer = {.out = out == NULL ? NULL : out + 4};
    uint32_t field = inner_field(reply);
    put_header(&header, &reply->echo);
    fbk_protobuf_put_head(&writer, FBK_APACHE_HEADER, header.size_bytes);
    put_header(&writer, &reply->echo);
    fbk_protobuf_put_number(&writer, FBK_APACHE_RESPONSE_STATUS, reply->status);
    if (field != 0) {
        put_inner(&inner, reply);
        fbk_protobuf_put_head(&writer, field, inner.size_bytes);
        if (out == NULL)
            writer.size_bytes += inner.size_bytes;
        else
            put_inner(&writer, reply);
    }
    if (out != NULL)
        fbk_store_be32(out, (uint32_t)writer.size_bytes);
    return 4 + writer.size_bytes;
}

uint64_t
fbk_apache_put_reply(uint8_t *out, const struct fbk_apache_reply *reply)
{
    return reply->echo.protocol == 2 ? put_packet(out, reply) : put_message(out, reply);
}

uint64_t
fbk_apache_reply_size(const struct fbk_apache_reply *reply)
{
    return fbk_apache_put_reply(NULL, reply);
}

/* ------------ adds */

uint32_t
fbk_apache_put_add_reply(uint8_t *out, const struct fbk_apache_echo *echo, uint32_t status)
{
    if (echo->protocol == 2) {
        put_packet_head(out, PACKET_REPLY_BYTES, echo, FBK_APACHE_PACKET_ADD, status);
        return PACKET_REPLY_BYTES;
    }
    /* No length in it can reach 128: each is one byte, filled in when what it counts is there. */
    uint8_t *at = out + 4;
    *at++ = FBK_APACHE_HEADER << 3 | FBK_PROTOBUF_WIRE_BYTES;
    uint8_t *header = at++;
    *at++ = 1 << 3;
    *at++ = FBK_APACHE_PROTOCOL_VERSION;
    *at++ = 2 << 3;
    *at++ = FBK_APACHE_ADD;
    *at++ = 3 << 3;
    at = fbk_protobuf_store_varint(at, echo->transaction_id);
    *header = (uint8_t)(at - header - 1);
    *at++ = FBK_APACHE_RESPONSE_STATUS << 3;
    at = fbk_protobuf_store_varint(at, status);
    at = fbk_protobuf_store_varint(at, FBK_APACHE_BODY_ADD << 3 | FBK_PROTOBUF_WIRE_BYTES);
    uint8_t *inner = at++;
    *at++ = 1 << 3;
    at = fbk_protobuf_store_varint(at, status);
    *at++ = 2 << 3;
    at = fbk_protobuf_store_varint(at, (uint64_t)echo->ledger_id);
    *at++ = 3 << 3;
    at = fbk_protobuf_store_varint(at, (uint64_t)echo->entry_id);
    *inner = (uint8_t)(at - inner - 1);
    fbk_store_be32(out, (uint32_t)(at - out - 4));
    return (uint32_t)(at - out);
}

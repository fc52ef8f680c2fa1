/* Apache's frames from outside: what a bookie makes of any bytes, what it would answer, and the
 * reader of protocol buffers over both kinds of messages, and lists of entries.  Each input is read
 * as it is and as a message of version 3. */
#include "apache/apache.h"
#include "apache/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void
touch(const uint8_t *bytes, uint64_t size_bytes)
{
    for (uint64_t i = 0; bytes != NULL && i < size_bytes; i++)
        sink += bytes[i];
}

static bool
same_bytes(const uint8_t *a, uint32_t a_bytes, const uint8_t *b, uint32_t b_bytes)
{
    return (a == NULL) == (b == NULL) && a_bytes == b_bytes &&
           (a_bytes == 0 || memcmp(a, b, a_bytes) == 0);
}

/* What a client hears of an answer is what the bookie said. */
static void
hear(const uint8_t *frame, uint64_t size_bytes, const struct fbk_apache_reply *said)
{
    struct fbk_apache_reply heard;
    /* no client of ours asks in it */
    if (said->echo.protocol == 2 && said->echo.version == 0)
        return;
    FBK_ASSERT(fbk_apache_read_reply(frame + 4, (uint32_t)size_bytes - 4, said->echo.protocol,
                                     &heard) == 0);
    uint32_t operation = said->echo.operation;
    bool is_v2 = said->echo.protocol == 2;
    FBK_ASSERT(heard.echo.operation == operation);
    if (!is_v2 || operation == FBK_APACHE_READ_BATCH)
        FBK_ASSERT(heard.echo.transaction_id == said->echo.transaction_id);
    if (operation != FBK_APACHE_AUTH || !is_v2) /* version 2's has no status */
        FBK_ASSERT(fbk_apache_error_v2(heard.status) == fbk_apache_error_v2(said->status));
    if (operation == FBK_APACHE_ADD || operation == FBK_APACHE_READ ||
        (is_v2 && operation == FBK_APACHE_READ_BATCH))
        FBK_ASSERT(heard.echo.ledger_id == said->echo.ledger_id &&
                   heard.echo.entry_id == said->echo.entry_id);
    if (operation == FBK_APACHE_READ && said->status == FBK_APACHE_EOK)
        FBK_ASSERT(heard.entry_bytes == said->entry_bytes && (is_v2 || heard.lac == said->lac));
    if (operation == FBK_APACHE_LIST)
        FBK_ASSERT(same_bytes(heard.blob, heard.blob_bytes, said->blob, said->blob_bytes));
    if (operation == FBK_APACHE_INFO)
        FBK_ASSERT(heard.total_bytes == said->total_bytes && heard.free_bytes == FBK_APACHE_ABSENT);
}

/* A client asks for the same, and is understood the same. */
static void
ask_again(const struct fbk_apache_request *request)
{
    struct fbk_apache_request expected = *request, again;
    uint32_t status;
    if (request->operation == FBK_APACHE_AUTH && request->plugin == NULL)
        return;
    uint64_t room_bytes = 256ull + request->body_bytes + request->plugin_bytes;
    uint8_t *frame = malloc(room_bytes);
    if (frame == NULL)
        return;
    uint64_t size_bytes = fbk_apache_put_request(frame, room_bytes, request);
    FBK_ASSERT(size_bytes > 4 && fbk_load_be32(frame) == size_bytes - 4);
    FBK_ASSERT(fbk_apache_put_request(frame, size_bytes - 1, request) == 0);
    FBK_ASSERT(fbk_apache_put_request(frame, size_bytes, request) == size_bytes);
    FBK_ASSERT(fbk_apache_read_request(frame + 4, (uint32_t)size_bytes - 4, &again, &status) ==
               FBK_APACHE_GOOD);
    FBK_ASSERT((again.master_key == NULL) == (expected.master_key == NULL));
    FBK_ASSERT(again.master_key == NULL ||
               memcmp(again.master_key, expected.master_key, FBK_APACHE_MASTER_KEY_BYTES) == 0);
    FBK_ASSERT(same_bytes(again.body, again.body_bytes, expected.body, expected.body_bytes));
    FBK_ASSERT(
        same_bytes(again.plugin, again.plugin_bytes, expected.plugin, expected.plugin_bytes));
    again.master_key = expected.master_key;
    again.body = expected.body;
    again.plugin = expected.plugin;
    /* A client asks for the ids in its entry, and in its own version of the protocol. */
    expected.echo_ledger_id = expected.ledger_id;
    expected.echo_entry_id = request->operation == FBK_APACHE_WRITE_LAC ? 0 : expected.entry_id;
    if (request->protocol == 3)
        expected.version = again.version;
    FBK_ASSERT(memcmp(&again, &expected, sizeof again) == 0);
    free(frame);
}

/* The answer to whatever was asked, in an allocation of its own size. */
static void
answer(const struct fbk_apache_request *request, uint32_t status)
{
    struct fbk_apache_reply reply = {
        .echo = {.protocol = request->protocol,
                 .version = request->version,
                 .operation = request->operation,
                 .transaction_id = request->transaction_id,
                 .ledger_id = request->echo_ledger_id,
                 .entry_id = request->echo_entry_id},
        .status = status,
        .entry = request->operation == FBK_APACHE_READ_BATCH ? NULL : request->body,
        .entry_bytes = request->operation == FBK_APACHE_READ_BATCH ? 0 : request->body_bytes,
        .lac = request->previous_lac,
        .lac_time_ms = FBK_APACHE_ABSENT,
        .total_bytes = request->info_wanted,
        .free_bytes = FBK_APACHE_ABSENT,
        .blob = request->body,
        .blob_bytes = request->body_bytes,
        .plugin = request->plugin,
        .plugin_bytes = request->plugin_bytes,
    };
    uint64_t size_bytes = fbk_apache_reply_size(&reply);
    FBK_ASSERT(size_bytes >= 8);
    uint8_t *out = malloc(size_bytes);
    if (out == NULL)
        return;
    FBK_ASSERT(fbk_apache_put_reply(out, &reply) == size_bytes &&
               fbk_load_be32(out) == size_bytes - 4);
    if (request->protocol == 3) {
        struct fbk_protobuf_value values[RESPONSE_SLOTS];
        uint64_t present;
        FBK_ASSERT(fbk_protobuf_read(&fbk_apache_responses, out + 4, (uint32_t)size_bytes - 4,
                                     &present, values));
        FBK_ASSERT(values[RESPONSE_HEADER_TRANSACTION_ID].number == request->transaction_id);
    }
    hear(out, size_bytes, &reply);
    if (request->operation == FBK_APACHE_ADD) {
        uint8_t fast[FBK_APACHE_ADD_REPLY_BYTES_MAX];
        FBK_ASSERT(fbk_apache_put_add_reply(fast, &reply.echo, status) == size_bytes &&
                   memcmp(fast, out, size_bytes) == 0);
    }
    free(out);
}

/* The same request with an unknown field behind it goes another way through the reader, and comes
 * out the same. */
static void
read_request_by_tables(const uint8_t *body, uint32_t body_bytes,
                       const struct fbk_apache_request *expected, int32_t verdict)
{
    struct fbk_apache_request request;
    uint32_t status;
    uint8_t *longer = malloc(body_bytes + 3ull);
    if (longer == NULL)
        return;
    memcpy(longer, body, body_bytes);
    memcpy(longer + body_bytes, "\xf8\x01", 3); /* field 31, a zero */
    FBK_ASSERT(fbk_apache_read_request(longer, body_bytes + 3, &request, &status) == verdict);
    const uint8_t **pointers[] = {&request.master_key, &request.body, &request.plugin};
    for (uint32_t i = 0; i < 3; i++)
        if (*pointers[i] != NULL)
            *pointers[i] = body + (*pointers[i] - longer);
    FBK_ASSERT(memcmp(&request, expected, sizeof request) == 0);
    free(longer);
}

static void
read_request(const uint8_t *body, uint32_t body_bytes)
{
    struct fbk_apache_request request;
    uint32_t status;
    int32_t verdict = fbk_apache_read_request(body, body_bytes, &request, &status);
    FBK_ASSERT((verdict == FBK_APACHE_REFUSE) == (status != FBK_APACHE_EOK));
    if (verdict == FBK_APACHE_CLOSE)
        return;
    if (request.protocol == 3)
        read_request_by_tables(body, body_bytes, &request, verdict);
    touch(request.master_key, request.master_key != NULL ? FBK_APACHE_MASTER_KEY_BYTES : 0);
    touch(request.body, request.body_bytes);
    touch(request.plugin, request.plugin_bytes);
    FBK_ASSERT((request.flags & ~(uint32_t)FBK_APACHE_ALL_FLAGS) == 0);
    if (verdict == FBK_APACHE_GOOD) {
        bool needs_key = request.operation == FBK_APACHE_ADD ||
                         request.operation == FBK_APACHE_WRITE_LAC ||
                         (request.flags & FBK_APACHE_FENCE) != 0;
        FBK_ASSERT(!needs_key || request.master_key != NULL);
        FBK_ASSERT(request.operation != FBK_APACHE_ADD ||
                   request.body_bytes >= FBK_APACHE_ENTRY_BYTES_MIN);
        ask_again(&request);
    }
    answer(&request, status);
}

static void
read_response(const uint8_t *body, uint32_t body_bytes)
{
    struct fbk_protobuf_value values[RESPONSE_SLOTS];
    uint64_t present;
    if (!fbk_protobuf_read(&fbk_apache_responses, body, body_bytes, &present, values))
        return;
    static const uint8_t bodies[] = {RESPONSE_READ_BODY, RESPONSE_READ_LAC_BODY,
                                     RESPONSE_READ_LAC_LAST_ENTRY, RESPONSE_LIST_AVAILABILITY,
                                     RESPONSE_AUTH_PAYLOAD};
    for (uint32_t i = 0; i < sizeof bodies; i++)
        if ((present >> bodies[i] & 1) != 0)
            touch(values[bodies[i]].bytes, values[bodies[i]].number);
}

/* As a client reads it, in both versions. */
static void
read_reply(const uint8_t *body, uint32_t body_bytes)
{
    for (uint32_t protocol = 2; protocol <= 3; protocol++) {
        struct fbk_apache_reply reply;
        if (fbk_apache_read_reply(body, body_bytes, protocol, &reply) != 0)
            continue;
        bool is_batch = reply.echo.operation == FBK_APACHE_READ_BATCH;
        touch(is_batch ? reply.entry_sizes : reply.entry, reply.entry_bytes);
        touch(reply.lac_body, reply.lac_body_bytes);
        touch(reply.blob, reply.blob_bytes);
        touch(reply.plugin, reply.plugin_bytes);
    }
}

/* What is read of a list is written again, and is the same. */
static void
read_list(const uint8_t *blob, uint32_t blob_bytes)
{
    enum {
        RANGES = 16
    };
    int64_t ranges[2 * RANGES], again[2 * RANGES];
    uint8_t out[64 + 2 * RANGES * 24];
    int64_t count = fbk_apache_read_list(blob, blob_bytes, ranges, RANGES);
    FBK_ASSERT(fbk_apache_read_list(blob, blob_bytes, NULL, 0) == count);
    if (count < 0 || count > RANGES)
        return;
    for (int64_t i = 0; i < count; i++)
        /* more groups than there is room for */
        if (ranges[2 * i + 1] - ranges[2 * i] >= INT32_MAX)
            return;
    uint64_t size_bytes = fbk_apache_put_list(out, sizeof out, ranges, (uint32_t)count);
    FBK_ASSERT(size_bytes <= sizeof out);
    FBK_ASSERT(fbk_apache_read_list(out, (uint32_t)size_bytes, again, RANGES) == count);
    FBK_ASSERT(memcmp(again, ranges, 16 * (size_t)count) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 1u << 20)
        return 0;
    /* Its own allocation, so that a byte too far is seen. */
    uint8_t *body = malloc(size > 0 ? size : 1);
    if (body == NULL)
        return 0;
    memcpy(body, data, size);
    read_request(body, (uint32_t)size);
    read_response(body, (uint32_t)size);
    read_reply(body, (uint32_t)size);
    read_list(body, (uint32_t)size);
    if (size > 0 && body[0] != 0x0a) {
        body[0] = 0x0a;
        read_request(body, (uint32_t)size);
        read_response(body, (uint32_t)size);
    }
    free(body);
    return 0;
}

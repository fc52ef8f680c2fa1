/* AUTH frames of Apache's clients, in both versions: whatever the bytes are, they are read as a
 * request that lies whole within its frame, or refused.  Most inputs are good frames with the
 * fuzzer's plugin and payload, changed in a few places. */
#include "apache/apache.h"

#define FRAME_BYTES_MAX 1024u
#define TEXT_BYTES_MAX 255u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool
is_within(const uint8_t *part, uint32_t part_bytes, const uint8_t *body, uint32_t body_bytes)
{
    return part_bytes == 0 || (part >= body && part + part_bytes <= body + body_bytes);
}

static void
read_frame(const uint8_t *body, uint32_t body_bytes)
{
    struct fbk_apache_request request;
    uint32_t status = FBK_APACHE_EOK;
    if (fbk_apache_read_request(body, body_bytes, &request, &status) != FBK_APACHE_GOOD ||
        request.operation != FBK_APACHE_AUTH)
        return;
    FBK_ASSERT(request.protocol == 2 || request.protocol == 3);
    /* version 3 may name the operation and lack its part */
    FBK_ASSERT(request.plugin != NULL || request.protocol == 3);
    FBK_ASSERT(is_within(request.plugin, request.plugin_bytes, body, body_bytes));
    FBK_ASSERT(is_within(request.body, request.body_bytes, body, body_bytes));
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size <= UINT32_MAX)
        read_frame(data, (uint32_t)size);
    if (size < 4)
        return 0;
    const uint32_t plugin_bytes = data[1] % 8u == 0 ? data[2] % TEXT_BYTES_MAX : 4;
    const uint32_t payload_bytes = data[3] % TEXT_BYTES_MAX;
    const uint8_t *rest = data + 4;
    const size_t rest_bytes = size - 4;
    uint8_t texts[2 * TEXT_BYTES_MAX] = {'s', 'a', 's', 'l'};
    for (uint32_t i = plugin_bytes == 4 ? 4 : 0; i < plugin_bytes + payload_bytes && rest_bytes > 0;
         i++)
        texts[i] = rest[i % rest_bytes];
    const struct fbk_apache_request asked = {
        .protocol = data[0] % 2u + 2u,
        .version = data[0] % 2u + 2u,
        .operation = FBK_APACHE_AUTH,
        .transaction_id = data[0],
        .plugin = texts,
        .plugin_bytes = plugin_bytes,
        .body = texts + plugin_bytes,
        .body_bytes = payload_bytes,
    };
    uint8_t frame[FRAME_BYTES_MAX];
    const uint64_t frame_bytes = fbk_apache_put_request(frame, sizeof frame, &asked);
    FBK_ASSERT(frame_bytes > 4 && frame_bytes <= sizeof frame);
    struct fbk_apache_request again;
    uint32_t status = FBK_APACHE_EOK;
    FBK_ASSERT(fbk_apache_read_request(frame + 4, (uint32_t)frame_bytes - 4, &again, &status) ==
               FBK_APACHE_GOOD);
    FBK_ASSERT(again.operation == FBK_APACHE_AUTH && again.plugin_bytes == plugin_bytes &&
               again.body_bytes == payload_bytes);
    FBK_ASSERT(memcmp(again.plugin, asked.plugin, plugin_bytes) == 0);
    FBK_ASSERT(payload_bytes == 0 || memcmp(again.body, asked.body, payload_bytes) == 0);
    for (size_t i = 0; i + 1 < rest_bytes && i < 6; i += 2)
        frame[4 + rest[i] % (frame_bytes - 4)] = rest[i + 1];
    const uint32_t cut = rest_bytes > 0 && rest[rest_bytes - 1] % 4u == 0
                             ? rest[0] % (uint32_t)(frame_bytes - 4)
                             : 0;
    /* Its own allocation, so that a byte read behind it is noticed. */
    const uint32_t body_bytes = (uint32_t)frame_bytes - 4 - cut;
    uint8_t *copy = malloc(body_bytes + 1);
    if (copy == NULL)
        return 0;
    memcpy(copy, frame + 4, body_bytes);
    read_frame(copy, body_bytes);
    free(copy);
    return 0;
}

/* Frames from outside: verifier and readers over any bytes.  Linked with verifier_oracle.cpp, our
 * verifier has to say what flatbuffers' own says, of every input.
 *
 * Each input is read as both roots, as it is and with its length set right (few inputs would get
 * past that). */
#include "base/digest.h"
#include "wire/verify.h"
#include "wire/wire.h"
#include "wire/client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* 1: valid, 0: not; absent unless the oracle is linked in. */
__attribute__((weak)) int fbk_oracle_verify(const uint8_t *frame, size_t size, int is_response);

static volatile uint64_t sink;

static void
touch(const uint8_t *bytes, uint64_t size_bytes)
{
    for (uint64_t i = 0; bytes != NULL && i < size_bytes; i++)
        sink += bytes[i];
}

static void
read_request(const uint8_t *frame, uint32_t size, bool is_valid)
{
    struct fbk_request request;
    FBK_ASSERT((fbk_wire_read_request(frame, size, &request) == 0) == is_valid);
    if (!is_valid)
        return;
    touch(request.master_key, request.master_key != NULL ? FBK_MASTER_KEY_BYTES : 0);
    touch(request.body, request.body_bytes);
    touch(request.entry_sizes, 4ull * request.entry_count);
    if (request.body != NULL)
        sink += (uint64_t)fbk_digest_check(request.digest_type, request.body, request.body_bytes);
}

static void
read_service_request(const uint8_t *frame, uint32_t size, bool is_valid)
{
    struct fbk_produce produce;
    uint64_t request_id;
    const int32_t kind = fbk_wire_read_service_request(frame, size, &request_id, &produce);
    FBK_ASSERT((kind >= 0) == is_valid);
    if (kind != FBK_REQUEST_BODY_PRODUCE)
        return;
    touch(produce.numbers, 8ull * produce.number_count);
    touch(produce.records, produce.records_bytes);
}

static void
read_response(const uint8_t *frame, uint32_t size, bool is_valid)
{
    struct fbk_response response;
    if (fbk_wire_read_own_response(frame, size, &response) == 0) {
        touch(response.entry, response.entry_bytes);
        touch(response.entry_sizes, 4ull * response.entry_count);
        touch(response.lac_body, response.lac_body_bytes);
        touch(response.ranges, 16ull * response.range_count);
    }
    if (fbk_wire_read_response(frame, size, &response) != 0)
        return;
    FBK_ASSERT(is_valid);
    touch(response.entry, response.entry_bytes);
    touch(response.entry_sizes, 4ull * response.entry_count);
    touch(response.lac_body, response.lac_body_bytes);
    touch(response.ranges, 16ull * response.range_count);
}

static void
try_one(const uint8_t *frame, uint32_t size, int is_response)
{
    bool is_valid = fbk_verify(frame, size, is_response ? FBK_VERIFY_RESPONSE : FBK_VERIFY_REQUEST);
    if (fbk_oracle_verify != NULL)
        FBK_ASSERT((fbk_oracle_verify(frame, size, is_response) != 0) == is_valid);
    if (is_response)
        read_response(frame, size, is_valid);
    else {
        read_request(frame, size, is_valid);
        read_service_request(frame, size, is_valid);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 1u << 20)
        return 0;
    uint32_t frame_bytes = (uint32_t)size;
    /* Its own allocation, so that a byte too far is seen; aligned as C++ wants it. */
    uint8_t *frame = malloc(frame_bytes > 0 ? frame_bytes : 1);
    if (frame == NULL)
        return 0;
    memcpy(frame, data, frame_bytes);
    try_one(frame, frame_bytes, 0);
    try_one(frame, frame_bytes, 1);
    if (frame_bytes >= 4 && fbk_load_u32(frame) != frame_bytes - 4) {
        fbk_store_u32(frame, frame_bytes - 4);
        try_one(frame, frame_bytes, 0);
        try_one(frame, frame_bytes, 1);
    }
    free(frame);
    return 0;
}

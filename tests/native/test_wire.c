/* Encoders and readers against each other, and what the verifier says of every frame we make. */
#include "check.h"

#include "base/checksum.h"
#include "base/digest.h"
#include "wire/verify.h"
#include "wire/wire.h"
#include "wire/client.h"

static uint8_t out[1 << 20];
static const uint8_t key[20] = "twenty bytes of key!";

/* Frames lie at any address in a receive buffer. */
static struct fbk_request
request_of(uint32_t frame_bytes, uint32_t shift)
{
    struct fbk_request request;
    uint8_t *moved = malloc((size_t)frame_bytes + shift);
    CHECK(moved != NULL);
    memcpy(moved + shift, out, frame_bytes);
    CHECK_EQUAL(fbk_load_u32(out), frame_bytes - 4);
    CHECK(fbk_verify(moved + shift, frame_bytes, FBK_VERIFY_REQUEST));
    CHECK(!fbk_verify(moved + shift, frame_bytes - 1, FBK_VERIFY_REQUEST));
    CHECK_EQUAL(fbk_wire_read_request(moved + shift, frame_bytes, &request), 0);
    /* The caller's copy stays where it is: pointers are moved over. */
    if (request.body != NULL)
        request.body = out + (request.body - moved - shift);
    if (request.entry_sizes != NULL)
        request.entry_sizes = out + (request.entry_sizes - moved - shift);
    if (request.master_key != NULL)
        request.master_key = out + (request.master_key - moved - shift);
    free(moved);
    return request;
}

static void
test_adds(void)
{
    for (uint32_t size = 0; size < 300; size++) {
        uint8_t entry[300];
        test_fill(entry, size, size);
        memset(out, 0xff, 1024);
        uint32_t bytes =
            fbk_wire_put_add(out, 7 + size, 5, INT64_MAX, 3, 4, key, entry, size, NULL);
        CHECK_EQUAL(bytes, fbk_wire_add_size(size));
        struct fbk_request request = request_of(bytes, size % 9);
        CHECK_EQUAL(request.body_type, FBK_REQUEST_BODY_ADD);
        CHECK_EQUAL(request.request_id, 7 + size);
        CHECK_EQUAL(request.ledger_id, 5);
        CHECK(request.entry_id == INT64_MAX);
        CHECK_EQUAL(request.flags, 3);
        CHECK_EQUAL(request.digest_type, 4);
        CHECK(memcmp(request.master_key, key, 20) == 0);
        CHECK_EQUAL(request.body_bytes, size);
        CHECK(memcmp(request.body, entry, size) == 0);
    }
}

static void
test_add_batches(void)
{
    for (uint32_t count = 1; count < 40; count++) {
        uint8_t *sizes, *entries;
        memset(out, 0xff, 4096);
        uint32_t bytes = fbk_wire_put_add_batch(out, 9, 5, 77, 1, 3, key, count * 7, count,
                                                count * 33, &sizes, &entries);
        CHECK_EQUAL(bytes, fbk_wire_add_batch_size(count, count * 33ull));
        for (uint32_t i = 0; i < count; i++)
            fbk_store_u32(sizes + 4ull * i, 33);
        test_fill(entries, count * 33ull, count);
        struct fbk_request request = request_of(bytes, count % 9);
        CHECK_EQUAL(request.body_type, FBK_REQUEST_BODY_ADD_BATCH);
        CHECK_EQUAL(request.ledger_id, 5);
        CHECK_EQUAL(request.entry_id, 77);
        CHECK_EQUAL(request.flags, 1);
        CHECK_EQUAL(request.digest_type, 3);
        CHECK_EQUAL(request.entry_count, count);
        CHECK_EQUAL(request.creation_mark, count * 7);
        CHECK(request.entry_sizes == sizes && request.body == entries);
        CHECK_EQUAL(request.body_bytes, count * 33);
        CHECK(memcmp(request.master_key, key, 20) == 0);
    }
}

static void
test_small_requests(void)
{
    uint32_t bytes = fbk_wire_put_read_request(out, 1, 2, -1, 1, key);
    struct fbk_request request = request_of(bytes, 1);
    CHECK(request.body_type == FBK_REQUEST_BODY_READ && request.ledger_id == 2 &&
          request.entry_id == -1 && request.flags == 1);
    CHECK(memcmp(request.master_key, key, 20) == 0);
    request = request_of(fbk_wire_put_read_request(out, 1, 2, 3, 0, NULL), 2);
    CHECK(request.entry_id == 3 && request.master_key == NULL);
    request = request_of(fbk_wire_put_read_batch_request(out, 1, 2, 3, 9, 10, 11), 3);
    CHECK(request.body_type == FBK_REQUEST_BODY_READ_BATCH && request.entry_id == 3 &&
          request.other_id == 9);
    CHECK(request.count_max == 10 && request.size_bytes_max == 11);
    request = request_of(fbk_wire_put_read_lac_request(out, 1, 2, -1, 500, 1), 4);
    CHECK(request.body_type == FBK_REQUEST_BODY_READ_LAC && request.other_id == -1 &&
          request.timeout_ms == 500 && request.flags == 1);
    request = request_of(
        fbk_wire_put_write_lac(out, 1, 2, 3, key, (const uint8_t *)"0123456789abcdefXYZW", 20), 5);
    CHECK(request.body_type == FBK_REQUEST_BODY_WRITE_LAC && request.entry_id == 3 &&
          request.body_bytes == 20);
    CHECK(memcmp(request.body, "0123456789abcdefXYZW", 20) == 0 &&
          memcmp(request.master_key, key, 20) == 0);
    request = request_of(fbk_wire_put_force(out, 1, 2), 6);
    CHECK(request.body_type == FBK_REQUEST_BODY_FORCE && request.ledger_id == 2);
    request = request_of(fbk_wire_put_list_request(out, 1, 2, 3, 4), 7);
    CHECK(request.body_type == FBK_REQUEST_BODY_LIST_ENTRIES && request.entry_id == 3 &&
          request.count_max == 4);
    request = request_of(fbk_wire_put_ping(out, UINT64_MAX), 8);
    CHECK(request.body_type == FBK_REQUEST_BODY_PING && request.request_id == UINT64_MAX);
    request = request_of(fbk_wire_put_info(out, 1), 0);
    CHECK(request.body_type == FBK_REQUEST_BODY_INFO);
    for (uint32_t length = 0; length < 9; length++) {
        request =
            request_of(fbk_wire_put_hello(out, 1, 1, 2, (const uint8_t *)"tester's", length), 0);
        CHECK(request.body_type == FBK_REQUEST_BODY_HELLO);
    }
}

/* What the worker looks up in an index's frame is what it says; and no other frame, cut off or
 * turned, leads it outside. */
static void
check_look(uint32_t frame_bytes, const struct fbk_response *response)
{
    struct fbk_response looked;
    CHECK_EQUAL(fbk_wire_read_own_response(out, frame_bytes, &looked), 0);
    CHECK(memcmp(&looked, response, sizeof looked) == 0);
    uint64_t sum = 0;
    for (uint32_t bit = 0; bit < 8 * frame_bytes; bit += 3) {
        uint32_t size = bit % 2 ? frame_bytes : bit / 8;
        uint8_t *turned = malloc(size == 0 ? 1 : size);
        memcpy(turned, out, size);
        if (size > bit / 8)
            turned[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (fbk_wire_read_own_response(turned, size, &looked) == 0) {
            for (uint64_t i = 0; i < looked.entry_bytes; i++)
                sum += looked.entry[i];
            for (uint64_t i = 0; i < 4ull * looked.entry_count; i++)
                sum += looked.entry_sizes[i];
            for (uint64_t i = 0; i < looked.lac_body_bytes; i++)
                sum += looked.lac_body[i];
            for (uint64_t i = 0; i < 16ull * looked.range_count; i++)
                sum += looked.ranges[i];
        }
        free(turned);
    }
    CHECK(sum < UINT64_MAX);
}

static struct fbk_response
response_of(uint32_t frame_bytes)
{
    struct fbk_response response;
    CHECK_EQUAL(frame_bytes % 4, 0);
    CHECK_EQUAL(fbk_load_u32(out), frame_bytes - 4);
    CHECK_EQUAL(fbk_wire_read_response(out, frame_bytes, &response), 0);
    check_look(frame_bytes, &response);
    return response;
}

static void
test_responses(void)
{
    memset(out, 0xff, sizeof out);
    uint32_t bytes = fbk_wire_put_status(out, UINT64_MAX - 1, FBK_S_FENCED);
    CHECK_EQUAL(bytes, FBK_WIRE_STATUS_BYTES);
    struct fbk_response response = response_of(bytes);
    CHECK(response.request_id == UINT64_MAX - 1 && response.status == FBK_S_FENCED &&
          response.body_type == 0);
    CHECK_EQUAL(response.add_wait_us, 0);
    bytes = fbk_wire_put_waited_status(out, UINT64_MAX - 1, FBK_S_CONFLICT, UINT32_MAX - 5);
    CHECK_EQUAL(bytes, FBK_WIRE_WAITED_STATUS_BYTES);
    response = response_of(bytes);
    CHECK(response.request_id == UINT64_MAX - 1 && response.status == FBK_S_CONFLICT &&
          response.body_type == 0);
    CHECK(response.add_wait_us == UINT32_MAX - 5);
    for (uint32_t size = 0; size < 100; size++) {
        uint8_t bytes_of_entry[100], *at;
        test_fill(bytes_of_entry, size, size);
        bytes = fbk_wire_put_read(out, 1, 0, 7, -1, bytes_of_entry, size, NULL);
        CHECK_EQUAL(bytes, fbk_wire_read_size(size));
        response = response_of(bytes);
        CHECK(response.body_type == FBK_RESPONSE_BODY_READ_REPLY && response.entry_id == 7 &&
              response.lac == -1);
        CHECK_EQUAL(response.entry_bytes, size);
        CHECK(memcmp(response.entry, bytes_of_entry, size) == 0);
        bytes = fbk_wire_put_read_lac(out, 1, 0, 4, true, bytes_of_entry, size % 21, 5, NULL, size,
                                      &at);
        CHECK_EQUAL(bytes, fbk_wire_read_lac_size(size % 21, size));
        memcpy(at, bytes_of_entry, size);
        response = response_of(bytes);
        CHECK(response.lac == 4 && response.fenced == 1 && response.entry_id == 5);
        CHECK_EQUAL(response.lac_body_bytes, size % 21);
        CHECK_EQUAL(response.entry_bytes, size);
        CHECK((response.entry == NULL) == (size == 0) &&
              (response.lac_body == NULL) == (size % 21 == 0));
        CHECK(size == 0 || memcmp(response.entry, bytes_of_entry, size) == 0);
    }
}

/* As a write service reads it, with numbers and without; a bookie knows nothing of it. */
static void
test_produce(void)
{
    for (uint32_t count = 0; count < 40; count++) {
        uint8_t records[300];
        int64_t numbers[40];
        const uint32_t records_bytes = count * 7;
        test_fill(records, records_bytes, count);
        for (uint32_t i = 0; i < count; i++)
            numbers[i] = (int64_t)i * 3;
        for (uint32_t with_numbers = 0; with_numbers < 2; with_numbers++) {
            const uint32_t number_count = with_numbers ? count : 0;
            memset(out, 0xff, 2048);
            const uint32_t bytes =
                fbk_wire_put_produce(out, UINT64_MAX, 3, -1, INT64_MAX, count,
                                     with_numbers ? numbers : NULL, records, records_bytes);
            CHECK_EQUAL(bytes, fbk_wire_produce_size(number_count, records_bytes));
            struct fbk_request request = request_of(bytes, count % 9);
            CHECK(request.request_id == UINT64_MAX && request.body_type == 0);
            struct fbk_produce produce;
            uint64_t request_id;
            CHECK_EQUAL(fbk_wire_read_service_request(out, bytes, &request_id, &produce),
                        FBK_REQUEST_BODY_PRODUCE);
            CHECK(request_id == UINT64_MAX && produce.producer == 3 && produce.follows == -1);
            CHECK(produce.first_number == INT64_MAX && produce.record_count == count);
            CHECK_EQUAL(produce.number_count, number_count);
            CHECK(number_count == 0 || memcmp(produce.numbers, numbers, 8ull * count) == 0);
            CHECK(number_count == 0 || (produce.numbers - out) % 8 == 0);
            CHECK_EQUAL(produce.records_bytes, records_bytes);
            CHECK(memcmp(produce.records, records, records_bytes) == 0);
            CHECK_EQUAL(fbk_wire_read_service_request(out, bytes - 1, &request_id, &produce),
                        FBK_E_PROTOCOL);
        }
    }
    struct fbk_response response;
    const uint32_t bytes =
        fbk_wire_put_produce_reply(out, UINT64_MAX - 1, UINT32_MAX, INT64_MAX, UINT32_MAX - 2);
    CHECK_EQUAL(fbk_wire_read_response(out, bytes, &response), 0);
    CHECK(response.request_id == UINT64_MAX - 1 && response.status == 0 &&
          response.body_type == FBK_RESPONSE_BODY_PRODUCE_REPLY);
    CHECK(response.segment == UINT32_MAX && response.entry_id == INT64_MAX &&
          response.slot == UINT32_MAX - 2);
}

static void
test_list_responses(void)
{
    for (uint32_t count = 0; count < 30; count++) {
        uint8_t *sizes, *entries;
        uint32_t bytes =
            fbk_wire_put_read_batch(out, 1, 0, 3, 4, count, count * 35, &sizes, &entries);
        CHECK_EQUAL(bytes, fbk_wire_read_batch_size(count, count * 35ull));
        fbk_wire_set_add_wait(out, count * 1000);
        for (uint32_t i = 0; i < count; i++)
            fbk_store_u32(sizes + 4ull * i, 35);
        struct fbk_response response = response_of(bytes);
        CHECK(response.entry_count == count && response.entry_bytes == count * 35 &&
              response.entry_id == 4);
        CHECK_EQUAL(response.add_wait_us, count * 1000);
        if (count > 0) { /* sizes that do not add up are no answer */
            fbk_store_u32(sizes, 36);
            CHECK_EQUAL(fbk_wire_read_response(out, bytes, &response), FBK_E_PROTOCOL);
        }
        int64_t ranges[60];
        for (uint32_t i = 0; i < 2 * count; i++)
            ranges[i] = (int64_t)i * 3;
        bytes = fbk_wire_put_list(out, 1, 0, -1, ranges, count);
        CHECK_EQUAL(bytes, fbk_wire_list_size(count));
        response = response_of(bytes);
        CHECK(response.range_count == count && response.entry_id == -1);
        CHECK(memcmp(response.ranges, ranges, 16ull * count) == 0);
    }
}

/* The same entry with Apache's HMAC, by the password "passwd": its key is SHA-1 of "macpasswd". */
static void
test_macs(const uint8_t *header)
{
    static const uint8_t mac_key[FBK_MAC_KEY_BYTES] = {0x6c, 0x5d, 0x50, 0x40, 0x1a, 0xaa, 0xf6,
                                                       0x1c, 0xb3, 0x2a, 0x1f, 0x11, 0xf1, 0x23,
                                                       0x99, 0x9a, 0x84, 0x5f, 0xb7, 0x06};
    static const uint8_t mac[FBK_MAC_BYTES] = {0xe9, 0xb3, 0xfc, 0xea, 0x3a, 0x0a, 0xc1,
                                               0x62, 0xa7, 0xd7, 0xf8, 0x96, 0x48, 0x08,
                                               0x21, 0x29, 0x3c, 0x7b, 0xe5, 0x7c};
    uint8_t entry[57];
    memcpy(entry, header, 32);
    memcpy(entry + 32, mac, sizeof mac);
    memcpy(entry + 52, "hello", 5);
    CHECK_EQUAL(fbk_digest_check_mac(mac_key, entry, sizeof entry), FBK_S_OK);
    CHECK_EQUAL(fbk_digest_check_mac(mac_key, entry, 51), FBK_S_BAD_REQUEST);
    CHECK_EQUAL(fbk_digest_check_mac(mac, entry, sizeof entry), FBK_S_BAD_DIGEST);
    for (uint32_t bit = 0; bit < sizeof entry * 8; bit++) {
        entry[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_EQUAL(fbk_digest_check_mac(mac_key, entry, sizeof entry), FBK_S_BAD_DIGEST);
        entry[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* Apache's own bytes: bookkeeper.md B3 (ledger 5, entry 7, LAC 6, length 123, data "hello"). */
static void
test_digests(void)
{
    uint8_t entry[64], copy[64];
    fbk_store_be64(entry, 5);
    fbk_store_be64(entry + 8, 7);
    fbk_store_be64(entry + 16, 6);
    fbk_store_be64(entry + 24, 123);
    CHECK_EQUAL(fbk_digest_put_data(FBK_DIGEST_CRC32C, entry, (const uint8_t *)"hello", 5), 41);
    CHECK_EQUAL(fbk_load_be32(entry + 32), 0x8f06b47a);
    CHECK_EQUAL(fbk_digest_put_data(FBK_DIGEST_CRC32, entry, (const uint8_t *)"hello", 5), 45);
    CHECK_EQUAL(fbk_load_be64(entry + 32), 0xe5fec923);
    CHECK_EQUAL(fbk_digest_put_data(FBK_DIGEST_DUMMY, entry, (const uint8_t *)"hello", 5), 37);
    CHECK_EQUAL(fbk_digest_put_data(FBK_DIGEST_HMAC, entry, (const uint8_t *)"hello", 5),
                FBK_E_PROTOCOL);
    test_macs(entry);
    uint8_t body[24];
    fbk_store_be64(body, 5);
    fbk_store_be64(body + 8, 6);
    CHECK_EQUAL(fbk_digest_put_lac(FBK_DIGEST_CRC32C, body), 20);
    CHECK_EQUAL(fbk_load_be32(body + 16), 0x4e206979);
    CHECK_EQUAL(fbk_digest_check_lac(FBK_DIGEST_CRC32C, body, 20), FBK_S_OK);
    CHECK_EQUAL(fbk_digest_put_lac(FBK_DIGEST_CRC32, body), 24);
    CHECK_EQUAL(fbk_load_be64(body + 16), 0x4f4fab2f);
    body[3] ^= 1;
    CHECK_EQUAL(fbk_digest_check_lac(FBK_DIGEST_CRC32, body, 24), FBK_S_BAD_DIGEST);
    for (uint32_t type = FBK_DIGEST_NONE; type <= FBK_DIGEST_DUMMY + 1; type++)
        for (uint32_t size = 0; size <= sizeof entry; size++) {
            uint32_t crc;
            test_fill(entry, size, size);
            int32_t put = fbk_digest_put(type, entry, size);
            bool fits = type <= FBK_DIGEST_DUMMY && size >= 32 + (uint32_t)fbk_digest_bytes(type);
            CHECK_EQUAL(put, fits && type != FBK_DIGEST_HMAC ? FBK_S_OK : FBK_S_BAD_REQUEST);
            CHECK_EQUAL(fbk_digest_check(type, entry, size), fits ? FBK_S_OK : FBK_S_BAD_REQUEST);
            CHECK_EQUAL(fbk_digest_copy_check(type, copy, entry, size, &crc),
                        fits ? FBK_S_OK : FBK_S_BAD_REQUEST);
            CHECK(memcmp(copy, entry, size) == 0);
            CHECK_EQUAL(crc, fbk_crc32c(0, entry, size));
            if (!fits || (type != FBK_DIGEST_CRC32 && type != FBK_DIGEST_CRC32C))
                continue;
            for (uint32_t bit = 0; bit < size * 8; bit += 5) {
                entry[bit / 8] ^= (uint8_t)(1u << bit % 8);
                CHECK_EQUAL(fbk_digest_check(type, entry, size), FBK_S_BAD_DIGEST);
                CHECK_EQUAL(fbk_digest_copy_check(type, copy, entry, size, &crc), FBK_S_BAD_DIGEST);
                CHECK_EQUAL(crc, fbk_crc32c(0, entry, size));
                entry[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
        }
}

int
main(void)
{
    test_adds();
    test_add_batches();
    test_small_requests();
    test_responses();
    test_list_responses();
    test_produce();
    test_digests();
    return 0;
}

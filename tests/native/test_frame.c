/* Every encoder against its golden frame: the bytes on the wire do not change by accident.
 * PROGRAM FOLDER compares; PROGRAM FOLDER write makes them anew. */
#include "check.h"

#include "base/digest.h"
#include "wire/wire.h"
#include "wire/client.h"

static const uint8_t key[20] = "0123456789abcdefghi";
static uint8_t out[4096];
static const char *folder;
static int is_writing;

static void
golden(const char *name, uint32_t size_bytes)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.bin", folder, name);
    FILE *file = fopen(path, is_writing ? "wb" : "rb");
    CHECK(file != NULL);
    if (is_writing) {
        CHECK(fwrite(out, 1, size_bytes, file) == size_bytes);
    } else {
        uint8_t bytes[sizeof out];
        CHECK_EQUAL(fread(bytes, 1, sizeof bytes, file), size_bytes);
        if (memcmp(bytes, out, size_bytes) != 0)
            fprintf(stderr, "%s has changed\n", name);
        CHECK(memcmp(bytes, out, size_bytes) == 0);
    }
    fclose(file);
    memset(out, 0xee, sizeof out); /* padding has to be written, not to be zero by luck */
}

static uint32_t
make_entry(uint8_t *entry, int64_t entry_id)
{
    fbk_store_be64(entry, 5);
    fbk_store_be64(entry + 8, (uint64_t)entry_id);
    fbk_store_be64(entry + 16, (uint64_t)entry_id - 1);
    fbk_store_be64(entry + 24, 123);
    return (uint32_t)fbk_digest_put_data(FBK_DIGEST_CRC32C, entry, (const uint8_t *)"hello", 5);
}

static void
requests(void)
{
    uint8_t entry[64], *sizes, *entries;
    uint32_t size = make_entry(entry, 7);
    golden("request_hello", fbk_wire_put_hello(out, 1, 1, 1, (const uint8_t *)"golden", 6));
    golden("request_add",
           fbk_wire_put_add(out, 2, 5, 7, 0, FBK_DIGEST_CRC32C, key, entry, size, NULL));
    uint32_t bytes = fbk_wire_put_add_batch(out, 3, 5, 7, FBK_FLAG_RECOVERY, FBK_DIGEST_CRC32C, key,
                                            0xfedcba98u, 2, 2 * size, &sizes, &entries);
    for (uint32_t i = 0; i < 2; i++) {
        fbk_store_u32(sizes + 4ull * i, size);
        CHECK_EQUAL(make_entry(entries + (uint64_t)i * size, 7 + i), size);
    }
    golden("request_add_batch", bytes);
    golden("request_read", fbk_wire_put_read_request(out, 4, 5, 7, 0, NULL));
    golden("request_fence", fbk_wire_put_read_request(out, 5, 5, -1, FBK_FLAG_FENCE, key));
    golden("request_read_batch", fbk_wire_put_read_batch_request(out, 6, 5, 0, 99, 100, 65536));
    golden("request_read_lac",
           fbk_wire_put_read_lac_request(out, 7, 5, 6, 1000, FBK_FLAG_PIGGYBACK));
    uint8_t body[32];
    fbk_store_be64(body, 5);
    fbk_store_be64(body + 8, 6);
    uint32_t body_bytes = (uint32_t)fbk_digest_put_lac(FBK_DIGEST_CRC32C, body);
    golden("request_write_lac", fbk_wire_put_write_lac(out, 8, 5, 6, key, body, body_bytes));
    golden("request_force", fbk_wire_put_force(out, 9, 5));
    golden("request_list", fbk_wire_put_list_request(out, 10, 5, 0, 1000));
    golden("request_info", fbk_wire_put_info(out, 11));
    golden("request_ping", fbk_wire_put_ping(out, 12));
    static const int64_t numbers[] = {7, 9};
    static const uint8_t records[] = {0, 1, 0, 0, 'a', 1, 2, 0, 0, 'b', 'c'};
    golden("request_produce",
           fbk_wire_put_produce(out, 13, 3, 5, 7, 2, NULL, records, sizeof records));
    golden("request_produce_numbers",
           fbk_wire_put_produce(out, 14, 3, -1, 7, 2, numbers, records, sizeof records));
}

static void
responses(void)
{
    uint8_t entry[64], *sizes, *entries;
    uint32_t size = make_entry(entry, 7);
    golden("response_ok", fbk_wire_put_status(out, 2, FBK_S_OK));
    golden("response_fenced", fbk_wire_put_status(out, 2, FBK_S_FENCED));
    golden("response_ok_waited", fbk_wire_put_waited_status(out, 2, FBK_S_OK, 2500));
    golden("response_read", fbk_wire_put_read(out, 4, FBK_S_OK, 7, 6, entry, size, NULL));
    uint32_t bytes = fbk_wire_put_read_batch(out, 6, FBK_S_OK, 6, 9, 2, 2 * size, &sizes, &entries);
    for (uint32_t i = 0; i < 2; i++) {
        fbk_store_u32(sizes + 4ull * i, size);
        CHECK_EQUAL(make_entry(entries + (uint64_t)i * size, 7 + i), size);
    }
    fbk_wire_set_add_wait(out, 2500);
    golden("response_read_batch", bytes);
    golden("response_read_lac",
           fbk_wire_put_read_lac(out, 7, FBK_S_OK, 6, true, (const uint8_t *)"body bytes", 10, 7,
                                 entry, size, NULL));
    golden("response_read_lac_empty",
           fbk_wire_put_read_lac(out, 7, FBK_S_OK, -1, false, NULL, 0, -1, NULL, 0, NULL));
    const int64_t ranges[] = {0, 3, 7, 7};
    golden("response_produce", fbk_wire_put_produce_reply(out, 13, 2, 77, 4));
    golden("response_list", fbk_wire_put_list(out, 10, FBK_S_OK, -1, ranges, 2));
}

static uint32_t
read_old(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.bin", folder, name);
    FILE *file = fopen(path, "rb");
    CHECK(file != NULL);
    uint32_t bytes = (uint32_t)fread(out, 1, sizeof out, file);
    fclose(file);
    return bytes;
}

/* A bookie reads the mark wherever it may lie, and requests of clients that know of none
 * (INV-T2). */
static void
marks(void)
{
    static const char *const old[] = {"request_add_without_mark", "request_fence_without_mark",
                                      "request_add_batch_without_mark"};
    struct fbk_request request;
    uint8_t entry[64];
    uint32_t size = make_entry(entry, 7);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t bytes = read_old(old[i]);
        CHECK_EQUAL(fbk_wire_read_request(out, bytes, &request), 0);
        CHECK_EQUAL(request.ledger_id, 5);
        CHECK_EQUAL(request.creation_mark, 0);
        if (i == 2)
            continue; /* the encoder of a batch takes the mark */
        bytes = i == 0
                    ? fbk_wire_put_add(out, 2, 5, 7, 0, FBK_DIGEST_CRC32C, key, entry, size, NULL)
                    : fbk_wire_put_read_request(out, 5, 5, -1, FBK_FLAG_FENCE, key);
        fbk_wire_set_creation_mark(out, 0xfedcba98u);
        CHECK_EQUAL(fbk_wire_read_request(out, bytes, &request), 0);
        CHECK_EQUAL(request.ledger_id, 5);
        CHECK_EQUAL(request.creation_mark, 0xfedcba98u);
    }
}

/* A client reads answers of bookies that say no wait. */
static void
waits(void)
{
    struct fbk_response response;
    CHECK_EQUAL(
        fbk_wire_read_response(out, read_old("response_read_batch_without_wait"), &response), 0);
    CHECK_EQUAL(response.add_wait_us, 0);
    CHECK_EQUAL(response.entry_count, 2);
    CHECK_EQUAL(fbk_wire_read_response(out, read_old("response_read_batch"), &response), 0);
    CHECK_EQUAL(response.add_wait_us, 2500);
    CHECK_EQUAL(response.entry_count, 2);
}

int
main(int argc, char **argv)
{
    CHECK(argc >= 2);
    folder = argv[1];
    is_writing = argc > 2;
    memset(out, 0xee, sizeof out);
    requests();
    responses();
    marks();
    waits();
    return 0;
}

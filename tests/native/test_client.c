/* The client's codec without Python: what it encodes it can check, any cutting of a stream of
 * answers gives the same events, and damaged input is refused without reading beyond it (ASan
 * watches). */
#include <stdlib.h>

#include "check.h"
#include "base/base.h"
#include "client/client.h"
#include "base/digest.h"
#include "wire/wire.h"
#include "wire/client.h"

#define ENTRIES 50u

static uint64_t state = 88172645463325252ull;

static uint64_t
any(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

/* An exact copy, so that reading one byte too far is seen. */
static uint8_t *
exact(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size == 0 ? 1 : size);
    CHECK(copy != NULL);
    memcpy(copy, bytes, size);
    return copy;
}

static void
test_entries_pass_their_own_check(uint32_t digest_type)
{
    const struct fbk_client_ledger ledger = {.ledger_id = 42, .digest_type = digest_type};
    uint32_t sizes[ENTRIES], entry_sizes[ENTRIES];
    uint64_t data_bytes = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        sizes[i] = (uint32_t)any(300);
        data_bytes += sizes[i];
    }
    uint8_t *data = malloc(data_bytes + 1);
    for (uint64_t i = 0; i < data_bytes; i++)
        data[i] = (uint8_t)any(256);
    const uint64_t out_bytes = fbk_client_adds_size(digest_type, data_bytes, ENTRIES);
    uint8_t *out = malloc(out_bytes);
    CHECK(fbk_client_encode_adds(&ledger, 7, 100, 99, 5, data, sizes, ENTRIES, NULL, out,
                                 out_bytes - 1) < 0);
    CHECK(fbk_client_encode_adds(&ledger, 7, 100, 99, 5, data, sizes, ENTRIES, NULL, out,
                                 out_bytes) == (int64_t)out_bytes);
    const uint32_t around = (uint32_t)fbk_client_adds_size(digest_type, 0, 1);

    uint8_t *entries = malloc(out_bytes);
    uint32_t entries_bytes = 0;
    const uint8_t *frame = out;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        entry_sizes[i] = around + sizes[i] - FBK_WIRE_ADD_HEAD_BYTES;
        memcpy(entries + entries_bytes, frame + FBK_WIRE_ADD_HEAD_BYTES, entry_sizes[i]);
        entries_bytes += entry_sizes[i];
        frame += around + sizes[i];
    }
    uint8_t *whole = exact(entries, entries_bytes);
    int64_t found[5 * ENTRIES];
    CHECK(fbk_client_check_entries(digest_type, 42, whole, entries_bytes,
                                   (const uint8_t *)entry_sizes, ENTRIES,
                                   found) == (int32_t)ENTRIES);
    uint64_t at = 0;
    for (uint32_t i = 0; i < ENTRIES; i++) {
        CHECK(found[5 * i] == 100 + (int64_t)i && found[5 * i + 1] == 99 &&
              found[5 * i + 4] == sizes[i]);
        CHECK(memcmp(whole + found[5 * i + 3], data + at, sizes[i]) == 0);
        at += sizes[i];
        CHECK(found[5 * i + 2] == 5 + (int64_t)at);
    }
    struct fbk_entry_sums sums;
    fbk_client_entry_sums(found, ENTRIES, &sums);
    CHECK(sums.lac_max == 99 && sums.data_bytes == (int64_t)at);
    found[5 * 3 + 1] = 1000;
    fbk_client_entry_sums(found, ENTRIES, &sums);
    CHECK(sums.lac_max == 1000);
    fbk_client_entry_sums(found, 0, &sums);
    CHECK(sums.lac_max == INT64_MIN && sums.data_bytes == 0);
    CHECK(fbk_client_check_entries(digest_type, 43, whole, entries_bytes,
                                   (const uint8_t *)entry_sizes, ENTRIES, found) == 0);
    /* Sizes that lie: never beyond the bytes that are there. */
    entry_sizes[ENTRIES / 2] = UINT32_MAX;
    CHECK(fbk_client_check_entries(digest_type, 42, whole, entries_bytes,
                                   (const uint8_t *)entry_sizes, ENTRIES,
                                   found) == (int32_t)(ENTRIES / 2));
    free(whole);
    free(entries);
    free(out);
    free(data);
}

static void
test_any_cut_gives_the_same_events(void)
{
    uint8_t stream[64 * 400];
    uint64_t ids[400];
    uint32_t size = 0, count = 0, seen = 0;
    for (uint64_t id = 1000; count < 400; count++) {
        id += any(4) == 0 ? 1 + any(5) : 1;
        ids[count] = id;
        size += fbk_wire_put_status(stream + size, id, any(10) == 0 ? 20 : 0);
    }
    uint32_t start = 0, end = 0;
    while (seen < 400) {
        end += (uint32_t)any(size - end + 1) % 200;
        uint64_t events[FBK_CLIENT_EVENT_WORDS * 5];
        uint32_t consumed = 0, wanted = 0;
        uint8_t *part = exact(stream + start, end - start);
        const int32_t found =
            fbk_client_parse(part, end - start, 4096, events, 5, &consumed, &wanted);
        CHECK(found >= 0 && found <= 5 && consumed <= end - start);
        for (int32_t i = 0; i < found; i++)
            for (uint64_t one = 0; one < events[FBK_CLIENT_EVENT_WORDS * i + 2]; one++)
                CHECK(events[FBK_CLIENT_EVENT_WORDS * i + 1] + one == ids[seen++]);
        free(part);
        start += consumed;
    }
    CHECK(start == size);
}

static void
test_damaged_streams_end_or_wait(void)
{
    for (uint32_t round = 0; round < 20000; round++) {
        uint8_t stream[512];
        uint32_t size = 0;
        while (size < 200)
            size += fbk_wire_put_read(stream + size, any(100), 0, (int64_t)any(10), 5,
                                      (const uint8_t *)"entry", 5, NULL);
        stream[any(size)] ^= (uint8_t)(1 + any(255));
        size -= (uint32_t)any(4);
        uint64_t events[FBK_CLIENT_EVENT_WORDS * 8];
        uint32_t consumed, wanted;
        uint8_t *part = exact(stream, size);
        const int32_t found = fbk_client_parse(part, size, 4096, events, 8, &consumed, &wanted);
        for (int32_t i = 0; i < found; i++) {
            const uint64_t place = events[FBK_CLIENT_EVENT_WORDS * i + 5];
            CHECK((place >> 32) + (place & UINT32_MAX) <= size);
        }
        free(part);
    }
}

int
main(void)
{
    test_entries_pass_their_own_check(FBK_DIGEST_CRC32C);
    test_entries_pass_their_own_check(FBK_DIGEST_CRC32);
    test_entries_pass_their_own_check(FBK_DIGEST_DUMMY);
    test_any_cut_gives_the_same_events();
    test_damaged_streams_end_or_wait();
    return 0;
}

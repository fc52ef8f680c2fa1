/* A ring that a model can drive: reads commands from standard input, does them on a mirrored ring
 * with the producer's and the consumer's real functions, and says what happened, a line each. Used
 * by tests/property/test_ring_model.py.
 *
 *   push PAYLOAD_BYTES FILL   a sealed record, if there is room: "pushed POSITION" or "full"
 *   pop                       "record SIZE PAYLOAD_BYTES FILL", "empty" or "corrupt"
 *   poke OFFSET BYTE          overwrites a byte behind the consumer's position, as a broken
 * producer would: "poked" written VALUE             a broken producer's cursor: "set" header SIZE
 * PAYLOAD       a sealed header with these lengths and nothing else:
 * "set" */
#include "base/record.h"
#include "base/segment.h"

#include "check.h"

#include <unistd.h>

#define RING_BYTES 4096u

static struct fbk_ring ring;
static uint64_t written, consumed;

static void
push(uint32_t payload_bytes, uint32_t fill)
{
    uint64_t size = sizeof(struct fbk_record) + fbk_round_up(payload_bytes, 8);
    if (written + size - consumed > RING_BYTES) {
        puts("full");
        return;
    }
    struct fbk_record record = {
        .size_bytes = (uint32_t)size, .payload_bytes = payload_bytes, .kind = FBK_KIND_ADD};
    uint8_t *at = fbk_ring_at(&ring, written);
    memset(at + sizeof record, 0, size - sizeof record);
    memset(at + sizeof record, (int)fill, payload_bytes);
    record.body_crc = fbk_crc32c(0, at + sizeof record, payload_bytes);
    fbk_record_seal(&record);
    memcpy(at, &record, sizeof record);
    printf("pushed %" PRIu64 "\n", written);
    written += size;
}

static void
pop(void)
{
    static uint8_t payload[RING_BYTES];
    struct fbk_record record;
    int64_t size = fbk_record_take(&ring, consumed, written, &record);
    if (size <= 0) {
        puts(size == 0 ? "empty" : "corrupt");
        return;
    }
    CHECK(record.payload_bytes <= sizeof payload);
    uint32_t crc = fbk_crc32c_copy(0, payload, fbk_ring_at(&ring, consumed + sizeof record),
                                   record.payload_bytes);
    if (crc != record.body_crc) {
        puts("corrupt");
        return;
    }
    for (uint32_t i = 1; i < record.payload_bytes; i++)
        CHECK(payload[i] == payload[0]);
    printf("record %" PRId64 " %u %u\n", size, record.payload_bytes,
           record.payload_bytes == 0 ? 0u : payload[0]);
    consumed += (uint64_t)size;
}

int
main(void)
{
    static const uint64_t size = RING_BYTES;
    int32_t fd = fbk_segment_create(FBK_ROLE_WORKER, 0, 0, 1, &size, 1, 1), error = 0;
    CHECK(fd >= 0);
    struct fbk_worker_segment *segment = fbk_segment_map(fd, FBK_ROLE_WORKER, true, &error);
    CHECK(segment != NULL);
    CHECK(fbk_segment_map_ring(fd, &segment->header, 0, 0, true, &ring) == 0);
    char word[16];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (scanf("%15s", word) == 1) {
        unsigned long long a = 0, b = 0;
        if (strcmp(word, "push") == 0 && scanf("%llu %llu", &a, &b) == 2) {
            push((uint32_t)a, (uint32_t)b);
        } else if (strcmp(word, "pop") == 0) {
            pop();
        } else if (strcmp(word, "poke") == 0 && scanf("%llu %llu", &a, &b) == 2) {
            *fbk_ring_at(&ring, consumed + a) = (uint8_t)b;
            puts("poked");
        } else if (strcmp(word, "written") == 0 && scanf("%llu", &a) == 1) {
            written = a;
            puts("set");
        } else if (strcmp(word, "header") == 0 && scanf("%llu %llu", &a, &b) == 2) {
            struct fbk_record record = {.size_bytes = (uint32_t)a, .payload_bytes = (uint32_t)b};
            fbk_record_seal(&record);
            memcpy(fbk_ring_at(&ring, consumed), &record, sizeof record);
            puts("set");
        } else if (strcmp(word, "reset") == 0) {
            written = consumed = fbk_round_up(consumed, 8);
            memset(ring.data, 0, RING_BYTES);
            puts("set");
        } else {
            CHECK(!"a command of the list above");
        }
    }
    fbk_segment_unmap_ring(&ring);
    fbk_segment_unmap(segment, FBK_ROLE_WORKER);
    close(fd);
    return 0;
}

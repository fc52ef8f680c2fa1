/* Journal files made by somebody who knows the checksums: absurd lengths, batches that do not
 * follow, headers. */

#include "journal_image.h"

static void
reseal_batch(uint8_t *at)
{
    struct fbk_batch_header header;
    memcpy(&header, at, sizeof header);
    header.header_crc = fbk_batch_header_crc(&header);
    memcpy(at, &header, sizeof header);
}

/* Lengths that a checksum covers and that are absurd all the same. */
static void
test_hostile_lengths(void)
{
    struct image image;
    make_image(&image, 2, false);
    struct fbk_journal_expectation expectation = harness_expectation(1);
    uint8_t *at = image.harness.disk.bytes[1] + image.offsets[1];
    uint8_t saved[4096];
    memcpy(saved, at, sizeof saved);
    static const uint32_t lengths[] = {0,    8,          87,         88,         95,        4095,
                                       4097, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffff000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        for (int field = 0; field < 5; field++) {
            uint32_t length = lengths[i];
            memcpy(at, saved, sizeof saved);
            struct fbk_record record;
            memcpy(&record, at + 88, sizeof record);
            switch (field) {
            case 0:
                fbk_store_u32(at + offsetof(struct fbk_batch_header, content_bytes), length);
                break;
            case 1:
                fbk_store_u32(at + offsetof(struct fbk_batch_header, padded_bytes), length);
                break;
            case 2:
                fbk_store_u32(at + offsetof(struct fbk_batch_header, record_count), length);
                break;
            case 3: record.size_bytes = length; break;
            default: record.payload_bytes = length; break;
            }
            fbk_record_seal(&record);
            memcpy(at + 88, &record, sizeof record);
            reseal_batch(at);
            if (memcmp(at, saved, sizeof saved) == 0)
                continue;
            struct outcome outcome = scan(&image.harness.disk, 1, &expectation, &image);
            CHECK_EQUAL(outcome.batches, 1);
            CHECK_EQUAL(outcome.end.kind, FBK_END_TAIL);
        }
    }
    harness_free(&image.harness);
}

/* A batch that is whole but does not follow: another chain, a gap in records, an acknowledgement of
 * itself. */
static void
test_what_does_not_follow(void)
{
    struct image image;
    make_image(&image, 2, false);
    struct fbk_journal_expectation expectation = harness_expectation(1);
    uint8_t *at = image.harness.disk.bytes[1] + image.offsets[1];
    struct fbk_batch_header saved;
    memcpy(&saved, at, sizeof saved);
    for (int field = 0; field < 4; field++) {
        struct fbk_batch_header header = saved;
        switch (field) {
        case 0: header.previous_crc ^= 1; break;
        case 1:
            header.sequence += 1;
            header.acked_through = 0;
            break;
        case 2:
            header.sequence -= 1;
            header.acked_through = 0;
            break;
        default: header.acked_through = header.sequence; break;
        }
        memcpy(at, &header, sizeof header);
        reseal_batch(at);
        struct outcome outcome = scan(&image.harness.disk, 1, &expectation, &image);
        CHECK_EQUAL(outcome.batches, 1);
        CHECK_EQUAL(outcome.end.kind, FBK_END_TAIL);
    }
    memcpy(at, &saved, sizeof saved);
    CHECK_EQUAL(scan(&image.harness.disk, 1, &expectation, &image).batches, 2);
    harness_free(&image.harness);
}

static void
test_headers(void)
{
    struct image image;
    make_image(&image, 1, false);
    uint8_t *bytes = image.harness.disk.bytes[1];
    struct fbk_journal_header header;
    bytes[100] ^= 1;
    CHECK_EQUAL(fbk_journal_read_header(&image.harness.disk.io, "1", 1, &header), 0);
    CHECK_EQUAL(header.state, FBK_HEADER_VALID);
    CHECK_EQUAL(header.salt, 0x5a17);
    CHECK_EQUAL(strcmp((const char *)header.bookie_id, "bookie-1:3181"), 0);
    bytes[4096 + 100] ^= 1;
    CHECK_EQUAL(fbk_journal_read_header(&image.harness.disk.io, "1", 1, &header), 0);
    CHECK_EQUAL(header.state, FBK_HEADER_DAMAGED);
    memset(bytes, 0, 8192);
    CHECK_EQUAL(fbk_journal_read_header(&image.harness.disk.io, "1", 1, &header), 0);
    CHECK_EQUAL(header.state, FBK_HEADER_UNUSED);
    CHECK_EQUAL(header.size_bytes, FILE_BYTES);
    struct fbk_journal_file_header newer = {.magic = FBK_JOURNAL_MAGIC,
                                            .version = FBK_JOURNAL_VERSION + 1};
    memcpy(bytes, &newer, sizeof newer);
    CHECK_EQUAL(fbk_journal_read_header(&image.harness.disk.io, "1", 1, &header), FBK_E_TOO_NEW);
    image.harness.disk.size_bytes[1] = 0;
    CHECK_EQUAL(fbk_journal_read_header(&image.harness.disk.io, "1", 1, &header), 0);
    CHECK_EQUAL(header.state, FBK_HEADER_UNUSED);
    harness_free(&image.harness);
}

int
main(void)
{
    test_hostile_lengths();
    test_what_does_not_follow();
    test_headers();
    return 0;
}

/* The journal's format on disk, and what a valid record, batch and header is; used by the writer,
 * which makes them, and by the scan.  A record is struct fbk_record of base/layout.h, whose rules
 * hold here, too.
 *
 * Decision 3. */
#pragma once

#include "journal/scan.h"

#define FBK_BATCH_MAGIC 0x48435442u /* "BTCH" */

/* written by a clean stop or at the end of a full file: nothing follows in this file */
#define FBK_BATCH_CLOSING 1u

/* At a multiple of block_size_bytes; then record_count records, runs first (INV-J6); then zeros up
 * to padded_bytes. */
struct fbk_batch_header {
    uint32_t magic;
    uint32_t flags;
    uint64_t file_id;
    uint64_t salt;
    uint64_t offset_bytes;  /* in the file: finds misdirected writes */
    uint64_t sequence;      /* dense over the whole journal */
    uint64_t acked_through; /* highest sequence durable when this was submitted */
    uint64_t first_record_sequence;
    uint64_t written_s;
    uint32_t record_count;
    /* header, records and padding: a multiple of block_size_bytes */
    uint32_t padded_bytes;
    uint32_t content_bytes; /* header and records */
    uint32_t previous_crc;  /* header_crc of batch sequence - 1: the chain */
    /* CRC32C over all record headers (which hold body_crc), then the padding */
    uint32_t records_crc;
    uint32_t header_crc; /* CRC32C of the bytes before it */
};
_Static_assert(sizeof(struct fbk_batch_header) == 88, "batch header");

/* CRC32C of the 92 bytes before header_crc. */
uint32_t fbk_record_header_crc(const struct fbk_record *record);

/* Whether the sizes of a copied header (of the kinds that go through the journal) agree with each
 * other and with the bytes that are there.  Looks at no payload. */
bool fbk_record_shape_ok(const struct fbk_record *record, uint64_t available_bytes,
                         uint64_t size_bytes_max);

/* Whether ids are in range: ledger and entries not negative, a batch's last id at most 2^63-1. */
bool fbk_record_ids_ok(const struct fbk_record *record);

/* Whether a batch's table, which is ours already (copied or in a private buffer), agrees with the
 * payload's size. */
bool fbk_record_items_ok(const struct fbk_record *record, const uint8_t *items);

/* Checks a payload of payload_bytes against the header's body_crc and, for a batch, the table
 * against the size and each entry against the table. */
bool fbk_record_body_ok(const struct fbk_record *record, const uint8_t *payload);

/* The same over a copy: payload is copied to `to` and the copy is what is checked. */
bool fbk_record_copy_body(const struct fbk_record *record, uint8_t *to, const uint8_t *from);

uint32_t fbk_batch_header_crc(const struct fbk_batch_header *header);

/* Header is a copy.  Checks magic, crc, ids, offset and sizes against what remains of the file. */
bool fbk_batch_header_ok(const struct fbk_batch_header *header, uint64_t file_id, uint64_t salt,
                         uint64_t offset_bytes, uint64_t remaining_bytes,
                         uint32_t block_size_bytes);

/* A batch whose header is ok: records fill it exactly, every checksum agrees, the padding is zero.
 */
bool fbk_batch_records_ok(const struct fbk_batch_header *header, const uint8_t *batch);

/* The journal's format on disk, and what a valid record, batch and header is; used by the writer,
 * which makes them, and by the scan.  A record is struct fbk_record of base/layout.h, whose rules
 * hold here, too.
 *
 * Decision 3. */
#pragma once

#include "journal/scan.h"

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

/* A batch whose header is ok: records fill it exactly, every checksum agrees, the padding is zero.
 */
bool fbk_batch_records_ok(const struct fbk_batch_header *header, const uint8_t *batch);

/* What a valid record, batch and header is; used by the writer, which makes them, and by the scan. */
#ifndef FBK_JOURNAL_FORMAT_H
#define FBK_JOURNAL_FORMAT_H

#include "journal/scan.h"

#define FBK_BLOCK_BYTES_MAX 65536u
#define FBK_JOURNAL_HEADER_BLOCKS 2u

/* CRC32C of the 92 bytes before header_crc. */
uint32_t fbk_record_header_crc(const struct fbk_record *record);

/* Whether the sizes of a copied header (of the kinds that go through the journal) agree with each other and with the bytes
 * that are there.  Looks at no payload. */
bool fbk_record_shape_ok(const struct fbk_record *record, uint64_t available_bytes, uint64_t size_bytes_max);

/* Whether ids are in range: ledger and entries not negative, a batch's last id at most 2^63-1. */
bool fbk_record_ids_ok(const struct fbk_record *record);

/* Checks a payload of payload_bytes against the header's body_crc and, for a batch, the table against the size and each
 * entry against the table. */
bool fbk_record_body_ok(const struct fbk_record *record, const uint8_t *payload);

/* The same over a copy: payload is copied to `to` and the copy is what is checked. */
bool fbk_record_copy_body(const struct fbk_record *record, uint8_t *to, const uint8_t *from);

uint32_t fbk_batch_header_crc(const struct fbk_batch_header *header);

/* Header is a copy.  Checks magic, crc, ids, offset and sizes against what remains of the file. */
bool fbk_batch_header_ok(const struct fbk_batch_header *header, uint64_t file_id, uint64_t salt, uint64_t offset_bytes,
                         uint64_t remaining_bytes, uint32_t block_size_bytes);

/* A batch whose header is ok: records fill it exactly, every checksum agrees, the padding is zero.  *next_record_sequence
 * is behind its last record. */
bool fbk_batch_records_ok(const struct fbk_batch_header *header, const uint8_t *batch);

uint32_t fbk_journal_file_header_crc(const struct fbk_journal_file_header *header);

/* FBK_HEADER_* of the blocks in `bytes` (the beginning of a file), or FBK_E_TOO_NEW.  Of two valid ones the higher file id
 * counts: a recycled file's old header may survive in one block. */
int32_t fbk_journal_file_header_find(const uint8_t *bytes, uint64_t size_bytes, struct fbk_journal_file_header *header);

#endif

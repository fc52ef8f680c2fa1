/* The headers of a journal file and of its batches: the journal writes them; the scan checks them,
 * and so does the store, for which the file may be a log. */
#pragma once

#include "base/layout.h"

#include "boundary/journal_scan.h"

#define FBK_BLOCK_BYTES_MAX 65536u
#define FBK_JOURNAL_HEADER_BLOCKS 2u

#define FBK_JOURNAL_MAGIC 0x4c4e524a4b4246ull /* "FBKJRNL" */
/* 1, which is read, too: records without creation marks */
#define FBK_JOURNAL_VERSION_PLAIN 2u
/* with runs: a file that may stay as a log */
#define FBK_JOURNAL_VERSION 3u

/* Blocks 0 and 1 of a journal file, 4096 bytes each (or the device's block size if larger), the
 * rest zero. */
struct fbk_journal_file_header {
    uint64_t magic;
    uint32_t version;
    uint32_t block_size_bytes;
    uint64_t file_id; /* rises, never used again, recycled files included */
    uint64_t salt;    /* random per use of the file */
    uint64_t incarnation;
    uint32_t pair;
    uint32_t reserved;
    uint64_t file_size_bytes;
    uint64_t predecessor_file_id;  /* 0 = none */
    uint64_t predecessor_sequence; /* last batch that counts before this file's first */
    uint32_t predecessor_crc;      /* chain value there */
    uint32_t reserved2;
    uint64_t first_sequence; /* of this file's first batch: predecessor_sequence + 1 */
    uint64_t first_record_sequence;
    uint64_t created_s;
    uint8_t bookie_id[128]; /* zero padded */
    uint32_t reserved3;
    uint32_t crc; /* CRC32C of the 236 bytes before it */
};
_Static_assert(sizeof(struct fbk_journal_file_header) == 240, "journal file header");

uint32_t fbk_journal_file_header_crc(const struct fbk_journal_file_header *header);

/* FBK_HEADER_* of the blocks in `bytes` (the beginning of a file), or FBK_E_TOO_NEW.  Of two valid
 * ones the higher file id counts: a recycled file's old header may survive in one block. */
int32_t fbk_journal_file_header_find(const uint8_t *bytes, uint64_t size_bytes,
                                     struct fbk_journal_file_header *header);

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

uint32_t fbk_batch_header_crc(const struct fbk_batch_header *header);

/* Header is a copy.  Checks magic, crc, ids, offset and sizes against what remains of the file. */
bool fbk_batch_header_ok(const struct fbk_batch_header *header, uint64_t file_id, uint64_t salt,
                         uint64_t offset_bytes, uint64_t remaining_bytes,
                         uint32_t block_size_bytes);

/* Reads a journal file back, batch by batch, trusting nothing: see fastbk/storage/README.md for
 * what makes a batch valid and where a file ends.
 *
 *     scan = fbk_journal_scan_open(io, path, 1, &expectation, &error);
 *     while (fbk_journal_scan_next(scan, &batch) == 1)
 *         for (offset = 0; (record = fbk_journal_batch_record(&batch, &offset)) != NULL;)
 *             ... record and the record->payload_bytes behind it ...
 *     fbk_journal_scan_end(scan, &end);
 *
 * Every header, body checksum and length of a returned batch has been verified. */
#pragma once

#include "base/journal_header.h"
#include "io/io.h"

/* The record at *offset_bytes of a batch that fbk_journal_scan_next returned, and moves the offset
 * behind it; NULL at the end. */
static inline const struct fbk_record *
fbk_journal_batch_record(const struct fbk_journal_batch *batch, uint32_t *offset_bytes)
{
    if (*offset_bytes >= batch->records_bytes)
        return NULL;
    const struct fbk_record *record =
        (const struct fbk_record *)(const void *)(batch->records + *offset_bytes);
    *offset_bytes += record->size_bytes;
    return record;
}

static inline const uint8_t *
fbk_record_payload(const struct fbk_record *record)
{
    return (const uint8_t *)(record + 1);
}

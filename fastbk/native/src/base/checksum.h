/* CRC32C (Castagnoli) and CRC32 (zlib's), hardware path chosen at run time, same results
 * everywhere. */
#pragma once

#include "base/base.h"

#include "boundary/checksum.h"

/* crc: 0 to begin, or the result so far. */
uint32_t fbk_crc32c(uint32_t crc, const void *data, size_t size_bytes);
/* Copies and checksums in one pass over the source; the checksum is of what was *written* to
 * `to`. */
uint32_t fbk_crc32c_copy(uint32_t crc, void *to, const void *from, size_t size_bytes);
/* CRC of A followed by B, from the CRC of each: crc_b is fbk_crc32c(0, B). */
uint32_t fbk_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b_bytes);
uint32_t fbk_crc32(uint32_t crc, const void *data, size_t size_bytes);

/* The same by tables alone: what runs where the processor has no instructions for it, and what the
 * tests compare the fast paths with. */
uint32_t fbk_crc32c_portable(uint32_t crc, const void *data, size_t size_bytes);
uint32_t fbk_crc32c_copy_portable(uint32_t crc, void *to, const void *from, size_t size_bytes);
uint32_t fbk_crc32c_combine_portable(uint32_t crc_a, uint32_t crc_b, uint64_t size_b_bytes);
uint32_t fbk_crc32_portable(uint32_t crc, const void *data, size_t size_bytes);

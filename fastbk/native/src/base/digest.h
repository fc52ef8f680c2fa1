/* Digests of Apache's entries: ledger 8 | entry 8 | lac 8 | length 8 | digest | data, where the
 * digest covers the 32 bytes before it and the data behind it.  CRC32: 8 bytes, big-endian, the
 * upper half zero.  CRC32C: 4 bytes.  HMAC: 20 bytes, keyed by the ledger's password: here only
 * what has that key checks it (base/mac.c).  DUMMY, NONE: nothing. */
#pragma once

#include "base/layout.h"

#include "boundary/wire.h"

/* Bytes of the digest field; -1 for an unknown type. */
static inline int32_t
fbk_digest_bytes(uint32_t digest_type)
{
    switch (digest_type) {
    case FBK_DIGEST_NONE: return 0;
    case FBK_DIGEST_CRC32: return 8;
    case FBK_DIGEST_HMAC: return 20;
    case FBK_DIGEST_CRC32C: return 4;
    case FBK_DIGEST_DUMMY: return 0;
    default: return -1;
    }
}

/* fbk_digest_check while copying: one pass over the data.  *crc: CRC32C of all the bytes as they
 * now are at `to`. */
int32_t fbk_digest_copy_check(uint32_t digest_type, uint8_t *to, const uint8_t *entry,
                              uint32_t entry_bytes, uint32_t *crc);

/* Same ids, length field and data?  LACs may differ, and digests by them; a CRC that is right in
 * one copy only makes them different.  NONE: nobody said which digest it is, as with what comes
 * from Apache's clients; then both copies have to say it. */
bool fbk_entry_same(const uint8_t *a, uint32_t a_bytes, const uint8_t *b, uint32_t b_bytes,
                    uint8_t digest_type);

/* Copies `data` behind the header and digest field at `entry` (32 bytes of header are in place),
 * fills the digest field, and returns the entry's bytes; FBK_E_PROTOCOL for HMAC and unknown types.
 * One pass over the data. */
int64_t fbk_digest_put_data(uint32_t digest_type, uint8_t *entry, const uint8_t *data,
                            uint32_t data_bytes);

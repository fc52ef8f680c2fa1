/* Taking a record out of a ring whose producer may be broken: the header is copied once, the copy
 * is checked, and only the copy is used from then on. */
#pragma once

#include "base/checksum.h"
#include "base/ring.h"

/* Seals a finished header: the producer's last step before it publishes. */
static inline void
fbk_record_seal(struct fbk_record *record)
{
    record->header_crc = fbk_crc32c(0, record, offsetof(struct fbk_record, header_crc));
}

/* How many bytes lie between two cursors, of which `written` is the other side's: FBK_E_CORRUPT if
 * it claims more than the ring holds or went back. */
static inline int64_t
fbk_ring_available(const struct fbk_ring *ring, uint64_t position, uint64_t written)
{
    uint64_t available = written - position;
    return FBK_UNLIKELY(available > ring->size_bytes) ? FBK_E_CORRUPT : (int64_t)available;
}

/* Copies the header at `position` of a ring filled up to `written`.  Returns the record's size, 0
 * when there is none, FBK_E_CORRUPT when what is there cannot be one.  Then fbk_ring_at(ring,
 * position + 96) has copy->payload_bytes bytes that lie in the ring, but whose content is still to
 * be checked with body_crc *after* copying it. */
static inline int64_t
fbk_record_take(const struct fbk_ring *ring, uint64_t position, uint64_t written,
                struct fbk_record *copy)
{
    int64_t available = fbk_ring_available(ring, position, written);
    if (available <= 0)
        return available;
    if (FBK_UNLIKELY((uint64_t)available < sizeof *copy || position % 8 != 0))
        return FBK_E_CORRUPT;
    uint32_t crc = fbk_crc32c_copy(0, copy, fbk_ring_at(ring, position),
                                   offsetof(struct fbk_record, header_crc));
    copy->header_crc =
        ((const volatile struct fbk_record *)(const void *)fbk_ring_at(ring, position))->header_crc;
    if (FBK_UNLIKELY(copy->header_crc != crc))
        return FBK_E_CORRUPT;
    if (FBK_UNLIKELY((uint64_t)copy->size_bytes > (uint64_t)available ||
                     copy->size_bytes != sizeof *copy + fbk_round_up(copy->payload_bytes, 8)))
        return FBK_E_CORRUPT;
    return copy->size_bytes;
}

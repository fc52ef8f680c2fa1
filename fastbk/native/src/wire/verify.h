/* Is this frame a valid flatbuffer of our schema?  Says exactly what flatbuffers' own C++ Verifier
 * (2.0.8) says about a size-prefixed buffer; a fuzz harness compares the two. */
#pragma once

#include "base/base.h"
#include "wire/schema.h"

#include "boundary/wire.h"

/* Of a verified frame only: the place of a field in it, 0 = absent. */
static inline uint32_t
fbk_table_field(const uint8_t *frame, uint32_t table, uint32_t slot)
{
    uint32_t vtable = table - fbk_load_u32(frame + table);
    if (slot >= fbk_load_u16(frame + vtable))
        return 0;
    uint32_t offset = fbk_load_u16(frame + vtable + slot);
    return offset == 0 ? 0 : table + offset;
}

/* The place that a field's offset points to: a table, string or vector.  0 = absent. */
static inline uint32_t
fbk_table_target(const uint8_t *frame, uint32_t table, uint32_t slot)
{
    uint32_t at = fbk_table_field(frame, table, slot);
    return at == 0 ? 0 : at + fbk_load_u32(frame + at);
}

static inline uint32_t
fbk_frame_root(const uint8_t *frame)
{
    return 4 + fbk_load_u32(frame + 4);
}

static inline uint64_t
fbk_table_u64(const uint8_t *frame, uint32_t table, uint32_t slot)
{
    uint32_t at = fbk_table_field(frame, table, slot);
    return at == 0 ? 0 : fbk_load_u64(frame + at);
}

static inline int64_t
fbk_table_i64(const uint8_t *frame, uint32_t table, uint32_t slot)
{
    return (int64_t)fbk_table_u64(frame, table, slot);
}

static inline uint32_t
fbk_table_u32(const uint8_t *frame, uint32_t table, uint32_t slot)
{
    uint32_t at = fbk_table_field(frame, table, slot);
    return at == 0 ? 0 : fbk_load_u32(frame + at);
}

static inline uint16_t
fbk_table_u16(const uint8_t *frame, uint32_t table, uint32_t slot)
{
    uint32_t at = fbk_table_field(frame, table, slot);
    return at == 0 ? 0 : fbk_load_u16(frame + at);
}

static inline uint8_t
fbk_table_u8(const uint8_t *frame, uint32_t table, uint32_t slot)
{
    uint32_t at = fbk_table_field(frame, table, slot);
    return at == 0 ? 0 : frame[at];
}

/* Elements of a vector field; *count 0 and NULL when absent. */
static inline const uint8_t *
fbk_table_vector(const uint8_t *frame, uint32_t table, uint32_t slot, uint32_t *count)
{
    uint32_t at = fbk_table_target(frame, table, slot);
    *count = at == 0 ? 0 : fbk_load_u32(frame + at);
    return at == 0 ? NULL : frame + at + 4;
}

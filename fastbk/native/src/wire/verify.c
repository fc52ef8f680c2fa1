/* The flatbuffers verifier, driven by the tables in wire/schema.h.
 *
 * Offsets are kept as 64-bit numbers from the frame's start, so that nothing wraps and no pointer
 * is formed before it is known to lie inside.  Where flatbuffers' own verifier is odd, so is this
 * one: a range may not be as long as the whole buffer; the elements of a vector of structs need no
 * alignment. */
#define FBK_SCHEMA_TABLES
#include "wire/verify.h"

#define BUFFER_BYTES_MAX 0x7fffffffull
#define BUFFER_BYTES_MIN 12u

struct buffer {
    const uint8_t *bytes;
    uint64_t size_bytes;
};

static bool
is_inside(const struct buffer *buffer, uint64_t at, uint64_t size_bytes)
{
    return size_bytes < buffer->size_bytes && at <= buffer->size_bytes - size_bytes;
}

static bool
is_number(const struct buffer *buffer, uint64_t at, uint64_t size_bytes)
{
    return (at & (size_bytes - 1)) == 0 && is_inside(buffer, at, size_bytes);
}

/* An offset field: 0 when it is not valid, else how far it points. */
static uint64_t
offset_at(const struct buffer *buffer, uint64_t at)
{
    if (!is_number(buffer, at, 4))
        return 0;
    uint64_t offset = fbk_load_u32(buffer->bytes + at);
    if (offset > BUFFER_BYTES_MAX || !is_inside(buffer, at + offset, 1))
        return 0;
    return offset;
}

static bool
verify_vector(const struct buffer *buffer, uint64_t at, uint64_t element_bytes, uint64_t *end)
{
    if (!is_number(buffer, at, 4))
        return false;
    uint64_t count = fbk_load_u32(buffer->bytes + at);
    if (count >= BUFFER_BYTES_MAX / element_bytes)
        return false;
    *end = at + 4 + count * element_bytes;
    return is_inside(buffer, at, *end - at);
}

static bool
verify_string(const struct buffer *buffer, uint64_t at)
{
    uint64_t end;
    return verify_vector(buffer, at, 1, &end) && is_inside(buffer, end, 1) &&
           buffer->bytes[end] == 0;
}

static bool
verify_strings(const struct buffer *buffer, uint64_t at)
{
    uint64_t end;
    if (!verify_vector(buffer, at, 4, &end))
        return false;
    for (uint64_t item = at + 4; item < end; item += 4)
        if (!verify_string(buffer, item + fbk_load_u32(buffer->bytes + item)))
            return false;
    return true;
}

/* False when the table's head is not valid.  A vtable may lie anywhere, even over the frame's
 * length. */
static bool
find_vtable(const struct buffer *buffer, uint64_t table, uint64_t *vtable)
{
    if (!is_number(buffer, table, 4))
        return false;
    /* Signed, and may point either way; the same wrap-around as flatbuffers' own. */
    uint64_t at = table - (uint64_t)(int64_t)(int32_t)fbk_load_u32(buffer->bytes + table);
    if (!is_number(buffer, at, 2))
        return false;
    uint64_t size_bytes = fbk_load_u16(buffer->bytes + at);
    if ((size_bytes & 1) != 0 || !is_inside(buffer, at, size_bytes))
        return false;
    *vtable = at;
    return true;
}

static uint32_t
field_offset(const struct buffer *buffer, uint64_t vtable, uint32_t slot)
{
    return slot < fbk_load_u16(buffer->bytes + vtable) ? fbk_load_u16(buffer->bytes + vtable + slot)
                                                       : 0;
}

static bool verify_table(const struct buffer *buffer, uint64_t table,
                         const struct fbk_schema_table *schema);

static bool
verify_union(const struct buffer *buffer, uint64_t table, uint64_t vtable,
             const struct fbk_schema_field *field, uint64_t target)
{
    uint32_t type_offset = field_offset(buffer, vtable, field->slot - 2u);
    uint32_t type = type_offset == 0 ? 0 : buffer->bytes[table + type_offset];
    /* A member that this schema does not know is somebody's future: nothing in it is looked at. */
    if (type >= FBK_UNION_MEMBERS_MAX || fbk_schema_unions[field->size][type] < 0)
        return true;
    return verify_table(buffer, target, &fbk_schema_tables[fbk_schema_unions[field->size][type]]);
}

static bool
verify_field(const struct buffer *buffer, uint64_t table, uint64_t vtable,
             const struct fbk_schema_field *field)
{
    uint32_t offset = field_offset(buffer, vtable, field->slot);
    if (offset == 0)
        return !field->is_required;
    uint64_t at = table + offset;
    if (field->kind == FBK_FIELD_INLINE)
        return (at & (field->alignment - 1u)) == 0 && is_inside(buffer, at, field->size);
    uint64_t pointed = offset_at(buffer, at);
    if (pointed == 0)
        return false;
    uint64_t target = at + pointed;
    uint64_t end;
    switch (field->kind) {
    case FBK_FIELD_VECTOR: return verify_vector(buffer, target, field->size, &end);
    case FBK_FIELD_STRING: return verify_string(buffer, target);
    case FBK_FIELD_STRINGS: return verify_strings(buffer, target);
    default: return verify_union(buffer, table, vtable, field, target);
    }
}

static bool
verify_table(const struct buffer *buffer, uint64_t table, const struct fbk_schema_table *schema)
{
    uint64_t vtable;
    if (!find_vtable(buffer, table, &vtable))
        return false;
    for (uint32_t i = 0; i < schema->field_count; i++)
        if (!verify_field(buffer, table, vtable, &schema->fields[i]))
            return false;
    return true;
}

bool
fbk_verify(const uint8_t *frame, uint64_t frame_bytes, uint32_t root)
{
    const struct buffer buffer = {frame, frame_bytes};
    if (frame_bytes < BUFFER_BYTES_MIN || frame_bytes > BUFFER_BYTES_MAX ||
        fbk_load_u32(frame) != frame_bytes - 4)
        return false;
    uint64_t offset = offset_at(&buffer, 4);
    uint32_t table = root == FBK_VERIFY_REQUEST ? FBK_TABLE_REQUEST : FBK_TABLE_RESPONSE;
    return offset != 0 && verify_table(&buffer, 4 + offset, &fbk_schema_tables[table]);
}

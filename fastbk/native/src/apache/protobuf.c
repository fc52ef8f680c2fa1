/* The reader of protocol buffers: see apache/protobuf.h. */
#include "apache/protobuf.h"

/* Wire types; FBK_PROTOBUF_WIRE_VARINT and _BYTES are the others. */
#define WIRE_FIXED64 1u
#define WIRE_GROUP 3u
#define WIRE_GROUP_END 4u
#define WIRE_FIXED32 5u

struct cursor {
    const struct fbk_protobuf_schema *schema;
    const uint8_t *at;
    uint64_t present;
    struct fbk_protobuf_value *values;
};

/* At most ten bytes; bits beyond the sixty-fourth are dropped, as protobuf does. */
static bool
take_varint(struct cursor *cursor, const uint8_t *end, uint64_t *value)
{
    uint64_t sum = 0;
    for (uint32_t shift = 0; shift < 7 * FBK_PROTOBUF_VARINT_BYTES_MAX && cursor->at < end;
         shift += 7) {
        uint8_t byte = *cursor->at++;
        sum |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = sum;
            return true;
        }
    }
    return false;
}

/* Tags and sizes: at most five bytes, and no bits beyond the thirty-second. */
static bool
take_varint32(struct cursor *cursor, const uint8_t *end, uint32_t *value)
{
    uint64_t wide;
    const uint8_t *from = cursor->at;
    if (!take_varint(cursor, end, &wide) || cursor->at - from > 5 || wide > UINT32_MAX)
        return false;
    *value = (uint32_t)wide;
    return true;
}

static bool
take_size(struct cursor *cursor, const uint8_t *end, uint32_t *size_bytes)
{
    return take_varint32(cursor, end, size_bytes) && *size_bytes <= (uint64_t)(end - cursor->at);
}

/* Whatever follows the tag, but a group. */
static bool
skip_value(struct cursor *cursor, const uint8_t *end, uint32_t wire)
{
    uint64_t number;
    uint32_t size_bytes;
    switch (wire) {
    case FBK_PROTOBUF_WIRE_VARINT: return take_varint(cursor, end, &number);
    case FBK_PROTOBUF_WIRE_BYTES:
        if (!take_size(cursor, end, &size_bytes))
            return false;
        break;
    case WIRE_FIXED64: size_bytes = 8; break;
    case WIRE_FIXED32: size_bytes = 4; break;
    default: return false;
    }
    if (size_bytes > (uint64_t)(end - cursor->at))
        return false;
    cursor->at += size_bytes;
    return true;
}

/* A group is everything up to the end of the same number; groups lie within groups. */
static bool
skip_group(struct cursor *cursor, const uint8_t *end, uint32_t number, uint32_t depth)
{
    uint32_t open[FBK_PROTOBUF_DEPTH_MAX], open_count = 0;
    if (depth >= FBK_PROTOBUF_DEPTH_MAX)
        return false;
    open[open_count++] = number;
    while (open_count > 0) {
        uint32_t tag;
        if (!take_varint32(cursor, end, &tag))
            return false;
        if ((tag & 7) == WIRE_GROUP) {
            if (depth + open_count >= FBK_PROTOBUF_DEPTH_MAX)
                return false;
            open[open_count++] = tag >> 3;
        } else if ((tag & 7) == WIRE_GROUP_END) {
            if (open[--open_count] != tag >> 3)
                return false;
        } else if (!skip_value(cursor, end, tag & 7)) {
            return false;
        }
    }
    return true;
}

static uint32_t
wire_of(uint32_t kind)
{
    return kind >= FBK_PROTOBUF_BYTES ? FBK_PROTOBUF_WIRE_BYTES : FBK_PROTOBUF_WIRE_VARINT;
}

static const struct fbk_protobuf_field *
find_field(const struct fbk_protobuf_message *message, uint32_t number, uint32_t wire)
{
    for (uint32_t i = 0; i < message->field_count; i++)
        if (message->fields[i].number == number)
            return wire_of(message->fields[i].kind) == wire ? &message->fields[i] : NULL;
    return NULL;
}

static bool
is_in_enum(const struct fbk_protobuf_enum *which, int32_t number)
{
    for (uint32_t i = 0; i < 3; i++)
        if (number >= which->runs[i][0] && number <= which->runs[i][1])
            return true;
    return false;
}

static bool
take_number(struct cursor *cursor, const uint8_t *end, const struct fbk_protobuf_field *field)
{
    uint64_t number;
    if (!take_varint(cursor, end, &number))
        return false;
    switch (field->kind) {
    case FBK_PROTOBUF_UINT32: number = (uint32_t)number; break;
    case FBK_PROTOBUF_INT32: number = (uint64_t)(int64_t)(int32_t)number; break;
    case FBK_PROTOBUF_ENUM:
        /* Numbers that an enum lacks are unknown fields: an earlier value stays. */
        if (!is_in_enum(&cursor->schema->enums[field->type], (int32_t)number))
            return true;
        number = (uint32_t)number;
        break;
    default: break;
    }
    cursor->values[field->slot].number = number;
    cursor->present |= 1ull << field->slot;
    return true;
}

/* One level of known messages calls the next: no deeper than the schema. */
static bool
read_message(struct cursor *cursor, const uint8_t *end, const struct fbk_protobuf_message *message,
             uint32_t depth)
{
    while (cursor->at < end) {
        uint32_t tag, size_bytes;
        if (!take_varint32(cursor, end, &tag) || tag >> 3 == 0)
            return false;
        const struct fbk_protobuf_field *field = find_field(message, tag >> 3, tag & 7);
        if (field == NULL) {
            if ((tag & 7) == WIRE_GROUP ? !skip_group(cursor, end, tag >> 3, depth)
                                        : !skip_value(cursor, end, tag & 7))
                return false;
            continue;
        }
        if (field->kind < FBK_PROTOBUF_BYTES) {
            if (!take_number(cursor, end, field))
                return false;
            continue;
        }
        if (!take_size(cursor, end, &size_bytes))
            return false;
        cursor->present |= 1ull << field->slot;
        if (field->kind == FBK_PROTOBUF_BYTES) {
            cursor->values[field->slot] =
                (struct fbk_protobuf_value){.number = size_bytes, .bytes = cursor->at};
            cursor->at += size_bytes;
            continue;
        }
        const struct fbk_protobuf_message *inner = &cursor->schema->messages[field->type];
        if (field->kind == FBK_PROTOBUF_MESSAGES)
            cursor->present &= ~inner->all;
        if (!read_message(cursor, cursor->at + size_bytes, inner, depth + 1))
            return false;
        if (field->kind == FBK_PROTOBUF_MESSAGES &&
            (cursor->present & inner->required) != inner->required)
            return false;
    }
    return true;
}

bool
fbk_protobuf_read(const struct fbk_protobuf_schema *schema, const uint8_t *bytes,
                  uint32_t size_bytes, uint64_t *present, struct fbk_protobuf_value *values)
{
    struct cursor cursor = {.schema = schema, .at = bytes, .values = values};
    if (!read_message(&cursor, bytes + size_bytes, &schema->messages[0], 0))
        return false;
    *present = cursor.present;
    for (uint32_t i = 0; i < schema->message_count; i++) {
        const struct fbk_protobuf_message *message = &schema->messages[i];
        bool is_there = message->own == 0 || (cursor.present & message->own) != 0;
        if (is_there && (cursor.present & message->required) != message->required)
            return false;
    }
    return true;
}

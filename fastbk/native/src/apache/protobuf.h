/* Protocol buffers (proto2) as bytes: a reader driven by tables, and a writer that can also only
 * count.
 *
 * The reader accepts and understands what protobuf's own parsers do: fields in any order, the last
 * value of a field that comes twice, messages that come in pieces merged, unknown fields of every
 * wire type (groups within a bounded depth) and fields of a wrong wire type skipped, an enum's
 * unknown numbers as if they had not come, and in the end every required field of every message
 * that is there.  It allocates nothing; what it finds lies in the bytes that it was given. */
#pragma once

#include "base/base.h"

enum fbk_protobuf_kind {
    FBK_PROTOBUF_INT64 = 1, /* uint64 too: the same bits */
    FBK_PROTOBUF_INT32,
    FBK_PROTOBUF_UINT32,
    FBK_PROTOBUF_ENUM,
    FBK_PROTOBUF_BYTES, /* strings too: proto2 asks nothing of their bytes */
    FBK_PROTOBUF_MESSAGE,
    /* repeated: each is checked by itself, the last one's fields stay */
    FBK_PROTOBUF_MESSAGES,
};

/* A field that is known.  Every field of every message below one root has a slot of its own, 0..63,
 * its place among the values and its bit in a mask of what came. */
struct fbk_protobuf_field {
    uint8_t number;
    uint8_t kind;
    uint8_t slot;
    /* ENUM: which of the schema's enums; MESSAGE, MESSAGES: which of its messages */
    uint8_t type;
};

struct fbk_protobuf_message {
    const struct fbk_protobuf_field *fields;
    uint32_t field_count;
    /* the bit of the field that holds this message; 0 = the root, which is always there */
    uint64_t own;
    uint64_t required; /* bits */
    uint64_t all;      /* bits of all its fields */
};

/* The numbers of an enum: up to three runs, each from..to; a run that is not used is 1..0. */
struct fbk_protobuf_enum {
    uint16_t runs[3][2];
};

struct fbk_protobuf_schema {
    const struct fbk_protobuf_message *messages; /* the first is the root */
    uint32_t message_count;
    const struct fbk_protobuf_enum *enums;
};

#define FBK_PROTOBUF_SLOTS_MAX 64u
/* of messages and groups within each other, as protobuf's parsers have it */
#define FBK_PROTOBUF_DEPTH_MAX 100u
#define FBK_PROTOBUF_VARINT_BYTES_MAX 10u

/* INT64 and the like: number (negative ones sign-extended).  BYTES: bytes, and number is their
 * count. */
struct fbk_protobuf_value {
    uint64_t number;
    const uint8_t *bytes;
};

/* values: as many as the schema has slots; only those whose bit is set in *present mean anything.
 * False: no such message. */
bool fbk_protobuf_read(const struct fbk_protobuf_schema *schema, const uint8_t *bytes,
                       uint32_t size_bytes, uint64_t *present, struct fbk_protobuf_value *values);

/* ---- writing: at `out`, or with out NULL only counted */

struct fbk_protobuf_writer {
    uint8_t *out;
    uint64_t size_bytes;
};

#define FBK_PROTOBUF_WIRE_VARINT 0u
#define FBK_PROTOBUF_WIRE_BYTES 2u

static inline uint32_t
fbk_protobuf_varint_bytes(uint64_t value)
{
    return (70u - (uint32_t)__builtin_clzll(value | 1)) / 7u;
}

static inline uint8_t *
fbk_protobuf_store_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static inline void
fbk_protobuf_put_varint(struct fbk_protobuf_writer *writer, uint64_t value)
{
    if (writer->out != NULL)
        fbk_protobuf_store_varint(writer->out + writer->size_bytes, value);
    writer->size_bytes += fbk_protobuf_varint_bytes(value);
}

static inline void
fbk_protobuf_put_number(struct fbk_protobuf_writer *writer, uint32_t field, uint64_t value)
{
    fbk_protobuf_put_varint(writer, field << 3 | FBK_PROTOBUF_WIRE_VARINT);
    fbk_protobuf_put_varint(writer, value);
}

/* What comes before bytes or a message. */
static inline void
fbk_protobuf_put_head(struct fbk_protobuf_writer *writer, uint32_t field, uint64_t size_bytes)
{
    fbk_protobuf_put_varint(writer, field << 3 | FBK_PROTOBUF_WIRE_BYTES);
    fbk_protobuf_put_varint(writer, size_bytes);
}

/* bytes NULL: room is left for them. */
static inline void
fbk_protobuf_put_bytes(struct fbk_protobuf_writer *writer, uint32_t field, const uint8_t *bytes,
                       uint64_t size_bytes)
{
    fbk_protobuf_put_head(writer, field, size_bytes);
    if (writer->out != NULL && bytes != NULL)
        memcpy(writer->out + writer->size_bytes, bytes, size_bytes);
    writer->size_bytes += size_bytes;
}

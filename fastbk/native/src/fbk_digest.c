#include "fbk_digest.h"

#include "fbk_checksum.h"

#define HEADER FBK_ENTRY_HEADER_BYTES
#define LAC_HEADER 16u

/* The digest of `head_bytes` of header and the data `digest_bytes` behind it. */
static uint64_t
compute(uint32_t digest_type, const uint8_t *entry, uint32_t head_bytes, uint32_t digest_bytes, uint32_t entry_bytes)
{
    uint32_t from = head_bytes + digest_bytes;
    if (digest_type == FBK_DIGEST_CRC32C)
        return fbk_crc32c(fbk_crc32c(0, entry, head_bytes), entry + from, entry_bytes - from);
    return fbk_crc32(fbk_crc32(0, entry, head_bytes), entry + from, entry_bytes - from);
}

static bool
has_crc(uint32_t digest_type)
{
    return digest_type == FBK_DIGEST_CRC32C || digest_type == FBK_DIGEST_CRC32;
}

static uint64_t
field(uint32_t digest_type, const uint8_t *at)
{
    return digest_type == FBK_DIGEST_CRC32C ? fbk_load_be32(at) : fbk_load_be64(at);
}

static void
put_field(uint32_t digest_type, uint8_t *at, uint64_t value)
{
    if (digest_type == FBK_DIGEST_CRC32C)
        fbk_store_be32(at, (uint32_t)value);
    else
        fbk_store_be64(at, value);
}

static int32_t
check(uint32_t digest_type, const uint8_t *entry, uint32_t head_bytes, uint32_t entry_bytes)
{
    int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (digest_bytes < 0 || entry_bytes < head_bytes + (uint32_t)digest_bytes)
        return FBK_S_BAD_REQUEST;
    if (!has_crc(digest_type))
        return FBK_S_OK;
    uint64_t digest = compute(digest_type, entry, head_bytes, (uint32_t)digest_bytes, entry_bytes);
    return digest == field(digest_type, entry + head_bytes) ? FBK_S_OK : FBK_S_BAD_DIGEST;
}

int32_t
fbk_digest_check(uint32_t digest_type, const uint8_t *entry, uint32_t entry_bytes)
{
    return check(digest_type, entry, HEADER, entry_bytes);
}

int32_t
fbk_digest_check_lac(uint32_t digest_type, const uint8_t *body, uint32_t body_bytes)
{
    int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (digest_bytes < 0 || body_bytes != LAC_HEADER + (uint32_t)digest_bytes)
        return FBK_S_BAD_REQUEST;
    return check(digest_type, body, LAC_HEADER, body_bytes);
}

int32_t
fbk_digest_copy_check(uint32_t digest_type, uint8_t *to, const uint8_t *entry, uint32_t entry_bytes, uint32_t *crc)
{
    if (digest_type != FBK_DIGEST_CRC32C || entry_bytes < HEADER + 4) {
        *crc = fbk_crc32c_copy(0, to, entry, entry_bytes);
        return fbk_digest_check(digest_type, to, entry_bytes);
    }
    /* Two checksums end in the same data: the digest's (without its own field) and the body's (with it).  Running
     * one over the data gives the other, since they differ only by what their different beginnings become. */
    uint32_t data_bytes = entry_bytes - HEADER - 4;
    memcpy(to, entry, HEADER + 4);
    uint32_t digest_state = fbk_crc32c(0, to, HEADER);
    uint32_t body_state = fbk_crc32c(digest_state, to + HEADER, 4);
    uint32_t digest = fbk_crc32c_copy(digest_state, to + HEADER + 4, entry + HEADER + 4, data_bytes);
    *crc = fbk_crc32c_combine(digest_state ^ body_state, digest, data_bytes);
    return digest == fbk_load_be32(to + HEADER) ? FBK_S_OK : FBK_S_BAD_DIGEST;
}

int32_t
fbk_digest_put(uint32_t digest_type, uint8_t *entry, uint32_t entry_bytes)
{
    int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (digest_bytes < 0 || digest_type == FBK_DIGEST_HMAC || entry_bytes < HEADER + (uint32_t)digest_bytes)
        return FBK_S_BAD_REQUEST;
    if (has_crc(digest_type))
        put_field(digest_type, entry + HEADER, compute(digest_type, entry, HEADER, (uint32_t)digest_bytes, entry_bytes));
    return FBK_S_OK;
}

int64_t
fbk_digest_put_data(uint32_t digest_type, uint8_t *entry, const uint8_t *data, uint32_t data_bytes)
{
    int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (digest_bytes < 0 || digest_type == FBK_DIGEST_HMAC)
        return FBK_E_PROTOCOL;
    uint8_t *to = entry + HEADER + digest_bytes;
    if (digest_type == FBK_DIGEST_CRC32C) {
        put_field(digest_type, entry + HEADER, fbk_crc32c_copy(fbk_crc32c(0, entry, HEADER), to, data, data_bytes));
    } else {
        if (data_bytes != 0)
            memcpy(to, data, data_bytes);
        if (digest_type == FBK_DIGEST_CRC32)
            put_field(digest_type, entry + HEADER, fbk_crc32(fbk_crc32(0, entry, HEADER), to, data_bytes));
    }
    return (int64_t)HEADER + digest_bytes + data_bytes;
}

int64_t
fbk_digest_put_lac(uint32_t digest_type, uint8_t *body)
{
    int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (digest_bytes < 0 || digest_type == FBK_DIGEST_HMAC)
        return FBK_E_PROTOCOL;
    uint32_t body_bytes = LAC_HEADER + (uint32_t)digest_bytes;
    if (has_crc(digest_type))
        put_field(digest_type, body + LAC_HEADER, compute(digest_type, body, LAC_HEADER, (uint32_t)digest_bytes, body_bytes));
    return body_bytes;
}

#include "base/digest.h"

#include "base/checksum.h"

#define HEADER FBK_ENTRY_HEADER_BYTES
#define LAC_HEADER 16u

/* The digest of `head_bytes` of header and the data `digest_bytes` behind it. */
static uint64_t
compute(uint32_t digest_type, const uint8_t *entry, uint32_t head_bytes, uint32_t digest_bytes,
        uint32_t entry_bytes)
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
fbk_digest_copy_check(uint32_t digest_type, uint8_t *to, const uint8_t *entry, uint32_t entry_bytes,
                      uint32_t *crc)
{
    if (digest_type != FBK_DIGEST_CRC32C || entry_bytes < HEADER + 4) {
        *crc = fbk_crc32c_copy(0, to, entry, entry_bytes);
        return fbk_digest_check(digest_type, to, entry_bytes);
    }
    /* Two checksums end in the same data: the digest's (without its own field) and the body's (with
     * it).  Running one over the data gives the other, since they differ only by what their
     * different beginnings become. */
    uint32_t data_bytes = entry_bytes - HEADER - 4;
    memcpy(to, entry, HEADER + 4);
    uint32_t digest_state = fbk_crc32c(0, to, HEADER);
    uint32_t body_state = fbk_crc32c(digest_state, to + HEADER, 4);
    uint32_t digest =
        fbk_crc32c_copy(digest_state, to + HEADER + 4, entry + HEADER + 4, data_bytes);
    *crc = fbk_crc32c_combine(digest_state ^ body_state, digest, data_bytes);
    return digest == fbk_load_be32(to + HEADER) ? FBK_S_OK : FBK_S_BAD_DIGEST;
}

int32_t
fbk_digest_put(uint32_t digest_type, uint8_t *entry, uint32_t entry_bytes)
{
    int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (digest_bytes < 0 || digest_type == FBK_DIGEST_HMAC ||
        entry_bytes < HEADER + (uint32_t)digest_bytes)
        return FBK_S_BAD_REQUEST;
    if (has_crc(digest_type))
        put_field(digest_type, entry + HEADER,
                  compute(digest_type, entry, HEADER, (uint32_t)digest_bytes, entry_bytes));
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
        put_field(digest_type, entry + HEADER,
                  fbk_crc32c_copy(fbk_crc32c(0, entry, HEADER), to, data, data_bytes));
    } else {
        if (data_bytes != 0)
            memcpy(to, data, data_bytes);
        if (digest_type == FBK_DIGEST_CRC32)
            put_field(digest_type, entry + HEADER,
                      fbk_crc32(fbk_crc32(0, entry, HEADER), to, data_bytes));
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
        put_field(digest_type, body + LAC_HEADER,
                  compute(digest_type, body, LAC_HEADER, (uint32_t)digest_bytes, body_bytes));
    return body_bytes;
}

/* ------------ the same entry twice */

#define LARGEST_DIGEST_BYTES 20u /* HMAC's */

static bool
same_from(const uint8_t *a, const uint8_t *b, uint32_t size_bytes, uint32_t from)
{
    return size_bytes <= from || memcmp(a + from, b + from, size_bytes - from) == 0;
}

/* With the same LAC every digest is the same, too.  Else a CRC that is right in both copies tells
 * where the data begins, and one that is right in only one of them that they differ.  What is left
 * is HMAC's, which only its readers can check (or DUMMY, under which the first 20 bytes of the data
 * are taken on trust). */
static bool
same_of_unknown_digest(const uint8_t *a, const uint8_t *b, uint32_t size_bytes)
{
    if (memcmp(a + 16, b + 16, 8) == 0)
        return same_from(a, b, size_bytes, HEADER);
    static const uint8_t crcs[] = {FBK_DIGEST_CRC32C, FBK_DIGEST_CRC32};
    for (uint32_t n = 0; n < sizeof crcs; n++) {
        bool a_is = fbk_digest_check(crcs[n], a, size_bytes) == FBK_S_OK;
        bool b_is = fbk_digest_check(crcs[n], b, size_bytes) == FBK_S_OK;
        if (a_is || b_is)
            return a_is && b_is &&
                   same_from(a, b, size_bytes, HEADER + (uint32_t)fbk_digest_bytes(crcs[n]));
    }
    return same_from(a, b, size_bytes, HEADER + LARGEST_DIGEST_BYTES);
}

bool
fbk_entry_same(const uint8_t *a, uint32_t a_bytes, const uint8_t *b, uint32_t b_bytes,
               uint8_t digest_type)
{
    if (a_bytes != b_bytes || a_bytes < HEADER)
        return false;
    /* ids and length; the LAC lies between */
    if (memcmp(a, b, 16) != 0 || memcmp(a + 24, b + 24, 8) != 0)
        return false;
    if (digest_type == FBK_DIGEST_NONE)
        return same_of_unknown_digest(a, b, a_bytes);
    /* one that we don't know: everything counts */
    int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (!same_from(a, b, a_bytes, HEADER + (digest_bytes < 0 ? 0 : (uint32_t)digest_bytes)))
        return false;
    /* The same data under a wrong digest is a copy that no reader takes: nothing may be
     * acknowledged by it. */
    return !has_crc(digest_type) || memcmp(a, b, a_bytes) == 0 ||
           fbk_digest_check(digest_type, a, a_bytes) == fbk_digest_check(digest_type, b, b_bytes);
}

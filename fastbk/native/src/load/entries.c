/* Stored entries as the load generator would have written them, many at a time: for benches that build a store directly. */
#include "load/load.h"

#include "base/checksum.h"
#include "base/digest.h"

int32_t
fbk_load_entries(uint8_t *out, uint32_t *crcs, int64_t first_ledger_id, uint32_t ledger_count, uint32_t entries_a_ledger,
                 uint32_t size_bytes, uint32_t digest_type)
{
    const int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (digest_bytes < 0 || digest_type == FBK_DIGEST_HMAC)
        return -EINVAL;
    const uint32_t front_bytes = FBK_ENTRY_HEADER_BYTES + (uint32_t)digest_bytes;
    for (uint32_t n = 0; n < ledger_count; n++) {
        const int64_t ledger_id = first_ledger_id + n;
        for (uint32_t entry_id = 0; entry_id < entries_a_ledger; entry_id++) {
            fbk_store_be64(out, (uint64_t)ledger_id);
            fbk_store_be64(out + 8, entry_id);
            fbk_store_be64(out + 16, (uint64_t)(int64_t)-1);
            fbk_store_be64(out + 24, (uint64_t)(entry_id + 1) * size_bytes);
            fbk_load_data(out + front_bytes, size_bytes, ledger_id, entry_id);
            fbk_digest_put(digest_type, out, front_bytes + size_bytes);
            *crcs++ = fbk_crc32c(0, out, front_bytes + size_bytes);
            out += front_bytes + size_bytes;
        }
    }
    return (int32_t)(front_bytes + size_bytes);
}

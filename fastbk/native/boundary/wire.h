/* Frames and entry digests off the hot path: verification for code that then reads with
 * flatbuffers' own Python, and digests for tests and rare messages. */

#define FBK_VERIFY_REQUEST 0
#define FBK_VERIFY_RESPONSE 1
/* frame: with its 4 bytes of length; may lie at any address. root: one of the two above. */
_Bool fbk_verify(const uint8_t *frame, uint64_t frame_bytes, uint32_t root);

/* FBK_S_OK, FBK_S_BAD_DIGEST, or FBK_S_BAD_REQUEST for an unknown type or an entry too short for
 * its header and digest. */
int32_t fbk_digest_check(uint32_t digest_type, const uint8_t *entry, uint32_t entry_bytes);
/* Fills the digest field of an entry whose header and data are in place. FBK_S_OK or
 * FBK_S_BAD_REQUEST (HMAC too: it needs a key). */
int32_t fbk_digest_put(uint32_t digest_type, uint8_t *entry, uint32_t entry_bytes);
/* The same for a LAC body: ledger 8 | lac 8 | digest. put_lac returns the body's bytes or
 * FBK_E_PROTOCOL. */
int32_t fbk_digest_check_lac(uint32_t digest_type, const uint8_t *body, uint32_t body_bytes);
int64_t fbk_digest_put_lac(uint32_t digest_type, uint8_t *body);

#define FBK_MAC_BYTES 20
#define FBK_MAC_KEY_BYTES 20
/* fbk_digest_check for HMAC, by the key that the ledger's password makes: FBK_S_OK, BAD_DIGEST,
 * BAD_REQUEST. */
int32_t fbk_digest_check_mac(const uint8_t *key, const uint8_t *entry, uint32_t entry_bytes);

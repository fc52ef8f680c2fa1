/* Checksums for Python's own files and for digests off the hot path. Sizes in bytes. */
uint32_t fbk_python_crc32c(uint32_t crc, const uint8_t *data, uint64_t size_bytes);
uint32_t fbk_python_crc32(uint32_t crc, const uint8_t *data, uint64_t size_bytes);
uint32_t fbk_python_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b_bytes);
/* 1: the processor's checksum instructions are used, 0: tables. */
int32_t fbk_checksum_is_hardware(void);

/* CRC32C and CRC32.
 *
 * Polynomials are bit-reflected: bit 31 of a 32-bit remainder is x^0, bit 0 is x^31.  Two facts
 * carry the fast paths.  (1) The processor's crc32 instruction turns a 64-bit polynomial v into v *
 * x^32 mod P.  (2) The carry-less product of two reflected remainders, read as a reflected 64-bit
 * polynomial, is a * b * x.  So crc32(0, clmul(a, k)) = a * k * x^33 mod P, and with k = x^(8n -
 * 33) it moves a checksum over n bytes.
 *
 * Three lanes hide the instruction's latency of three cycles.  Their length varies (tables of k for
 * every multiple of 8 bytes), so short records profit too.  CRC32 has no instruction on x86; it is
 * folded by carry-less multiplication, 64 bytes a step. */
#include "base/checksum.h"

#define CRC32C_POLYNOMIAL 0x82f63b78u
#define CRC32_POLYNOMIAL 0xedb88320u
#define ONE 0x80000000u /* x^0 */

#define LANE_WORDS_MAX 128u /* 3 lanes of 1 KiB a round */
#define LANES_BYTES_MIN 96u /* below, one lane is as fast */
#define COPY_BLOCK_BYTES 4096u

static uint32_t crc32c_tables[8][256];
static uint32_t crc32_tables[8][256];
static uint32_t lane_shifts[2 * LANE_WORDS_MAX + 1]; /* [i]: x^(64 i - 33) */
static uint32_t size_shifts[8][256];                 /* [k][j]: x^(8 j 256^k - 33) */
static bool have_hardware;

static uint32_t
times_x(uint32_t a, uint32_t polynomial)
{
    return (a >> 1) ^ ((a & 1u) ? polynomial : 0u);
}

static uint32_t
divided_by_x(uint32_t a, uint32_t polynomial)
{
    /* The polynomial's constant term is 1, so x has an inverse. */
    return (a & ONE) ? ((a ^ polynomial) << 1) | 1u : a << 1;
}

static uint32_t
multiply(uint32_t a, uint32_t b, uint32_t polynomial)
{
    uint32_t product = 0;
    for (uint32_t bit = ONE; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = times_x(b, polynomial);
    }
    return product;
}

static uint32_t
power_of_x(uint64_t exponent, uint32_t polynomial)
{
    uint32_t result = ONE;
    uint32_t square = ONE >> 1; /* x^1 */
    for (; exponent != 0; exponent >>= 1) {
        if (exponent & 1u)
            result = multiply(result, square, polynomial);
        square = multiply(square, square, polynomial);
    }
    return result;
}

static void
make_tables(uint32_t tables[8][256], uint32_t polynomial)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = times_x(crc, polynomial);
        tables[0][byte] = crc;
    }
    for (uint32_t k = 1; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xffu];
}

static void
make_shifts(void)
{
    uint32_t inverse_33 = ONE;
    for (int i = 0; i < 33; i++)
        inverse_33 = divided_by_x(inverse_33, CRC32C_POLYNOMIAL);
    uint32_t x64 = power_of_x(64, CRC32C_POLYNOMIAL);
    lane_shifts[0] = inverse_33;
    for (uint32_t i = 1; i <= 2 * LANE_WORDS_MAX; i++)
        lane_shifts[i] = multiply(lane_shifts[i - 1], x64, CRC32C_POLYNOMIAL);
    uint32_t step = power_of_x(8, CRC32C_POLYNOMIAL); /* x^(8 * 256^k) */
    for (uint32_t k = 0; k < 8; k++) {
        size_shifts[k][0] = inverse_33;
        for (uint32_t j = 1; j < 256; j++)
            size_shifts[k][j] = multiply(size_shifts[k][j - 1], step, CRC32C_POLYNOMIAL);
        for (int bit = 0; bit < 8; bit++)
            step = multiply(step, step, CRC32C_POLYNOMIAL);
    }
}

/* ------------ by tables; crc without the inversions */

static uint32_t
update_word(const uint32_t tables[8][256], uint32_t crc, uint64_t word)
{
    word ^= crc;
    return tables[7][word & 0xffu] ^ tables[6][(word >> 8) & 0xffu] ^
           tables[5][(word >> 16) & 0xffu] ^ tables[4][(word >> 24) & 0xffu] ^
           tables[3][(word >> 32) & 0xffu] ^ tables[2][(word >> 40) & 0xffu] ^
           tables[1][(word >> 48) & 0xffu] ^ tables[0][word >> 56];
}

static uint32_t
update_portable(const uint32_t tables[8][256], uint32_t crc, const uint8_t *data, size_t size_bytes)
{
    for (; size_bytes >= 8; size_bytes -= 8, data += 8)
        crc = update_word(tables, crc, fbk_load_u64(data));
    for (; size_bytes != 0; size_bytes--, data++)
        crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 0xffu];
    return crc;
}

uint32_t
fbk_crc32c_portable(uint32_t crc, const void *data, size_t size_bytes)
{
    return ~update_portable(crc32c_tables, ~crc, data, size_bytes);
}

uint32_t
fbk_crc32_portable(uint32_t crc, const void *data, size_t size_bytes)
{
    return ~update_portable(crc32_tables, ~crc, data, size_bytes);
}

uint32_t
fbk_crc32c_copy_portable(uint32_t crc, void *to, const void *from, size_t size_bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;
    while (size_bytes != 0) {
        size_t block = size_bytes < COPY_BLOCK_BYTES ? size_bytes : COPY_BLOCK_BYTES;
        memcpy(out, in, block);
        crc = fbk_crc32c_portable(crc, out, block);
        out += block;
        in += block;
        size_bytes -= block;
    }
    return crc;
}

static uint32_t
shift_portable(uint32_t crc, uint32_t shift)
{
    uint64_t product = 0;
    for (uint32_t bit = 0; bit < 32; bit++)
        if ((crc >> bit) & 1u)
            product ^= (uint64_t)shift << bit;
    return update_word(crc32c_tables, 0, product);
}

uint32_t
fbk_crc32c_combine_portable(uint32_t crc_a, uint32_t crc_b, uint64_t size_b_bytes)
{
    for (uint32_t k = 0; size_b_bytes != 0; k++, size_b_bytes >>= 8)
        if (size_b_bytes & 0xffu)
            crc_a = shift_portable(crc_a, size_shifts[k][size_b_bytes & 0xffu]);
    return crc_a ^ crc_b;
}

#include "base/checksum_hardware.h"

/* ------------ the choice */

/* Before main, so that no thread ever sees half a table. */
__attribute__((constructor)) static void
checksum_start(void)
{
    make_tables(crc32c_tables, CRC32C_POLYNOMIAL);
    make_tables(crc32_tables, CRC32_POLYNOMIAL);
    make_shifts();
    hardware_find();
}

uint32_t
fbk_crc32c(uint32_t crc, const void *data, size_t size_bytes)
{
    return FBK_LIKELY(have_hardware) ? crc32c_hardware(crc, data, size_bytes)
                                     : fbk_crc32c_portable(crc, data, size_bytes);
}

uint32_t
fbk_crc32c_copy(uint32_t crc, void *to, const void *from, size_t size_bytes)
{
    return FBK_LIKELY(have_hardware) ? crc32c_copy_hardware(crc, to, from, size_bytes)
                                     : fbk_crc32c_copy_portable(crc, to, from, size_bytes);
}

uint32_t
fbk_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b_bytes)
{
    return FBK_LIKELY(have_hardware) ? combine_hardware(crc_a, crc_b, size_b_bytes)
                                     : fbk_crc32c_combine_portable(crc_a, crc_b, size_b_bytes);
}

uint32_t
fbk_crc32(uint32_t crc, const void *data, size_t size_bytes)
{
    return FBK_LIKELY(have_hardware) ? crc32_hardware(crc, data, size_bytes)
                                     : fbk_crc32_portable(crc, data, size_bytes);
}

int32_t
fbk_checksum_is_hardware(void)
{
    return have_hardware;
}

uint32_t
fbk_python_crc32c(uint32_t crc, const uint8_t *data, uint64_t size_bytes)
{
    return fbk_crc32c(crc, data, size_bytes);
}

uint32_t
fbk_python_crc32(uint32_t crc, const uint8_t *data, uint64_t size_bytes)
{
    return fbk_crc32(crc, data, size_bytes);
}

uint32_t
fbk_python_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b_bytes)
{
    return fbk_crc32c_combine(crc_a, crc_b, size_b_bytes);
}

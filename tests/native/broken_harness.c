/* A harness with a fault on purpose: shows that the driver finds one. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    volatile uint8_t sink = 0;
    /* Believes the length in the first byte. */
    if (size > 0)
        for (uint32_t i = 0; i < data[0]; i++)
            sink = data[1 + i];
    return sink & 0;
}

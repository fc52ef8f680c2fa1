/* The varints of streams' records, as they are written: seven bits a byte, the lowest first. */
#pragma once

#include <stdint.h>

/* At most ten bytes; returns what is behind them. */
static inline uint8_t *
fbk_stream_put_varint(uint8_t *at, uint64_t value)
{
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

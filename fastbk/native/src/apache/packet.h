/* Version 2's packets and the few numbers of version 3 that both ends of Apache's protocols
 * need. */
#pragma once

#include "apache/apache.h"

/* Field 1, length-delimited: how every Request and Response begins. */
#define FBK_APACHE_FIRST_BYTE_V3 0x0a
#define FBK_APACHE_READ_FLAG_FENCE 1
#define FBK_APACHE_READ_FLAG_PIGGYBACK 2
#define FBK_APACHE_ADD_FLAG_RECOVERY 1

/* A packet header: version 8 bits | opcode 8 | flags 16. */
#define FBK_APACHE_PACKET_VERSION 2
#define FBK_APACHE_PACKET_ADD 1u
#define FBK_APACHE_PACKET_READ 2u
#define FBK_APACHE_PACKET_AUTH 3u
#define FBK_APACHE_PACKET_READ_BATCH 7u

#define FBK_APACHE_PACKET_FENCE 1u
#define FBK_APACHE_PACKET_RECOVERY 2u
#define FBK_APACHE_PACKET_HIGH_PRIORITY 4u

/* The opcode of an operation; 0 = version 2 has none. */
static inline uint32_t
fbk_apache_packet_opcode(uint32_t operation)
{
    switch (operation) {
    case FBK_APACHE_ADD: return FBK_APACHE_PACKET_ADD;
    case FBK_APACHE_READ: return FBK_APACHE_PACKET_READ;
    case FBK_APACHE_AUTH: return FBK_APACHE_PACKET_AUTH;
    case FBK_APACHE_READ_BATCH: return FBK_APACHE_PACKET_READ_BATCH;
    default: return 0;
    }
}

/* Version 0's header is the opcode alone. */
static inline uint32_t
fbk_apache_packet_header(uint32_t version, uint32_t opcode, uint32_t flags)
{
    return version == 0 ? opcode : version << 24 | opcode << 16 | flags;
}

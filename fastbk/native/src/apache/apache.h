/* Apache BookKeeper's protocols: see boundary/apache.h, which is nearly the whole of it. */
#pragma once

#include "base/base.h"

#include "boundary/apache.h"

/* Of the numbers of a reply. */
#define FBK_APACHE_ABSENT INT64_MIN

/* ---- the client's side (apache/client.c) */

/* Writes a request as a frame; its size is returned, 0 when it does not fit into out_bytes or
 * version 2 has no such operation.  `protocol`, `version`, `operation`, flags, ids and bodies as
 * above; echo_* are not read. */
uint64_t fbk_apache_put_request(uint8_t *out, uint64_t out_bytes,
                                const struct fbk_apache_request *request);

/* Reads a reply's body (without its length).  0, or FBK_E_PROTOCOL.  entry_sizes points at
 * big-endian sizes *in front of* each entry for a batch read: entries follow each other as size,
 * bytes. */
int32_t fbk_apache_read_reply(const uint8_t *body, uint32_t body_bytes, uint32_t protocol,
                              struct fbk_apache_reply *reply);

/* What the files of the load generator share: a window of slots, ledgers, connections. */
#ifndef FBK_LOAD_STATE_H
#define FBK_LOAD_STATE_H

#include "load/load.h"

#include "base/digest.h"
#include "load/histogram.h"
#include "wire/client.h"

#include <poll.h>

#define LOAD_NO_SLOT UINT32_MAX
#define LOAD_RECEIVE_BYTES (8u * 1024u * 1024u)
#define LOAD_SEND_BYTES_MIN (512u * 1024u)
#define LOAD_CONNECTIONS_MAX 4096u
#define LOAD_FRAME_OVERHEAD_BYTES 256u
#define LOAD_SEND_TARGET_BYTES (256u * 1024u) /* hand the kernel about this much at a time */

struct load_slot {
    uint64_t started_ns;
    int64_t entry_id;
    uint32_t ledger_index;
    uint32_t next_free;
    uint32_t next_asked; /* version 2: the one asked behind it on its connection */
    bool tail; /* a read of an entry that was just acknowledged */
};

struct load_ledger {
    int64_t ledger_id;
    int64_t next_entry_id;
    int64_t last_add_confirmed;
    uint64_t length_bytes;
};

struct load_connection {
    int socket;
    uint32_t next_ledger; /* of its ledgers: index = connection + k * connection_count */
    uint32_t receive_used;
    uint32_t send_used;
    uint32_t send_done;
    uint32_t asked_first, asked_last; /* version 2, whose answers carry no numbers: slots in the order of their requests */
    uint8_t *receive;
    uint8_t *send;
};

struct fbk_load {
    struct fbk_load_options options;
    struct fbk_load_result result;
    struct load_slot *slots;
    struct load_ledger *ledgers;
    struct load_connection *connections;
    struct pollfd *polls;
    uint8_t *memory;
    uint64_t memory_bytes;
    uint32_t send_bytes;
    uint32_t receive_bytes;
    uint32_t free_slot; /* head of the list, UINT32_MAX = none */
    uint32_t in_flight;
    uint32_t next_connection;
    uint64_t stop_ns;
    uint64_t next_start_ns; /* open loop */
    /* reads */
    const uint64_t *entry_counts;
    uint8_t *expected;
    uint8_t *entry; /* one that is being made, for Apache's protocols */
    bool reading;
};

/* ---- load/send.c */
/* Starts what the window (and in an open loop the schedule) allows, connections in turn. */
int32_t fbk_load_start(struct fbk_load *load, uint64_t now_ns);
int32_t fbk_load_send(struct load_connection *connection);
/* Reads what was just acknowledged, in the slot of its add.  False: there is no room to send. */
bool fbk_load_ask_again(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index, uint64_t now_ns);

/* ---- load/receive.c */
int32_t fbk_load_receive(struct fbk_load *load, struct load_connection *connection);

/* ---- load/apache.c */
void fbk_load_apache_add(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index, uint32_t entry_bytes);
/* Entries from the slot's on; one: a single read. */
void fbk_load_apache_read(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index, uint32_t count);
/* A frame as our protocol's answer to the slot that it is for.  0 or FBK_E_PROTOCOL. */
int32_t fbk_load_apache_answer(struct fbk_load *load, struct load_connection *connection, const uint8_t *frame,
                               uint32_t frame_bytes, struct fbk_response *response);

#endif

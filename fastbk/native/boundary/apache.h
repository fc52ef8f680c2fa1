/* Apache BookKeeper's protocols, versions 2 and 3, as pure functions over bytes: requests as a
 * bookie reads them and a client writes them, replies the other way round.  No state, no I/O, every
 * length checked against the frame.
 *
 * Both versions become one shape; what only one of them has is 0, -1 or NULL in the other.  A frame
 * is an int32 length (big-endian) and its body; version 3 is a protobuf message that begins with
 * 0x0a, anything else a packet header whose first byte is its version.  Which of them a frame is in
 * is told frame by frame (fbk_apache_frame_version). */

/* Operations by their numbers in version 3; version 2's opcodes become these. */
#define FBK_APACHE_READ 1
#define FBK_APACHE_ADD 2
#define FBK_APACHE_AUTH 5
#define FBK_APACHE_WRITE_LAC 6
#define FBK_APACHE_READ_LAC 7
#define FBK_APACHE_INFO 8
#define FBK_APACHE_START_TLS 9
#define FBK_APACHE_FORCE 10
#define FBK_APACHE_LIST 11
#define FBK_APACHE_READ_BATCH 12 /* version 2 only */

/* Statuses by their numbers in version 3; fbk_apache_error_v2 gives version 2's. */
#define FBK_APACHE_EOK 0
#define FBK_APACHE_ENOLEDGER 402
#define FBK_APACHE_ENOENTRY 403
#define FBK_APACHE_EBADREQ 404
#define FBK_APACHE_EIO 501
#define FBK_APACHE_EUA 502
#define FBK_APACHE_EBADVERSION 503
#define FBK_APACHE_EFENCED 504
#define FBK_APACHE_EREADONLY 505
#define FBK_APACHE_ETOOMANYREQUESTS 506
#define FBK_APACHE_EUNKNOWNLEDGERSTATE 507

#define FBK_APACHE_FENCE 1 /* read */
/* long poll: ENTRY_PIGGYBACK; only with HAS_PREVIOUS_LAC */
#define FBK_APACHE_PIGGYBACK 2
#define FBK_APACHE_RECOVERY 4      /* add */
#define FBK_APACHE_HIGH_PRIORITY 8 /* any */
/* add, version 3; never with RECOVERY, which Apache's bookies sync in any case */
#define FBK_APACHE_DEFERRED_SYNC 16
/* read: this is a long poll; never with FENCE, which comes first */
#define FBK_APACHE_HAS_PREVIOUS_LAC 32
#define FBK_APACHE_HAS_TIMEOUT 64 /* only with HAS_PREVIOUS_LAC */
#define FBK_APACHE_ALL_FLAGS 127

#define FBK_APACHE_MASTER_KEY_BYTES 20
#define FBK_APACHE_ENTRY_BYTES_MIN 32 /* ids, LAC and length; Apache's bookies take 16 */
#define FBK_APACHE_NO_ENTRY -1

/* A request's fields; pointers lie in the frame. */
struct fbk_apache_request {
    uint8_t protocol; /* 2 or 3 */
    /* of the packet header (and of the reply's); version 3: ProtocolVersion */
    uint8_t version;
    uint16_t operation; /* FBK_APACHE_*; version 3: 3 and 4 too, which nobody knows */
    uint32_t flags;     /* FBK_APACHE_* */
    /* version 3: txnId; version 2: a batch read's request id, else 0 */
    uint64_t transaction_id;
    /* adds, WriteLac: from the body's own bytes, as Apache's bookies do */
    int64_t ledger_id;
    /* adds: from the entry's own bytes; WriteLac: the body's LAC; batch read: the first */
    int64_t entry_id;
    /* what the reply repeats: version 3's own fields, else the two above */
    int64_t echo_ledger_id;
    int64_t echo_entry_id;
    int64_t previous_lac; /* with HAS_PREVIOUS_LAC */
    int64_t timeout_ms;   /* with HAS_TIMEOUT; may be anything */
    /* 20 bytes; NULL = absent. Adds, WriteLac and fencing reads that are GOOD have one */
    const uint8_t *master_key;
    /* add: the entry; WriteLac: the body; auth: the payload (NULL: none came); else NULL */
    const uint8_t *body;
    uint32_t body_bytes;
    int32_t count_max;      /* batch read; <= 0: no limit */
    int64_t size_bytes_max; /* batch read */
    int64_t info_wanted;    /* bookie info: bits 1 = total, 2 = free */
    const uint8_t *plugin;  /* auth: authPluginName */
    uint32_t plugin_bytes;
};

/* 3 for what begins with 0x0a, else 2; 0 when there is no byte. */
uint32_t fbk_apache_frame_version(const uint8_t *body, uint32_t body_bytes);

/* What a bookie makes of a frame's body (without its length): */
#define FBK_APACHE_GOOD 0 /* *request is whole */
/* answer *status (with the operation and ids that were read), the connection lives */
#define FBK_APACHE_REFUSE 1
/* nothing sensible can be answered: close, as Apache's bookies do */
#define FBK_APACHE_CLOSE 2
int32_t fbk_apache_read_request(const uint8_t *body, uint32_t body_bytes,
                                struct fbk_apache_request *request, uint32_t *status);

/* What a reply repeats of its request. */
struct fbk_apache_echo {
    uint8_t protocol;
    uint8_t version;
    uint16_t operation;
    uint32_t reserved;
    uint64_t transaction_id;
    int64_t ledger_id; /* echo_* of the request */
    int64_t entry_id;
};

/* What a reply says beyond a status. */
struct fbk_apache_reply {
    struct fbk_apache_echo echo;
    /* FBK_APACHE_E*: v3's inner and outer status; v2: its own number for it */
    uint32_t status;
    /* Read: the entry; READ_LAC: lastEntryBody; batch read: entries one behind the other. Absent if
     * 0 bytes, and in a read's reply that is not EOK. NULL: room is left for it; a read's entry is
     * the last thing in its frame. */
    uint32_t entry_bytes;
    const uint8_t *entry;
    const uint8_t *lac_body; /* READ_LAC; NULL = absent */
    uint32_t lac_body_bytes;
    /* batch read: how many entries, and their sizes (little-endian u32 each, any alignment) */
    uint32_t entry_count;
    const uint8_t *entry_sizes;
    int64_t lac;         /* v3 reads: maxLAC; INT64_MIN = absent */
    int64_t lac_time_ms; /* v3 long poll: lacUpdateTimestamp; INT64_MIN = absent */
    int64_t total_bytes; /* bookie info; INT64_MIN = absent */
    int64_t free_bytes;
    /* LIST: availabilityOfEntriesOfLedger; NULL = absent. AUTH: the payload */
    const uint8_t *blob;
    const uint8_t *plugin; /* AUTH: authPluginName; NULL: v3 sends a status alone */
    uint32_t blob_bytes;
    uint32_t plugin_bytes;
};

/* Whole frames with their length. *_size: bytes that put_reply will write, exactly. 0: this
 * protocol has no such reply. */
uint64_t fbk_apache_reply_size(const struct fbk_apache_reply *reply);
uint64_t fbk_apache_put_reply(uint8_t *out, const struct fbk_apache_reply *reply);
/* The commonest ones at a fixed cost: an add's answer. At most FBK_APACHE_ADD_REPLY_BYTES_MAX. */
#define FBK_APACHE_ADD_REPLY_BYTES_MAX 96
uint32_t fbk_apache_put_add_reply(uint8_t *out, const struct fbk_apache_echo *echo,
                                  uint32_t status);

/* Apache's number in version 2. EUNKNOWNLEDGERSTATE becomes EIO: the Java client of version 2 has
 * no case for it, and then the request only ends by its timeout. */
int32_t fbk_apache_error_v2(uint32_t status);

/* The list of a ledger's entries (apache/entry_list.c), from and to ranges of consecutive ids:
 * pairs first, last; ascending, apart. Returns the list's size; when that is more than out_bytes,
 * what was written means nothing. */
uint64_t fbk_apache_put_list(uint8_t *out, uint64_t out_bytes, const int64_t *ranges,
                             uint32_t range_count);
/* Returns how many ranges a list has, of which at most range_count_max are written; or
 * FBK_E_PROTOCOL. */
int64_t fbk_apache_read_list(const uint8_t *blob, uint32_t blob_bytes, int64_t *ranges,
                             uint32_t range_count_max);

/* The client's hot path: many adds into one buffer, one received buffer into few events, entries
 * checked.
 *
 * Decision 8. */
struct fbk_client_ledger {
    int64_t ledger_id;
    uint32_t digest_type;
    uint32_t flags; /* of Add: 1 = RECOVERY */
    uint8_t master_key[20];
    uint32_t creation_mark; /* 0 = none */
};

/* Bytes of the frames of `count` adds, 0 for an unknown digest type. */
uint64_t fbk_client_adds_size(uint32_t digest_type, uint64_t data_bytes, uint32_t count);
/* Encodes consecutive entries with consecutive request ids, all with the same LAC. `data` holds the
 * entries' data one behind the other. digests: 20 bytes an entry for HMAC, else NULL. Each frame
 * has as many bytes beside its data. Returns the bytes written, FBK_E_FULL if out_bytes is too
 * small, FBK_E_PROTOCOL for a digest that cannot be made. */
int64_t fbk_client_encode_adds(const struct fbk_client_ledger *ledger, uint64_t first_request_id,
                               int64_t first_entry_id, int64_t lac, int64_t length_before,
                               const uint8_t *data, const uint32_t *data_sizes, uint32_t count,
                               const uint8_t *digests, uint8_t *out, uint64_t out_bytes);

/* Bytes of one frame with `count` adds, 0 for an unknown digest type or too much. */
uint64_t fbk_client_add_batch_size(uint32_t digest_type, uint64_t data_bytes, uint32_t count);
/* Encodes consecutive entries as one request, each with its own LAC and length of the ledger up to
 * and with it. out_bytes: what fbk_client_add_batch_size says. Else like fbk_client_encode_adds. */
int64_t fbk_client_encode_add_batch(const struct fbk_client_ledger *ledger, uint64_t request_id,
                                    int64_t first_entry_id, const int64_t *lacs,
                                    const int64_t *lengths, const uint8_t *data,
                                    const uint32_t *data_sizes, uint32_t count,
                                    const uint8_t *digests, uint8_t *out, uint64_t out_bytes);

/* An event is eight words. */
#define FBK_CLIENT_EVENT_WORDS 8
/* 0: kind (FBK_RESPONSE_BODY_* of the answer, 0 = a status alone) | status << 16 | fenced << 32 |
 * add_wait_us << 33 1: request id   2: how many statuses of consecutive request ids this is   3:
 * entry id   4: lac; of a ProduceReply segment << 32 | slot   5: entry bytes: offset << 32 | size
 * 6: entry sizes (offset << 32 | count) or LAC body or ranges 7: the whole frame: offset << 32 |
 * size.  Offsets count from `bytes`. */
/* Parses whole frames of `bytes` into at most event_count_max events; consecutive equal statuses
 * become one. Returns the number of events, or FBK_E_PROTOCOL. *consumed: bytes of the frames
 * parsed; *wanted: the whole size of the frame that begins there, 0 when not even its length is
 * there. */
int32_t fbk_client_parse(const uint8_t *bytes, uint32_t size_bytes, uint32_t frame_size_bytes_max,
                         uint64_t *events, uint32_t event_count_max, uint32_t *consumed,
                         uint32_t *wanted);

/* Checks entries that lie one behind the other: ledger id, ascending ids, digest (HMAC's is left to
 * the caller). out: 5 words each: entry id, LAC, length of the ledger up to and with it, offset of
 * the data, bytes of the data. Returns how many are good from the start. */
int32_t fbk_client_check_entries(uint32_t digest_type, int64_t ledger_id, const uint8_t *entries,
                                 uint32_t entries_bytes, const uint8_t *entry_sizes, uint32_t count,
                                 int64_t *out);

#define FBK_CLIENT_ENTRY_WORDS 5
/* What `count` entries, as fbk_client_check_entries writes them, have together: the highest LAC
 * (INT64_MIN: there are none) and bytes of data. */
struct fbk_entry_sums {
    int64_t lac_max;
    int64_t data_bytes;
};
void fbk_client_entry_sums(const int64_t *found, uint32_t count, struct fbk_entry_sums *sums);

/* Where columns of entries go.  NULL: that one is not wanted; offsets only with values, one more
 * than there are rows. */
struct fbk_entry_columns {
    uint64_t rows_max;
    uint64_t rows;        /* that are filled */
    uint64_t values_room; /* bytes; below 2 GiB */
    uint64_t filled;      /* bytes of values */
    int64_t *ids;
    int64_t *lengths;
    int32_t *offsets;
    uint8_t *values;
};
/* Fills the next `count` rows; `found` as fbk_client_check_entries writes it.  0; FBK_E_FULL: they
 * do not fit; FBK_E_PROTOCOL: a table that is not of these bytes.  After an error nothing in the
 * buffers counts. */
int32_t fbk_client_entry_columns(struct fbk_entry_columns *to, const uint8_t *entries,
                                 uint64_t entries_bytes, const int64_t *found, uint32_t count);

/* Requests: whole frames, at most FBK_CLIENT_REQUEST_BYTES_MAX plus body or name. master_key NULL:
 * left out. */
#define FBK_CLIENT_REQUEST_BYTES_MAX 128
/* Where a frame of these, and of an add, has the creation mark: 4 bytes, little-endian. */
#define FBK_CLIENT_CREATION_MARK_AT 56
uint32_t fbk_client_put_hello(uint8_t *out, uint64_t request_id, const uint8_t *name,
                              uint32_t name_bytes);
uint32_t fbk_client_put_read(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t entry_id,
                             uint32_t flags, const uint8_t *master_key);
uint32_t fbk_client_put_read_batch(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                                   int64_t first_entry_id, int64_t last_entry_id,
                                   uint32_t entry_count_max, uint32_t size_bytes_max);
uint32_t fbk_client_put_read_lac(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                                 int64_t previous_lac, uint32_t timeout_ms, uint32_t flags);
uint32_t fbk_client_put_write_lac(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t lac,
                                  const uint8_t *master_key, const uint8_t *body,
                                  uint32_t body_bytes);
uint32_t fbk_client_put_force(uint8_t *out, uint64_t request_id, int64_t ledger_id);
uint32_t fbk_client_put_list(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                             int64_t first_entry_id, uint32_t range_count_max);
uint32_t fbk_client_put_info(uint8_t *out, uint64_t request_id);
uint32_t fbk_client_put_ping(uint8_t *out, uint64_t request_id);

#define FBK_CLIENT_PRODUCE_RECORDS_MAX 100000000
/* Bytes of a Produce, 0 for too much.  number_count 0: its numbers follow each other. */
uint64_t fbk_client_produce_size(uint32_t number_count, uint64_t records_bytes);
/* numbers: NULL, or record_count of them.  Returns the bytes written. */
uint32_t fbk_client_put_produce(uint8_t *out, uint64_t request_id, uint32_t producer,
                                int64_t follows, int64_t first_number, uint32_t record_count,
                                const int64_t *numbers, const uint8_t *records,
                                uint32_t records_bytes);

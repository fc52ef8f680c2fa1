/* Entries of streams: a head of 56 bytes, perhaps a block of provenance, then records one behind
 * the other.  Numbers of head and block are little-endian, those of records are varints (seven bits
 * a byte, the lowest first).  fastbk/stream/README.md has the format. */
#define FBK_STREAM_VERSION 1
#define FBK_STREAM_HEAD_BYTES 56
#define FBK_STREAM_KIND_RECORDS 1
/* the last entry of a segment that was ended in order: no records, a body of its own */
#define FBK_STREAM_KIND_INDEX 2
/* provenance, and no records (format level 4) */
#define FBK_STREAM_KIND_PROVENANCE 3
/* Bit of byte 3: the block of provenance lies behind the head (format level 4). */
#define FBK_STREAM_FLAG_PROVENANCE 1
#define FBK_STREAM_PROVENANCE_BYTES_MIN 16
#define FBK_STREAM_RECORD_BYTES_MIN 4
#define FBK_STREAM_RECORD_OVERHEAD_BYTES_MAX 25

struct fbk_stream_head {
    uint32_t kind;  /* FBK_STREAM_KIND_* */
    uint32_t codec; /* of the body: 0 = none, 1 = LZ4, 2 = Zstandard */
    uint32_t epoch; /* of the writer */
    uint32_t record_count;
    int64_t first_record; /* records of the segment before this entry */
    /* of its first record, relative to the segment's base; of an index: the last one before it */
    int64_t first_txid;
    int64_t last_txid;
    /* when it was appended, by the writer's clock; never less than in the entry before */
    int64_t time_us;
    uint32_t raw_bytes;        /* of the body before it was compressed */
    uint32_t stored_bytes;     /* of the body as it is here */
    uint32_t provenance_bytes; /* of the block between head and body; 0: there is none */
    /* Of an entry without records: entries back to the last one with records; 0: there is none, or,
     * of an index, it is the one before. */
    uint32_t records_distance;
};

/* 0, or FBK_E_PROTOCOL for what cannot be an entry of a stream. */
int32_t fbk_stream_read_head(const uint8_t *entry, uint64_t entry_bytes,
                             struct fbk_stream_head *head);
/* Writes a head.  What is to stand behind it, block and body, has to fit to it. */
void fbk_stream_put_head(uint8_t *entry, const struct fbk_stream_head *head);

/* Records into an entry with a body that is not compressed.  `pieces`: of each record its key,
 * headers and payload, one behind the other.  key_sizes: -1 = it has none; key_sizes and
 * header_sizes may be NULL: none has any.  txids: relative to the segment's base, not negative,
 * none less than the one before.  Of `head` kind, epoch, first_record and time_us count, the rest
 * is filled in. Returns the entry's bytes, FBK_E_FULL if out_bytes is too small, or FBK_E_PROTOCOL
 * for txids in the wrong order. */
int64_t fbk_stream_encode(struct fbk_stream_head *head, const uint8_t *pieces,
                          const uint32_t *payload_sizes, const int32_t *key_sizes,
                          const uint32_t *header_sizes, const int64_t *txids, uint32_t count,
                          uint8_t *out, uint64_t out_bytes);

/* Whether a body, not compressed, is `count` records with txids that rise by one from the first on,
 * whose own delta is 0: what producers send, to be put behind others' records.  0 with *skipped =
 * where record number `skip`, at most `count`, begins; or FBK_E_PROTOCOL. */
int32_t fbk_stream_check_body(const uint8_t *body, uint64_t body_bytes, uint32_t count,
                              uint32_t skip, uint64_t *skipped);

/* Entries one behind the other, none of them compressed.  heads: FBK_STREAM_HEAD_WORDS of each:
 * kind, epoch, records, records of the segment before it, its first and last txid, time_us, the row
 * of its first record.  Returns how many records there are in all, or FBK_E_PROTOCOL with *bad =
 * which entry is wrong. */
#define FBK_STREAM_HEAD_WORDS 8
int64_t fbk_stream_heads(const uint8_t *entries, const uint32_t *entry_sizes, uint32_t entry_count,
                         int64_t *heads, uint32_t *bad);
/* All records of entries that passed fbk_stream_heads.  rows: FBK_STREAM_ROW_WORDS of each: where
 * its payload begins in `entries` and its bytes, the same of its key (bytes -1: it has none) and
 * its headers, its txid, which entry it is of << 32 | which record of that.  0, or FBK_E_PROTOCOL
 * with *bad. */
#define FBK_STREAM_ROW_WORDS 8
int32_t fbk_stream_rows(const uint8_t *entries, const uint32_t *entry_sizes, uint32_t entry_count,
                        int64_t *rows, uint32_t *bad);

/* The same of entries that lie anywhere in `data`; found: FBK_STREAM_TABLE_WORDS of each, as
 * fbk_client_check_entries writes them.  Rows count from `data`.  FBK_E_PROTOCOL also for a table
 * that is not of these bytes. */
#define FBK_STREAM_TABLE_WORDS 5
int64_t fbk_stream_table_heads(const uint8_t *data, uint64_t data_bytes, const int64_t *found,
                               uint32_t entry_count, int64_t *heads, uint32_t *bad);
int32_t fbk_stream_table_rows(const uint8_t *data, uint64_t data_bytes, const int64_t *found,
                              uint32_t entry_count, int64_t *rows, uint32_t *bad);

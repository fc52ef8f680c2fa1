/* Records of streams as columns, in the memory layout of Apache Arrow: numbers one behind the
 * other; of bytes and texts 32-bit offsets (one more than there are) and the values end to end; a
 * bit for each key that is there, the lowest first. */

/* What the values of some records take. */
struct fbk_column_sizes {
    uint64_t value_bytes;
    uint64_t key_bytes;
    uint64_t headers;    /* of all records together */
    uint64_t name_bytes; /* of their names and values */
    uint64_t header_value_bytes;
};

/* Consecutive records of one segment: tables of fbk_stream_heads and fbk_stream_rows, and what
 * these are relative to. */
struct fbk_column_source {
    const uint8_t *entries;
    uint64_t entries_bytes;
    const int64_t *heads; /* of all entries */
    uint64_t head_count;
    const int64_t *rows; /* of these records */
    uint64_t row_count;
    int64_t segment;
    int64_t first_entry_id; /* of the entry that the first head is of */
    int64_t first_seq;      /* of the first row */
    int64_t base_txid;
};

/* Where columns go.  NULL: that column is not wanted; of keys, values and headers all their buffers
 * or none. */
struct fbk_columns {
    uint64_t rows_max;
    struct fbk_column_sizes room;
    uint64_t rows; /* that are filled */
    struct fbk_column_sizes filled;
    int64_t *segments;
    int64_t *entries;
    int32_t *slots;
    int64_t *seqs;
    int64_t *txids;
    int64_t *times_us;
    uint8_t *key_bits; /* rows_max / 8, rounded up */
    int32_t *key_offsets;
    uint8_t *keys;
    int32_t *value_offsets;
    uint8_t *values;
    int32_t *header_offsets; /* of each record's headers among all */
    int32_t *name_offsets;   /* of each header: room.headers + 1 */
    uint8_t *names;
    int32_t *header_value_offsets;
    uint8_t *header_values;
};

/* Adds what the records' values take to *sizes; headers are looked at, and checked, only
 * with_headers.  0; FBK_E_PROTOCOL: rows that are not of these bytes, or headers that make no sense
 * (*bad = which record). */
int32_t fbk_stream_column_sizes(const struct fbk_column_source *from, uint32_t with_headers,
                                struct fbk_column_sizes *sizes, uint64_t *bad);
/* Fills the columns of the next from->row_count records.  0; FBK_E_FULL: they do not fit, or
 * offsets pass 31 bits; FBK_E_PROTOCOL as above.  After an error nothing in the buffers counts. */
int32_t fbk_stream_fill_columns(struct fbk_columns *to, const struct fbk_column_source *from,
                                uint64_t *bad);

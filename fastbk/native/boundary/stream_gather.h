/* Rows of Arrow's columns into entries of a stream, without an object a row.  Buffers are Arrow's
 * own: offsets of 32 bits, bits of validity with the lowest first. */
struct fbk_stream_column {
    /* one more than there are items, beginning with that of the first item */
    const int32_t *offsets;
    const uint8_t *bytes;
    uint64_t size_bytes;     /* of `bytes` */
    const uint8_t *validity; /* NULL: no item is null */
    int64_t first_bit;       /* the first item's in `validity` */
};
struct fbk_stream_table {
    struct fbk_stream_column values; /* none of them null */
    /* offsets NULL: no row has one; null: that row has none */
    struct fbk_stream_column keys;
    /* lists: of `bytes` nothing counts; offsets NULL: no row has any; null: nor has that one */
    struct fbk_stream_column headers;
    /* of all rows one behind the other; `headers` says which are whose; none of them null */
    struct fbk_stream_column header_names;
    struct fbk_stream_column header_values; /* null: it is empty */
    uint64_t header_count;                  /* of names, and of values */
};

/* The entry of as many rows from `first` on, and before `end`, as fit into a body of
 * body_bytes_wanted; of one at least, if that fits into out_bytes.  Of `head` epoch, first_record
 * and time_us count, the rest is filled in: a record's transaction id is its number in the segment
 * + 1.  Returns the entry's bytes with *taken = its rows; FBK_E_FULL when the first row does not
 * fit into out_bytes; FBK_E_PROTOCOL when offsets make no sense, or a header's name has more than
 * 65,535 bytes. */
int64_t fbk_stream_gather(struct fbk_stream_head *head, const struct fbk_stream_table *table,
                          uint32_t first, uint32_t end, uint64_t body_bytes_wanted, uint8_t *out,
                          uint64_t out_bytes, uint32_t *taken);

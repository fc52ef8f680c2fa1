/* The write service's hot path: one received buffer into events, many answers into one buffer.
 *
 * Decision 174. */
/* An event is nine words. */
#define FBK_SERVE_EVENT_WORDS 9
/* 0: kind (FBK_REQUEST_BODY_*, 0 = unknown) | status << 16 (of a Produce: 0, or FBK_S_BAD_REQUEST)
 * 1: request id   2: producer   3: follows   4: first number   5: number of records
 * 6: numbers: offset << 32 | count; 0: they follow the first one   7: records: offset << 32 | size
 * 8: the whole frame: offset << 32 | size.  Of a kind other than Produce only 0, 1 and 8 count.
 * Offsets count from `bytes`. */
/* Parses and verifies whole frames of `bytes` into at most event_count_max events.  A Produce is
 * good if its numbers rise and are above `follows`, and its records are as many as it says, whole,
 * and end with the bytes.  Returns the number of events, or FBK_E_PROTOCOL when the first frame is
 * not valid.  *consumed: bytes of the frames parsed; *wanted: the whole size of the frame that
 * begins there, 0 when not even its length is there. */
int32_t fbk_serve_parse(const uint8_t *bytes, uint32_t size_bytes, uint32_t frame_size_bytes_max,
                        uint64_t *events, uint32_t event_count_max, uint32_t *consumed,
                        uint32_t *wanted);

/* An answer is four words: request id; status; segment << 32 | slot; entry.  Status 0 makes a
 * ProduceReply, another one a status alone. */
#define FBK_SERVE_ANSWER_WORDS 4
#define FBK_SERVE_ANSWER_BYTES_MAX 80
/* Returns the bytes written: room for FBK_SERVE_ANSWER_BYTES_MAX each. */
uint64_t fbk_serve_put_answers(uint8_t *out, const uint64_t *answers, uint32_t count);
/* A status alone, OK too. */
uint32_t fbk_serve_put_status(uint8_t *out, uint64_t request_id, uint32_t status);

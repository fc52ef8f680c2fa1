/* A translation: our client's frames on their way to one of Apache's bookies, and its answers on
 * their way back as ours.  One for each connection; version 2 or 3 of Apache's protocol for all of
 * it. */
struct fbk_apache_translation;

/* The hello is answered once the bookie has answered something; a status alone, not a HelloReply.
 * frame_size_bytes_max: of Apache's frames either way, their length included.  takes_batches:
 * version 2 has a request for several entries, which old bookies lack: they close the connection.
 * NULL without memory. */
struct fbk_apache_translation *
fbk_apache_translation_new(uint32_t protocol, uint32_t frame_size_bytes_max, int takes_batches);
void fbk_apache_translation_free(struct fbk_apache_translation *translation);

/* Takes whole frames of ours.  0; FBK_E_PROTOCOL for what is none, FBK_E_FULL without memory: the
 * connection is of no use then.  What the bookie could not be asked is answered here
 * (fbk_apache_translation_answers), with a status. */
int32_t fbk_apache_translation_send(struct fbk_apache_translation *translation,
                                    const uint8_t *frames, uint64_t size_bytes);
/* Takes what the bookie sent, cut anywhere.  Errors as above. */
int32_t fbk_apache_translation_receive(struct fbk_apache_translation *translation,
                                       const uint8_t *bytes, uint64_t size_bytes);
/* Nobody waits for that request's answer any more. */
void fbk_apache_translation_forget(struct fbk_apache_translation *translation, uint64_t request_id);

/* What is to be sent to the bookie, and what it and the translation have answered, as frames of
 * ours.  Each is handed out once; *bytes is good until the next call with the translation.  Returns
 * the size. */
uint64_t fbk_apache_translation_output(struct fbk_apache_translation *translation,
                                       const uint8_t **bytes);
uint64_t fbk_apache_translation_answers(struct fbk_apache_translation *translation,
                                        const uint8_t **bytes);

/* Whether version 2 is asked such a request, a whole frame of ours: adds of a writer, plain
 * reads. */
int fbk_apache_v2_takes(const uint8_t *frame, uint64_t size_bytes);

/* Answers that nobody waited for. */
uint64_t fbk_apache_translation_dropped(const struct fbk_apache_translation *translation);
/* Reads of several entries at once: 0 none was sent, 1 sent and none answered, 2 answered. */
int fbk_apache_translation_batches(const struct fbk_apache_translation *translation);

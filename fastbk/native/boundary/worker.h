/* The network worker: received bytes in, ring records and replies out. One call for all
 * readable connections (for each buffer where a transport receives), one a wake-up. All calls come
 * from one thread. A connection is known by its slot (0..connections_max - 1) from
 * fbk_worker_connect until fbk_worker_disconnect. */

/* What Python has to do for a connection; the result of the calls that name one. */
/* records in a lane's add ring that are not answered; a power of two */
#define FBK_PLACED_MAX 65536

#define FBK_DO_PAUSE 1  /* stop reading it */
#define FBK_DO_RESUME 2 /* read it again */
/* a request for Python waits: fbk_worker_cold, then fbk_worker_continue */
#define FBK_DO_COLD 4
/* replies did not fit into the socket: fbk_worker_take_output, hand them to the transport */
#define FBK_DO_WRITE 8
/* the last frame is written: end the sending side, read on (it is thrown away) until the peer
 * ends */
#define FBK_DO_FINISH 16
#define FBK_DO_ABORT 32 /* close it at once */
/* receive its next bytes into fbk_worker_buffer, else into the shared buffer */
#define FBK_DO_BUFFER 64
#define FBK_DO_COLLECT 128 /* other connections have events: call fbk_worker_collect soon */
/* digest types are wanted: fbk_worker_digests_wanted; lost with its connection, so look at each
 * sweep, too */
#define FBK_DO_DIGESTS 512
#define FBK_DO_END 1024 /* its peer has ended: close it */
/* its first byte lies in the socket, of TLS or of a protocol: give it a transport */
#define FBK_DO_OPEN 2048
/* waiting input fills half its bound: receive into the shared buffer's first few KiB only */
#define FBK_DO_TIGHT 256
#define FBK_TIGHT_RECEIVE_BYTES 8192

/* Rights of a connection.  Requests beyond them are FORBIDDEN, of Apache's clients EUA.  AUTH and
 * START_TLS need none. */
#define FBK_RIGHT_ENTER 1   /* INFO, PING */
#define FBK_RIGHT_READ 2    /* entries, LACs, lists */
#define FBK_RIGHT_ADD 4     /* adds, LACs that are written, forces */
#define FBK_RIGHT_RECOVER 8 /* fences, recovery adds */
#define FBK_RIGHTS_ALL 15

/* One journal/index pair, as the worker meets it. */
struct fbk_worker_pair {
    /* own, for this pair, writable; the descriptors stay the caller's and must stay open */
    int32_t segment_fd;
    int32_t journal_segment_fd;
    int32_t index_segment_fd;
    int32_t journal_bell_fd;
    int32_t index_bell_fd;
};

struct fbk_worker_options {
    uint32_t worker;
    uint32_t epoch;
    uint32_t pair_count;             /* 1..FBK_PAIRS_MAX */
    struct fbk_worker_pair pairs[8]; /* FBK_PAIRS_MAX */
    uint8_t pair_of_shard[64];       /* FBK_SHARD_COUNT; each below pair_count */
    /* own, non-blocking; all journals and indexes ring it */
    int32_t bell_fd;
    uint32_t connections_max;
    uint32_t pending_requests_max;
    uint32_t frame_size_bytes_max;
    uint32_t batch_entries_max;
    uint32_t receive_size_bytes; /* of the shared receive buffer */
    uint64_t partial_frames_bytes_max;
    uint64_t reply_backlog_bytes_max;  /* of one connection */
    uint64_t unread_replies_bytes_max; /* of all connections */
    uint32_t hello_timeout_ms;
    uint32_t frame_timeout_ms;
    /* a frame under way that is slower ends its connection */
    uint32_t frame_rate_bytes_min;
    /* replies of which nothing is read for so long end their connection */
    uint32_t write_timeout_ms;
    /* that a connection may have taken before others have their turn; refused ones count more */
    uint32_t turn_frames_max;
    uint32_t turn_size_bytes_max;
    /* fbk_worker_poll polls for so long while an add is under way; 0: not at all */
    uint32_t spin_us;
    /* 1: there is no journal: all that would go into the add ring is READ_ONLY */
    uint32_t is_reads_only;
    uint32_t has_quotas; /* 1: fbk_worker_set_quota may be called */
    /* 1: a connection has no rights until fbk_worker_admit; 0: it has all from the beginning */
    uint32_t is_admission_required;
    /* Of all connections that speak Apache's protocols: */
    uint32_t apache_requests_max;         /* unanswered ones; beyond it they are not read */
    uint32_t apache_batch_read_bytes_max; /* a batch read's reply, as Apache counts it */
    /* beyond it TOO_MANY_REQUESTS; 0: no such bound, as in the following */
    uint32_t apache_adds_pending_max;
    uint32_t apache_reads_pending_max;
    /* ledgers whose digest type is remembered, 16 bytes each; a power of two, else less; 4..2^24 */
    uint32_t apache_digests_max;
    uint32_t apache_adds_in_progress_max; /* beyond it they are not read */
    uint32_t apache_reads_in_progress_max;
};

struct fbk_worker_event {
    uint32_t connection;
    uint32_t todo; /* FBK_DO_* */
};

struct fbk_worker;
/* NULL with *error. */
struct fbk_worker *fbk_worker_create(const struct fbk_worker_options *options, int32_t *error);
void fbk_worker_destroy(struct fbk_worker *worker);

/* The receive buffer that all connections share; valid as long as the worker. */
uint8_t *fbk_worker_receive_buffer(struct fbk_worker *worker, uint32_t *size_bytes);

/* Takes a connected, non-blocking socket (it stays the caller's; after fbk_worker_disconnect it is
 * never used again). Returns its slot, or FBK_E_FULL. */
int32_t fbk_worker_connect(struct fbk_worker *worker, int32_t fd);
/* Returns 0 or FBK_DO_COLLECT. */
int32_t fbk_worker_disconnect(struct fbk_worker *worker, uint32_t connection);

/* size_bytes were received into the shared buffer, or into the connection's own after
 * FBK_DO_BUFFER. Returns FBK_DO_* or < 0: FBK_E_POISONED, shared memory is broken, the process has
 * to end. */
int32_t fbk_worker_receive(struct fbk_worker *worker, uint32_t connection, uint32_t size_bytes);
/* The rest of the frame that is being assembled. */
uint8_t *fbk_worker_buffer(struct fbk_worker *worker, uint32_t connection, uint32_t *size_bytes);

/* The frame that FBK_DO_COLD announced; valid until the next call that names the connection. */
const uint8_t *fbk_worker_cold(struct fbk_worker *worker, uint32_t connection,
                               uint32_t *size_bytes);
/* That frame was answered; goes on with what came behind it. is_open: from now on (hello accepted)
 * requests are taken. */
int32_t fbk_worker_continue(struct fbk_worker *worker, uint32_t connection, int32_t is_open);
/* Whether it speaks Apache's protocols: its frames have big-endian lengths, FBK_DO_COLD's among
 * them. */
int32_t fbk_worker_is_apache(struct fbk_worker *worker, uint32_t connection);
/* Sends a whole frame encoded by Python. is_last: and then takes nothing more from this
 * connection. */
int32_t fbk_worker_send(struct fbk_worker *worker, uint32_t connection, const uint8_t *frame,
                        uint32_t size_bytes, int32_t is_last);

/* Moves the output that waits (at most size_bytes_max) to `to`; the transport has it from now on.
 * Returns its bytes. */
int64_t fbk_worker_take_output(struct fbk_worker *worker, uint32_t connection, uint8_t *to,
                               uint64_t size_bytes_max);
/* The same of a transport that will have written it when the call of its write returns; 0 if there
 * is more, or it is busy. */
int64_t fbk_worker_pass_output(struct fbk_worker *worker, uint32_t connection, uint8_t *to,
                               uint64_t size_bytes_max);
/* It has not: it is busy with so many bytes, until fbk_worker_writable. */
void fbk_worker_handed(struct fbk_worker *worker, uint32_t connection, uint64_t size_bytes);
uint64_t fbk_worker_output_bytes(struct fbk_worker *worker, uint32_t connection);
/* The transport has written all it was given. */
int32_t fbk_worker_writable(struct fbk_worker *worker, uint32_t connection);

/* The bell rang: takes in new batches and replies, answers, goes on with connections that waited.
 * Returns the number of events (of fbk_worker_events), or < 0. FBK_WORKER_MORE is added when it
 * should be called again without waiting. */
#define FBK_WORKER_MORE 1048576
int32_t fbk_worker_collect(struct fbk_worker *worker);
/* From now on fbk_worker_poll receives from this connection: FBK_DO_PAUSE, FBK_DO_RESUME and
 * FBK_DO_BUFFER do not come, and FBK_DO_END does.  Returns 0, or FBK_DO_ABORT. */
int32_t fbk_worker_watch(struct fbk_worker *worker, uint32_t connection);
/* FBK_DO_OPEN comes, once, when the connection's socket is readable (SO_RCVLOWAT); what it has
 * stays there.  Returns 0, or FBK_DO_ABORT. */
int32_t fbk_worker_await(struct fbk_worker *worker, uint32_t connection);
/* Its client may do so much from now on: FBK_RIGHT_* (INV-N2).  tagged_rights: what it may do with
 * ledgers that it shows tags for (INV-N4); those that it has shown are forgotten. */
void fbk_worker_admit(struct fbk_worker *worker, uint32_t connection, uint32_t rights,
                      uint32_t tagged_rights);
/* It has shown a good tag for a ledger.  Beyond FBK_TAGS_MAX of a connection the oldest is
 * forgotten; one that is there becomes the youngest.  Returns 0 or -errno. */
#define FBK_TAGS_MAX 4096
int32_t fbk_worker_grant(struct fbk_worker *worker, uint32_t connection, int64_t ledger_id);
/* From now on a transport encrypts: bytes come by fbk_worker_receive and leave by FBK_DO_WRITE
 * (INV-N1).  Returns 0, or FBK_DO_ABORT if anything but the request that Python has, and
 * behind_bytes behind it, is under way in the clear. */
int32_t fbk_worker_secure(struct fbk_worker *worker, uint32_t connection, uint32_t behind_bytes);
/* What was received behind the frame that FBK_DO_COLD announced; valid until the next call that
 * names the connection. */
const uint8_t *fbk_worker_behind(struct fbk_worker *worker, uint32_t connection,
                                 uint32_t *size_bytes);
/* Readable while one of those is. */
int32_t fbk_worker_poll_fd(struct fbk_worker *worker);
/* Receives once from each of them that is readable, and shows others what came in one go.  With
 * spin_us it then polls until the adds under way are answered, more can be received, or spin_us
 * have passed since the last bytes or answers.  Returns what fbk_worker_collect does. */
int32_t fbk_worker_poll(struct fbk_worker *worker);
const struct fbk_worker_event *fbk_worker_events(struct fbk_worker *worker);
/* A connection that nothing is under way for, and that does not receive replies. */
struct fbk_worker_silent {
    uint32_t connection;
    uint32_t sweeps;   /* since its last byte */
    uint32_t has_sent; /* 0: it has never sent one */
};
/* Fills `silent` with all such connections; returns their number, at most count_max. */
uint32_t fbk_worker_silent(struct fbk_worker *worker, struct fbk_worker_silent *silent,
                           uint32_t count_max);

/* About once a second: deadlines. Returns the number of events. */
int32_t fbk_worker_sweep(struct fbk_worker *worker);

/* Moves ids of ledgers whose digest type is to be found out to `ledger_ids`; what stays unanswered
 * is wanted again later. Returns how many, at most count_max; 1,024 are never too few. */
int32_t fbk_worker_digests_wanted(struct fbk_worker *worker, int64_t *ledger_ids,
                                  uint32_t count_max);
/* FBK_DIGEST_* of ledgers, NONE where metadata names none: from now on entries of Apache's clients
 * are checked by it. */
void fbk_worker_digests_known(struct fbk_worker *worker, const int64_t *ledger_ids,
                              const uint8_t *digest_types, uint32_t count);

/* Bounds that several connections share: those of one principal.  Number 0 has none. */
#define FBK_QUOTAS_MAX 1024
/* From now on, of a principal whose ledgers are all new; a rate of 0 is no bound.
 * number: 1..FBK_QUOTAS_MAX - 1. */
void fbk_worker_set_quota(struct fbk_worker *worker, uint32_t number, uint64_t adds_per_s,
                          uint64_t bytes_per_s, double ledgers_per_s);
void fbk_worker_use_quota(struct fbk_worker *worker, uint32_t connection, uint32_t number);
/* Connections that wait for their quota: while there are any, fbk_worker_collect has to be called
 * every FBK_QUOTA_STEP_US. */
#define FBK_QUOTA_STEP_US 5000
uint32_t fbk_worker_quota_waits(const struct fbk_worker *worker);

/* What a client did that an audit wants to know: a fence, the beginning of a recovery of a ledger,
 * and every refusal. */
#define FBK_AUDIT_ADD 1
#define FBK_AUDIT_READ 2
#define FBK_AUDIT_FENCE 3
#define FBK_AUDIT_RECOVER 4
#define FBK_AUDIT_OTHER 5
#define FBK_WORKER_AUDITS_MAX 1024
struct fbk_worker_audit {
    uint32_t connection;
    uint32_t operation; /* FBK_AUDIT_* */
    int64_t ledger_id;
    /* FORBIDDEN: by its rights; UNAUTHORIZED: by the ledger's key; OK: it was let through */
    uint32_t status;
    uint32_t reserved;
};
/* Moves what was noted since the last call to `audits`, which has room for FBK_WORKER_AUDITS_MAX;
 * *dropped: how many there were beyond that.  Returns how many.  Before a slot is given to the next
 * connection. */
uint32_t fbk_worker_audits(struct fbk_worker *worker, struct fbk_worker_audit *audits,
                           uint64_t *dropped);

/* Takes no more requests. Returns the number of events (pauses). */
int32_t fbk_worker_drain(struct fbk_worker *worker);
/* The last call but for fbk_worker_destroy: tells the journal that nobody here looks at its batches
 * any more. */
void fbk_worker_leave(struct fbk_worker *worker);
/* Requests that are under way, long polls not counted. */
uint64_t fbk_worker_pending(struct fbk_worker *worker);
/* Whether normal adds are refused to some ledgers: an index says so, or there is no journal. */
int32_t fbk_worker_is_read_only(struct fbk_worker *worker);
uint64_t fbk_worker_counter(struct fbk_worker *worker, uint32_t counter);
/* Counts into the worker's own segment: FBK_C_WORKER_*. */
void fbk_worker_count(struct fbk_worker *worker, uint32_t counter, uint64_t amount);

/* Slots of counters and histograms in a segment's stats, one list a role. fastbk/observe/names.py says what each
 * one means; it reads the numbers from here. Counters: FBK_C_<ROLE>_..., below 160. Histograms: FBK_H_<ROLE>_...,
 * below 10. A slot is never given to another meaning while processes of two builds could meet in one bookie. */

/* WORKER */
#define FBK_C_WORKER_FRAMES 0
#define FBK_C_WORKER_BYTES_RECEIVED 1
#define FBK_C_WORKER_BYTES_SENT 2
#define FBK_C_WORKER_ADDS 3
#define FBK_C_WORKER_ADD_BATCHES 4
#define FBK_C_WORKER_READS 5
#define FBK_C_WORKER_FENCES 6
#define FBK_C_WORKER_FORCES 7
#define FBK_C_WORKER_OTHER_REQUESTS 8
#define FBK_C_WORKER_ACKS 9
#define FBK_C_WORKER_ANSWERS 10
#define FBK_C_WORKER_REPLIES 11
#define FBK_C_WORKER_REPLIES_STALE 12
#define FBK_C_WORKER_CONNECTIONS 13 /* gauge */
#define FBK_C_WORKER_CONNECTIONS_ACCEPTED 14
#define FBK_C_WORKER_CONNECTIONS_REFUSED 15
#define FBK_C_WORKER_INPUT_BYTES 16 /* gauge */
#define FBK_C_WORKER_PENDING 17 /* gauge */
#define FBK_C_WORKER_BAD_MAGIC 18
#define FBK_C_WORKER_BAD_LENGTH 19
#define FBK_C_WORKER_BAD_FRAME 20
#define FBK_C_WORKER_BAD_FIRST 21
#define FBK_C_WORKER_BAD_VERSION 22
#define FBK_C_WORKER_BAD_REQUEST 23
#define FBK_C_WORKER_BAD_DIGEST 24
#define FBK_C_WORKER_TOO_LARGE 25
#define FBK_C_WORKER_REFUSED_KEY 26
#define FBK_C_WORKER_REFUSED_READ_ONLY 27
#define FBK_C_WORKER_REFUSED_UNSUPPORTED 28
#define FBK_C_WORKER_HELLO_TIMEOUTS 29
#define FBK_C_WORKER_FRAME_TIMEOUTS 30
#define FBK_C_WORKER_SLOW_READERS_CUT 31
#define FBK_C_WORKER_WAITS_CREDIT 32
#define FBK_C_WORKER_WAITS_RING 33
#define FBK_C_WORKER_WAITS_REQUEST_RING 34
#define FBK_C_WORKER_WAITS_PENDING 35
#define FBK_C_WORKER_WAITS_OUTPUT 36
#define FBK_C_WORKER_WAITS_MEMORY 37
#define FBK_C_WORKER_WAKES 38
#define FBK_C_WORKER_JOURNAL_BELLS 39
#define FBK_C_WORKER_INDEX_BELLS 40
#define FBK_C_WORKER_COLD_REQUESTS 41
#define FBK_C_WORKER_WAITS_CONTEXT 42
#define FBK_C_WORKER_APACHE_CONNECTIONS 43
#define FBK_C_WORKER_V2_ADDS 44
#define FBK_C_WORKER_V2_ADD_BYTES 45
#define FBK_C_WORKER_V2_READS 46
#define FBK_C_WORKER_V2_READ_BYTES 47
#define FBK_C_WORKER_V2_READ_BATCHES 48
#define FBK_C_WORKER_V2_OTHERS 49
#define FBK_C_WORKER_V2_ENOLEDGER 50
#define FBK_C_WORKER_V2_ENOENTRY 51
#define FBK_C_WORKER_V2_EBADREQ 52
#define FBK_C_WORKER_V2_EIO 53
#define FBK_C_WORKER_V2_EUA 54
#define FBK_C_WORKER_V2_EBADVERSION 55
#define FBK_C_WORKER_V2_EFENCED 56
#define FBK_C_WORKER_V2_EREADONLY 57
#define FBK_C_WORKER_V2_ETOOMANYREQUESTS 58
#define FBK_C_WORKER_V2_EUNKNOWNLEDGERSTATE 59
#define FBK_C_WORKER_V3_ADDS 60
#define FBK_C_WORKER_V3_ADD_BYTES 61
#define FBK_C_WORKER_V3_READS 62
#define FBK_C_WORKER_V3_READ_BYTES 63
#define FBK_C_WORKER_V3_LONG_POLLS 64
#define FBK_C_WORKER_V3_LAC_WRITES 65
#define FBK_C_WORKER_V3_LAC_READS 66
#define FBK_C_WORKER_V3_FORCES 67
#define FBK_C_WORKER_V3_LISTS 68
#define FBK_C_WORKER_V3_OTHERS 69
#define FBK_C_WORKER_V3_ENOLEDGER 70
#define FBK_C_WORKER_V3_ENOENTRY 71
#define FBK_C_WORKER_V3_EBADREQ 72
#define FBK_C_WORKER_V3_EIO 73
#define FBK_C_WORKER_V3_EUA 74
#define FBK_C_WORKER_V3_EBADVERSION 75
#define FBK_C_WORKER_V3_EFENCED 76
#define FBK_C_WORKER_V3_EREADONLY 77
#define FBK_C_WORKER_V3_ETOOMANYREQUESTS 78
#define FBK_C_WORKER_V3_EUNKNOWNLEDGERSTATE 79
#define FBK_C_WORKER_ADDS_UNVERIFIED 80
/* How requests of all protocols end, and how long that took in all; of adds and reads that went well: histograms. */
#define FBK_C_WORKER_ADDS_FAILED 96
#define FBK_C_WORKER_ADDS_FAILED_US 97
#define FBK_C_WORKER_READS_FAILED 98
#define FBK_C_WORKER_READS_FAILED_US 99
#define FBK_C_WORKER_FENCES_DONE 100
#define FBK_C_WORKER_FENCES_DONE_US 101
#define FBK_C_WORKER_FENCES_FAILED 102
#define FBK_C_WORKER_FENCES_FAILED_US 103
#define FBK_C_WORKER_POLLS_DONE 104
#define FBK_C_WORKER_POLLS_DONE_US 105
#define FBK_C_WORKER_POLLS_FAILED 106
#define FBK_C_WORKER_POLLS_FAILED_US 107
#define FBK_C_WORKER_LAC_READS_DONE 108
#define FBK_C_WORKER_LAC_READS_DONE_US 109
#define FBK_C_WORKER_LAC_READS_FAILED 110
#define FBK_C_WORKER_LAC_READS_FAILED_US 111
#define FBK_C_WORKER_LAC_WRITES_DONE 112
#define FBK_C_WORKER_LAC_WRITES_DONE_US 113
#define FBK_C_WORKER_LAC_WRITES_FAILED 114
#define FBK_C_WORKER_LAC_WRITES_FAILED_US 115
#define FBK_C_WORKER_FORCES_DONE 116
#define FBK_C_WORKER_FORCES_DONE_US 117
#define FBK_C_WORKER_FORCES_FAILED 118
#define FBK_C_WORKER_FORCES_FAILED_US 119
#define FBK_C_WORKER_LISTS_DONE 120
#define FBK_C_WORKER_LISTS_DONE_US 121
#define FBK_C_WORKER_LISTS_FAILED 122
#define FBK_C_WORKER_LISTS_FAILED_US 123
#define FBK_C_WORKER_INFOS_DONE 124
#define FBK_C_WORKER_INFOS_DONE_US 125
#define FBK_C_WORKER_INFOS_FAILED 126
#define FBK_C_WORKER_INFOS_FAILED_US 127
#define FBK_C_WORKER_ADDS_REJECTED 128      /* too many of Apache's clients' wait */
#define FBK_C_WORKER_READS_REJECTED 129
#define FBK_C_WORKER_ADDS_IN_PROGRESS 130   /* gauge: in the add ring, not answered by the journal; this one and those below: as of the last sweep */
#define FBK_C_WORKER_READS_IN_PROGRESS 131  /* gauge: all that waits for the index but for long polls */
#define FBK_C_WORKER_ADDS_BLOCKED 132       /* gauge: connections whose next request waits for room or its turn */
#define FBK_C_WORKER_READS_BLOCKED 133      /* gauge */
#define FBK_C_WORKER_RING_BYTES 134         /* gauge: in the add rings, not answered */
/* Asked for by Apache's names alone (fastbk/observe/apache_names.py). */
#define FBK_C_WORKER_RECOVERY_ADDS_DONE 135 /* among the adds of the histogram, too */
#define FBK_C_WORKER_RECOVERY_ADDS_DONE_US 136
#define FBK_C_WORKER_RECOVERY_ADDS_FAILED 137
#define FBK_C_WORKER_RECOVERY_ADDS_FAILED_US 138
#define FBK_C_WORKER_ADD_WAITS 139          /* of connections whose next add had to wait; ended ones */
#define FBK_C_WORKER_ADD_WAITS_US 140
#define FBK_C_WORKER_READ_WAITS 141
#define FBK_C_WORKER_READ_WAITS_US 142
/* Limits that were reached (docs/limits.md). */
#define FBK_C_WORKER_UNREAD_REPLY_BYTES 150 /* gauge */
#define FBK_C_WORKER_UNREAD_REPLIES_CUT 151
#define FBK_C_WORKER_WRITE_TIMEOUTS 152
#define FBK_C_WORKER_SLOW_FRAMES_CUT 153
#define FBK_C_WORKER_SILENT_CLOSED 154
#define FBK_C_WORKER_TURNS_ENDED 155
#define FBK_C_WORKER_MEMORY_RETURNED 156
#define FBK_H_WORKER_ADD_US 0 /* from received to answered, of adds that went well */
#define FBK_H_WORKER_READ_US 1
#define FBK_H_WORKER_RECEIVE_BYTES 2
#define FBK_H_WORKER_V2_ADD_US 3
#define FBK_H_WORKER_V2_READ_US 4
#define FBK_H_WORKER_V3_ADD_US 5
#define FBK_H_WORKER_V3_READ_US 6

/* JOURNAL */
#define FBK_C_JOURNAL_BATCHES 0
#define FBK_C_JOURNAL_BYTES 1
#define FBK_C_JOURNAL_PADDING_BYTES 2
#define FBK_C_JOURNAL_DESCRIPTORS 3
#define FBK_C_JOURNAL_ADDS 4
#define FBK_C_JOURNAL_ENTRIES 5
#define FBK_C_JOURNAL_CHECKS 6
#define FBK_C_JOURNAL_RECOVERY_ADDS 7
#define FBK_C_JOURNAL_FENCES 8
#define FBK_C_JOURNAL_FENCES_REPEATED 9
#define FBK_C_JOURNAL_FORCES 10
#define FBK_C_JOURNAL_REFUSED_FENCED 11
#define FBK_C_JOURNAL_REFUSED_UNAUTHORIZED 12
#define FBK_C_JOURNAL_REFUSED_READ_ONLY 13
#define FBK_C_JOURNAL_REFUSED_LEDGERS 14
#define FBK_C_JOURNAL_REFUSED_BAD_REQUEST 15
#define FBK_C_JOURNAL_STALLS 16
#define FBK_C_JOURNAL_WORKER_BELLS 17
#define FBK_C_JOURNAL_INDEX_BELLS 18
#define FBK_C_JOURNAL_ROLLS 19
#define FBK_C_JOURNAL_LEDGERS 20 /* gauge */
#define FBK_C_JOURNAL_LIMIT 21 /* gauge: FBK_JOURNAL_OPEN, ... */
#define FBK_C_JOURNAL_BEHIND_BYTES 22 /* gauge: journal files not behind the mark */
#define FBK_C_JOURNAL_FILES_RECYCLED 23
#define FBK_C_JOURNAL_FILES_MADE 24
#define FBK_C_JOURNAL_REFUSED_DELETED 25
/* Asked for by Apache's names alone. */
#define FBK_C_JOURNAL_BATCHES_OF_ALL 26  /* batches that took all there was */
#define FBK_C_JOURNAL_BATCHES_FULL 27    /* batches that left something for want of room */
#define FBK_C_JOURNAL_QUEUED 28          /* records written */
#define FBK_C_JOURNAL_QUEUED_US 29       /* from received to submitted */
#define FBK_C_JOURNAL_FILES_READY 30     /* made or taken again */
#define FBK_C_JOURNAL_FILES_READY_US 31
#define FBK_C_JOURNAL_LEDGERS_UNCONFIRMED 32   /* gauge: ledgers that metadata was never seen to list */
#define FBK_C_JOURNAL_TAKES_NO_NEW_LEDGERS 33   /* gauge: 1 = takes no new ledgers */
#define FBK_H_JOURNAL_COMMIT_NS 0
#define FBK_H_JOURNAL_BATCH_BYTES 1
#define FBK_H_JOURNAL_BATCH_RECORDS 2

/* INDEX */
#define FBK_C_INDEX_BATCHES 0            /* descriptors taken in */
#define FBK_C_INDEX_ENTRIES 1            /* copied into the write cache */
#define FBK_C_INDEX_ENTRY_BYTES 2
#define FBK_C_INDEX_SKIPPED 3            /* records refused by the journal */
#define FBK_C_INDEX_DUPLICATES 4         /* entries stored before, same data */
#define FBK_C_INDEX_CONFLICTS 5          /* entries stored before with other data: the stored one stays */
#define FBK_C_INDEX_CHECKS 6             /* adds that needed a look at what is stored */
#define FBK_C_INDEX_FENCES 7
#define FBK_C_INDEX_READS 8
#define FBK_C_INDEX_READ_BATCHES 9
#define FBK_C_INDEX_READ_ENTRIES 10      /* entries sent in replies */
#define FBK_C_INDEX_READ_BYTES 11
#define FBK_C_INDEX_CACHE_HITS 12        /* entries found in a write cache */
#define FBK_C_INDEX_RUN_HITS 13          /* entries found in a run already read */
#define FBK_C_INDEX_DISK_JOBS 14         /* looks at the disk */
#define FBK_C_INDEX_NO_LEDGER 15
#define FBK_C_INDEX_NO_ENTRY 16
#define FBK_C_INDEX_CANNOT_TELL 17
#define FBK_C_INDEX_LAC_READS 18
#define FBK_C_INDEX_LAC_WRITES 19
#define FBK_C_INDEX_LISTS 20
#define FBK_C_INDEX_WAITS 21             /* long polls that waited */
#define FBK_C_INDEX_WAITS_REFUSED 22     /* waiters_max reached */
#define FBK_C_INDEX_WAITS_TIMED_OUT 23
#define FBK_C_INDEX_CANCELS 24
#define FBK_C_INDEX_REPLY_FULL 25        /* an answer had to wait for room in a reply ring */
#define FBK_C_INDEX_CACHE_FULL 26        /* a batch had to wait for a flush */
#define FBK_C_INDEX_SEALS 27
#define FBK_C_INDEX_FLUSHES 28
#define FBK_C_INDEX_FLUSH_FAILURES 29
#define FBK_C_INDEX_MERGES 30
#define FBK_C_INDEX_DELETED_LEDGERS 31
#define FBK_C_INDEX_WORKER_BELLS 32
#define FBK_C_INDEX_SLEEPS 33
#define FBK_C_INDEX_LEDGERS 34           /* gauge */
#define FBK_C_INDEX_WAITERS 35           /* gauge */
#define FBK_C_INDEX_CACHE_BYTES 36       /* gauge: unflushed, in the cache being filled */
#define FBK_C_INDEX_JOURNAL_BEHIND 37    /* gauge: journal bytes behind the mark, as far as taken in */
#define FBK_C_INDEX_MARK 38              /* gauge: last batch in a finished flush */
#define FBK_C_INDEX_READS_ONLY 39        /* gauge */
#define FBK_C_INDEX_DAMAGED 40           /* gauge: 1 = damage is on record */
#define FBK_C_INDEX_REPLAYED_BATCHES 41
#define FBK_C_INDEX_REPLAYED_RECORDS 42
#define FBK_C_INDEX_LIMBO 44             /* gauge: ledgers in limbo */
#define FBK_C_INDEX_UNEXPECTED 43        /* adds the journal took for new that were here already */
#define FBK_C_INDEX_AHEAD_JOBS 45        /* jobs that read ahead of a reader */
#define FBK_C_INDEX_SCRUB_BYTES 46      /* read to find damage */
#define FBK_C_INDEX_SCRUB_CYCLES 47     /* that came to their end */
#define FBK_C_INDEX_SCRUB_DAMAGED 48    /* runs found damaged */
#define FBK_C_INDEX_QUARANTINED 49      /* gauge: ranges of entries in quarantine */
#define FBK_C_INDEX_BULK_RATE 50        /* gauge: bytes a second that history may be read at */
#define FBK_C_INDEX_SCRUB_DIGESTS 51    /* entries' own digests that were computed */
#define FBK_C_INDEX_SCRUB_BAD_DIGESTS 52 /* of these: wrong, under a good checksum */
#define FBK_C_INDEX_SCRUB_DIGESTS_KEYED 53 /* entries whose digest takes a key that metadata does not have */
#define FBK_C_INDEX_SCRUB_DIGESTS_UNKNOWN 54 /* entries whose digest nobody named */
#define FBK_C_INDEX_BAD_DIGESTS 55      /* gauge: ranges of entries that came with a wrong digest */
#define FBK_C_INDEX_EXPIRED_LEDGERS 56  /* that metadata never listed */
#define FBK_C_INDEX_STORED_ENTRIES 96   /* gauge: in write caches and locations files */
#define FBK_C_INDEX_CACHE_ENTRIES 97    /* gauge: in the cache being filled */
#define FBK_C_INDEX_READ_CACHE_BYTES 98 /* gauge */
#define FBK_C_INDEX_READ_CACHE_ENTRIES 99 /* gauge */
/* Asked for by Apache's names alone (fastbk/observe/apache_names.py). */
#define FBK_C_INDEX_LOGS_RECLAIMED_BYTES 100 /* of entry logs that are unlinked because nothing lived in them any more */
#define FBK_C_INDEX_LOGS_NOT_UNLINKED 101    /* times that one could not be */
#define FBK_C_INDEX_RECOUNTS_DONE 102        /* of what lives in which log */
#define FBK_C_INDEX_RECOUNTS_DONE_US 103
#define FBK_C_INDEX_RECOUNTS_FAILED 104
#define FBK_C_INDEX_RECOUNTS_FAILED_US 105
#define FBK_C_INDEX_THROTTLED 106            /* batches that waited for a flush, and went on */
#define FBK_C_INDEX_THROTTLED_US 107
#define FBK_C_INDEX_PIGGYBACKS_EMPTY 108     /* LACs that grew, answered without the entry that was asked for with them */
#define FBK_C_INDEX_READS_TAKEN 109          /* out of request rings */
#define FBK_C_INDEX_READS_TAKEN_US 110       /* from received to taken */
#define FBK_C_INDEX_FENCE_WAITS 111          /* from received to done, before the read that comes with them */
#define FBK_C_INDEX_FENCE_WAITS_US 112
#define FBK_C_INDEX_FENCE_READS_DONE 113     /* these reads */
#define FBK_C_INDEX_FENCE_READS_DONE_US 114
#define FBK_C_INDEX_FENCE_READS_FAILED 115
#define FBK_C_INDEX_FENCE_READS_FAILED_US 116
#define FBK_C_INDEX_POLL_STARTS 117          /* long polls: from received until they wait, or are answered at once */
#define FBK_C_INDEX_POLL_STARTS_US 118
#define FBK_C_INDEX_POLL_WAITS_DONE 119      /* until something came */
#define FBK_C_INDEX_POLL_WAITS_DONE_US 120
#define FBK_C_INDEX_POLL_WAITS_FAILED 121    /* until their time was over */
#define FBK_C_INDEX_POLL_WAITS_FAILED_US 122
#define FBK_C_INDEX_POLL_READS_DONE 123      /* from then on, to the answer */
#define FBK_C_INDEX_POLL_READS_DONE_US 124
#define FBK_C_INDEX_POLL_READS_FAILED 125
#define FBK_C_INDEX_POLL_READS_FAILED_US 126
#define FBK_H_INDEX_INTAKE_NS 0          /* from published to taken in, a batch */
#define FBK_H_INDEX_READ_NS 1            /* from received by the worker to answered: reads */
#define FBK_H_INDEX_FLUSH_NS 2

/* GC */
#define FBK_C_GC_CYCLES 0
#define FBK_C_GC_CYCLES_STOPPED 1        /* by an error or a rule, before anything was deleted */
#define FBK_C_GC_CANDIDATES 2            /* gauge: local ledgers that metadata did not list last time */
#define FBK_C_GC_DELETED 3
#define FBK_C_GC_KEPT 4                  /* candidates that metadata listed after all */
#define FBK_C_GC_REFUSED 5               /* cycles that would have deleted too much */
#define FBK_C_GC_LEDGERS 6               /* gauge: local ledgers */
#define FBK_C_GC_LIMBO_OVER 7            /* ledgers that left limbo */
#define FBK_C_GC_LOOKUPS 8               /* ledgers whose metadata was read in search of copies too many */
#define FBK_C_GC_COPIES 9                /* gauge: copies that metadata did not count on last time */
#define FBK_C_GC_COPIES_DROPPED 10       /* given to the index to be dropped */
#define FBK_C_GC_COMPACTIONS 11
#define FBK_C_GC_COMPACTION_RUNNING 12   /* gauge: runs under way */
#define FBK_C_GC_COMPACTION_MOVED_BYTES 13
#define FBK_C_GC_COMPACTION_FREED_BYTES 14
#define FBK_C_GC_COMPACTION_BAD_RUNS 15  /* not moved: damaged */
#define FBK_C_GC_COMPACTION_ERRORS 16    /* runs in which a go ended early */
#define FBK_C_GC_COMPACTION_STUCK 17     /* gauge: 1 = what is under way moves nothing */
#define FBK_C_GC_SUSPENDED 18            /* gauge: 1 = something is suspended by an operator */
#define FBK_C_GC_LOGS 19                 /* gauge: entry logs */
#define FBK_C_GC_LOG_BYTES 20            /* gauge */
#define FBK_C_GC_LIVE_BYTES 21           /* gauge: of these, as of the last count */
/* Asked for by Apache's names alone: how often and how long, by how it ended. */
#define FBK_C_GC_TURNS_DONE 32           /* looks for dead ledgers and for copies too many */
#define FBK_C_GC_TURNS_DONE_US 33
#define FBK_C_GC_TURNS_FAILED 34
#define FBK_C_GC_TURNS_FAILED_US 35
#define FBK_C_GC_LOOKS_DONE 36           /* looks for dead ledgers */
#define FBK_C_GC_LOOKS_DONE_US 37
#define FBK_C_GC_LOOKS_FAILED 38
#define FBK_C_GC_LOOKS_FAILED_US 39
#define FBK_C_GC_COMPACTIONS_DONE 40     /* runs of every kind, also those that found nothing to do */
#define FBK_C_GC_COMPACTIONS_DONE_US 41
#define FBK_C_GC_COMPACTIONS_FAILED 42
#define FBK_C_GC_COMPACTIONS_FAILED_US 43
#define FBK_C_GC_COMPACTED_LOGS_PPM 44   /* gauge: of all sealed logs, those that the last run compacted, in millionths */
#define FBK_C_GC_UNCONFIRMED 45            /* gauge: ledgers that metadata was never seen to list */
#define FBK_C_GC_EXPIRED 46                /* of these, forgotten */
#define FBK_C_GC_FOREIGN 47                /* gauge: of these, listed with another key or creation */
#define FBK_C_GC_ADMITTED 48               /* let in though there was no room */

"""All of Apache's keys that are known, one row each, and what becomes of the rest. Data only.

`_SETTINGS` has the keys that set something here. `IGNORED` has the keys that change nothing, by
reason: a key stands as `name=default`, with a blank as `~`. `REFUSED` has those that a bookie
refuses. `KEYS` at the end has all of them by name.
"""

from __future__ import annotations

import enum

import msgspec

from fastbk.units import KIB, MIB


class Verdict(enum.StrEnum):
    """What becomes of a key."""

    HONOURED = "honoured"
    """It means here what it means there."""
    TRANSLATED = "translated"
    """It sets something of ours that comes nearest; the note says how they differ."""
    IGNORED = "ignored"
    """It changes nothing here; the note says why that is all right."""
    REFUSED = "refused"
    """The bookie does not start: ignoring it would change durability, security or placement."""


class Kind(enum.StrEnum):
    """How a value is written."""

    INTEGER = "integer"
    BOOLEAN = "boolean"
    RATIO = "ratio"
    TEXT = "text"
    LIST = "list"


class Key(msgspec.Struct, frozen=True):
    """One of Apache's keys.

    Attributes:
        name: as Apache spells it.
        default: what Apache does without it, as its file would say it; empty: nothing.
        verdict: for REFUSED, what becomes of it when its value is not one of `harmless`.
        setting: ours, as `section.field`, several with spaces between; empty where there is none.
        kind: how its value is written.
        times: an integer times this is what the setting counts in.
        least, most: the setting's bounds: what is outside is brought to the nearest, and reported.
        off: an integer of at most this switches something off; `off_setting` is then what the setting gets.
        rule: the part of `translate` that handles it together with others; empty: it stands for itself.
        harmless: values, in lower case, that ask for nothing that is missing here.
        note: what people should know; for IGNORED and REFUSED the reason.
    """

    name: str
    default: str
    verdict: Verdict
    setting: str = ""
    kind: Kind = Kind.INTEGER
    times: int = 1
    least: int | None = None
    most: int | None = None
    off: int | None = None
    off_setting: float = 0
    rule: str = ""
    harmless: tuple[str, ...] = ()
    note: str = ""


HONOURED, TRANSLATED = Verdict.HONOURED, Verdict.TRANSLATED
INTEGER, BOOLEAN, RATIO, TEXT, LIST = Kind.INTEGER, Kind.BOOLEAN, Kind.RATIO, Kind.TEXT, Kind.LIST
_DAY_MS = 86_400_000
_FOR_EVER_MS = 31 * _DAY_MS
"""The longest that intervals of gc may be."""

# fmt: off
SETTINGS = (
    # Who it is and where it listens.
    Key("bookiePort", "3181", HONOURED, "bookie.listen bookie.id", rule="address"),
    Key("allowEphemeralPorts", "false", HONOURED, "bookie.listen", BOOLEAN, rule="address",
        note="bookiePort=0 needs it, and a bookieId: an address that changes with every start cannot be a name here."),
    Key("bookieId", "", HONOURED, "bookie.id", TEXT, rule="address", note="Without it the id is `address:port`."),
    Key("advertisedAddress", "", HONOURED, "bookie.advertised bookie.id", TEXT, rule="address",
        note="Goes before listeningInterface and useHostNameAsBookieID, as in Apache."),
    Key("listeningInterface", "", HONOURED, "bookie.listen bookie.advertised bookie.id", TEXT, rule="address",
        note="Its IPv4 address if it has one (Apache takes the first that Java names, often a link-local IPv6 one). "
             "Without it the bookie listens on all interfaces and is known by the address that the host's name has."),
    Key("useHostNameAsBookieID", "false", HONOURED, "bookie.advertised bookie.id", BOOLEAN, rule="address"),
    Key("useShortHostName", "false", HONOURED, "bookie.advertised bookie.id", BOOLEAN, rule="address"),
    Key("allowLoopback", "false", HONOURED, "bookie.listen", BOOLEAN, rule="address",
        note="Without it a bookie that finds out a loopback address does not start; advertisedAddress may be one."),
    Key("permittedStartupUsers", "", HONOURED, "", LIST, rule="users",
        note="The bookie starts only as one of these users; nothing is kept of it in a converted file."),
    # Metadata.
    Key("metadataServiceUri", "", HONOURED, "metadata.uri", TEXT, rule="metadata",
        note="zk+hierarchical://host:2181;host:2181/ledgers and the like, or a URI of ours. Goes before zkServers."),
    Key("zkServers", "", HONOURED, "metadata.uri", LIST, rule="metadata"),
    Key("zkLedgersRootPath", "/ledgers", HONOURED, "metadata.uri", TEXT, rule="metadata"),
    Key("ledgerManagerFactoryClass", "", TRANSLATED, "metadata.uri", TEXT, rule="metadata",
        note="The layout in the URI that zkServers makes. metadataServiceUri overrides it. Without that, a class that "
             "is not one of Apache's layouts is refused."),
    Key("zkTimeout", "10000", HONOURED, "metadata.session_timeout_ms", least=1000, most=300_000),
    # Directories.
    Key("journalDirectories", "/tmp/bk-txn", HONOURED, "journal.directory journal.directories", LIST,  # noqa: S108
        rule="directories",
        note="Must be set: Apache's temporary folder is refused. Where it is a ledger directory, too, or where there "
             "are fewer than ledger directories, journals lie in folders of their own inside."),
    Key("journalDirectory", "/tmp/bk-txn", HONOURED, "journal.directory", TEXT, rule="directories",  # noqa: S108
        note="The old name; goes behind journalDirectories."),
    Key("ledgerDirectories", "/tmp/bk-data", HONOURED, "ledgers.directory ledgers.directories", LIST,  # noqa: S108
        rule="directories",
        note="Must be set. Each is served by a journal/index pair of its own; at most 8."),
    Key("allowMultipleDirsUnderSameDiskPartition", "true", HONOURED, "", BOOLEAN, rule="directories"),
    # Journal.
    Key("journalSyncData", "true", HONOURED, "journal.sync", BOOLEAN, rule="sync",
        note="false acknowledges what is not durable yet. After a crash such a bookie says of no ledger that something "
             "is missing until it is repaired or found whole."),
    Key("journalWriteData", "true", TRANSLATED, "journal.sync", BOOLEAN, rule="sync",
        note="There is always a journal here; false makes it one that is never synced, like journalSyncData=false."),
    Key("journalMaxSizeMB", "2048", TRANSLATED,
        "journal.limit_bytes journal.file_size_bytes journal.first_file_size_bytes", rule="journal_size",
        note="Bounds what lies in the journal and not yet in the index, all files together, and with it the replay."),
    Key("journalBufferedWritesThreshold", "524288", HONOURED, "journal.batch_size_bytes_max", least=64 * KIB,
        most=31 * MIB, off=0, off_setting=MIB),
    Key("journalMaxMemorySizeMb", "5% of direct memory", TRANSLATED, "limits.add_ring_size_bytes", rule="rings",
        note="The ring from each worker to the journal: the power of two at or below it, 16 MB to 1 GB."),
    # Ledger storage.
    Key("ledgerStorageClass", "org.apache.bookkeeper.bookie.SortedLedgerStorage", TRANSLATED, "", TEXT, rule="storage",
        note="Apache's own classes all become the one engine that is here; any other class is refused."),
    Key("dbStorage_writeCacheMaxSizeMb", "25% of direct memory", TRANSLATED, "ledgers.write_cache_size_bytes",
        rule="caches", note="For all ledger directories together, halved: one cache fills while the other is flushed. "
                            "`25%` means of the machine's memory."),
    Key("dbStorage_readAheadCacheMaxSizeMb", "25% of direct memory", TRANSLATED, "ledgers.read_cache_size_bytes",
        rule="caches", note="For all ledger directories together. `25%` means of the machine's memory."),
    Key("skipListSizeLimit", "67108864", TRANSLATED, "ledgers.write_cache_size_bytes", rule="caches",
        note="Of one of two write caches. Goes behind dbStorage_writeCacheMaxSizeMb."),
    Key("flushInterval", "10000", HONOURED, "ledgers.flush_interval_ms", least=100, most=_DAY_MS),
    Key("logSizeLimit", "1073741824", HONOURED, "ledgers.entry_log_size_bytes", least=MIB, most=1 << 40),
    Key("numReadWorkerThreads", "8", TRANSLATED, "ledgers.readers", least=1, most=64, off=0, off_setting=4,
        note="Threads that read disks; network workers read caches themselves."),
    # Garbage collection, compaction, scrub.
    Key("gcWaitTime", "600000", HONOURED, "gc.interval_ms", least=1000, most=_DAY_MS,
        note="Apache's code says 600000, its sample file shows 1000 in a comment."),
    Key("gcMetadataOpRateLimit", "1000", TRANSLATED, "gc.lookup_rate", least=1, most=1_000_000,
        note="Ledgers a second whose metadata is read. The listing of ids has a limit of its own."),
    Key("gcOverreplicatedLedgerWaitTime", str(_DAY_MS), TRANSLATED, "gc.over_replicated_age_ms", least=3_600_000,
        most=_FOR_EVER_MS, off=0, off_setting=_FOR_EVER_MS,
        note="A copy too many goes when metadata did not name this bookie for so long; an hour at least, since a "
             "repair under way must not be overtaken. 0 means a month."),
    Key("minorCompactionThreshold", "0.2", HONOURED, "gc.minor_ratio_max gc.major_ratio_max", RATIO, rule="compaction"),
    Key("minorCompactionInterval", "3600", HONOURED, "gc.minor_interval_ms gc.minor_ratio_max",
        rule="compaction", times=1000, least=1000, most=_FOR_EVER_MS, note="0 or less switches minor compaction off."),
    Key("majorCompactionThreshold", "0.8", HONOURED, "gc.major_ratio_max", RATIO, rule="compaction"),
    Key("majorCompactionInterval", "86400", HONOURED, "gc.major_interval_ms gc.major_ratio_max",
        rule="compaction", times=1000, least=1000, most=_FOR_EVER_MS, note="0 or less switches major compaction off."),
    Key("minorCompactionMaxTimeMillis", "-1", TRANSLATED, "gc.compaction_time_max_ms", rule="compaction",
        most=_FOR_EVER_MS, note="There is one limit for both kinds: the longer of the two that are set."),
    Key("majorCompactionMaxTimeMillis", "-1", TRANSLATED, "gc.compaction_time_max_ms", rule="compaction",
        most=_FOR_EVER_MS, note="There is one limit for both kinds: the longer of the two that are set."),
    Key("isThrottleByBytes", "false", TRANSLATED, "gc.compaction_rate_bytes", BOOLEAN, rule="compaction",
        note="Compaction is always limited by bytes here; true makes compactionRateByBytes the limit."),
    Key("compactionRateByBytes", "1000000", HONOURED, "gc.compaction_rate_bytes", rule="compaction", least=64 * KIB,
        most=1 << 40, note="Counts only with isThrottleByBytes=true, as in Apache."),
    Key("localScrubInterval", "0", HONOURED, "scrub.cycle_ms scrub.rate_bytes", rule="scrub", times=1000, least=1000,
        most=366 * _DAY_MS, note="Seconds for everything once; 0 switches the scrub off. Without it: a week."),
    # Disks.
    Key("diskUsageThreshold", "0.95", HONOURED, "disk.full_ratio disk.low_water_ratio disk.warn_ratio", RATIO,
        rule="disk"),
    Key("diskUsageWarnThreshold", "0.90", HONOURED, "disk.warn_ratio", RATIO, rule="disk",
        note="At most diskUsageThreshold."),
    Key("diskUsageLwmThreshold", "= diskUsageThreshold", HONOURED, "disk.low_water_ratio", RATIO, rule="disk",
        note="At most diskUsageThreshold, and the same as that where only that one is set."),
    Key("diskCheckInterval", "10000", HONOURED, "disk.check_interval_ms", least=100, most=_DAY_MS),
    Key("minUsableSizeForEntryLogCreation", "= logSizeLimit", HONOURED, "disk.high_priority_free_bytes_min",
        rule="floors", note="Where minUsableSizeForHighPriorityWrites is not set; raised as that."),
    Key("minUsableSizeForHighPriorityWrites", "= minUsableSizeForEntryLogCreation", HONOURED,
        "disk.high_priority_free_bytes_min", rule="floors", note="Raised to what a flush of a full journal may need;"
        " from 1 PiB on taken as not set."),
    # Adds.
    Key("forceReadOnlyBookie", "false", HONOURED, "bookie.read_only", BOOLEAN),
    Key("persistBookieStatusEnabled", "false", HONOURED, "bookie.read_only_persists", BOOLEAN,
        note="Kept in a file of ours; what an Apache bookie has written down before is not read."),
    # Network and HTTP.
    Key("serverTcpKeepIdle", "-1", HONOURED, "network.keep_alive_idle_s", most=32_767, off=0),
    Key("serverTcpKeepIntvl", "-1", HONOURED, "network.keep_alive_interval_s", most=32_767, off=0),
    Key("serverTcpKeepCnt", "-1", HONOURED, "network.keep_alive_questions_max", most=127, off=0),
    Key("maxPendingAddRequestsPerThread", "10000", HONOURED, "network.apache_adds_pending_max", rule="pending",
        note="Times numAddWorkerThreads, for each of our workers; beyond it ETOOMANYREQUESTS. Without it writers wait "
             "for room. Counts clients that speak Apache's protocols, as the next four do."),
    Key("maxPendingReadRequestsPerThread", "10000", HONOURED, "network.apache_reads_pending_max", rule="pending",
        note="The same for reads, times numReadWorkerThreads, which is 8 where it is not set."),
    Key("maxAddsInProgressLimit", "0", HONOURED, "network.apache_adds_in_progress_max", least=0, most=1 << 20),
    Key("maxReadsInProgressLimit", "0", HONOURED, "network.apache_reads_in_progress_max", least=0, most=1 << 20),
    Key("maxBatchReadSize", "5242880", HONOURED, "network.apache_batch_read_bytes_max", least=4 * KIB, most=31 * MIB),
    Key("nettyMaxFrameSizeBytes", "5242880", HONOURED, "limits.frame_size_bytes_max", rule="frames",
        note="4 KiB are added for headers; at most 31 MiB. Rings and caches grow so that they hold several."),
    Key("tlsProviderFactoryClass", "", HONOURED, "tls.mode", TEXT, rule="tls",
        note="Apache's own class selects prefer: clients in the clear are served, too, as in Apache. The next keys "
             "count beside it."),
    Key("tlsClientAuthentication", "false", HONOURED, "tls.client_certificates", BOOLEAN, rule="tls"),
    Key("tlsKeyStoreType", "JKS", HONOURED, "tls.certificate_file tls.key_file", TEXT, rule="tls",
        note="PEM or PKCS12; JKS is refused, with the command that converts it."),
    Key("tlsKeyStore", "", HONOURED, "tls.certificate_file tls.key_file", TEXT, rule="tls",
        note="With PEM the key's file, with PKCS12 the store of key and certificate."),
    Key("tlsKeyStorePasswordPath", "", HONOURED, "tls.key_password_file", TEXT, rule="tls"),
    Key("tlsCertificatePath", "", HONOURED, "tls.certificate_file", TEXT, rule="tls"),
    Key("tlsTrustStoreType", "JKS", HONOURED, "tls.ca_file", TEXT, rule="tls"),
    Key("tlsTrustStore", "", HONOURED, "tls.ca_file", TEXT, rule="tls"),
    Key("tlsTrustStorePasswordPath", "", HONOURED, "tls.ca_password_file", TEXT, rule="tls"),
    Key("bookieAuthProviderFactoryClass", "", HONOURED,
        "tls.mode authentication.methods authentication.sasl_without_tls", TEXT, rule="tls",
        note="BookieAuthZFactory, by certificates' roles: it selects require. SASLBookieAuthProviderFactory: users and "
             "passwords (DIGEST-MD5), not Kerberos. Others are refused."),
    Key("java.security.auth.login.config", "", TRANSLATED, "authentication.users_file", TEXT, rule="sasl",
        note="In Apache not a key, but a property of the JVM: the login configuration with the users of SASL."),
    Key("saslJaasBookieSectionName", "Bookie", HONOURED, "authentication.users_section", TEXT, rule="sasl"),
    Key("saslJaasClientAllowedIds", ".*bookkeeper.*", HONOURED, "authentication.users_allowed", TEXT, rule="sasl",
        note="Has to match a user's whole name, as in Apache."),
    Key("authorizedRoles", "", HONOURED, "tls.authorized_roles", LIST, rule="tls",
        note="Counts beside BookieAuthZFactory."),
    Key("tlsCertFilesRefreshDurationSeconds", "0", HONOURED, "tls.refresh_interval_s", rule="tls", least=1, most=86_400,
        note="0 is every second here: files are looked at when a connection comes, and only then."),
    Key("tlsEnabledProtocols", "", TRANSLATED, "tls.version_min", LIST, rule="tls",
        note="The lower one of TLSv1.2 and TLSv1.3 that it names; others are not spoken."),
    Key("httpServerEnabled", "false", HONOURED, "http.listen http.allow_unauthenticated_remote", BOOLEAN, rule="http",
        note="Admin endpoints and /metrics share one port, as in Apache when it is true."),
    Key("httpServerHost", "0.0.0.0", HONOURED, "http.listen", TEXT, rule="http"),
    Key("httpServerPort", "8080", HONOURED, "http.listen", rule="http"),
    Key("enableStatistics", "true", HONOURED, "http.listen", BOOLEAN, rule="http",
        note="false is like another statsProviderClass than Prometheus's."),
    Key("statsProviderClass", "org.apache.bookkeeper.stats.NullStatsProvider", TRANSLATED,
        "http.listen http.public", TEXT, rule="http",
        note="With Prometheus's /metrics is where that one would have it; else on a free port of the loopback."),
    Key("prometheusStatsHttpEnable", "true", HONOURED, "http.listen", BOOLEAN, rule="http"),
    Key("prometheusStatsHttpAddress", "0.0.0.0", HONOURED, "http.listen", TEXT, rule="http",
        note="Counts where httpServerEnabled is false, as in Apache."),
    Key("prometheusStatsLatencyRolloverSeconds", "60", HONOURED, "metrics.latency_window_s", least=6, most=3600),
    Key("prometheusStatsHttpPort", "8000", HONOURED, "http.listen", rule="http",
        note="Counts where httpServerEnabled is false, as in Apache."),
)
# fmt: on


_REFUSED = Verdict.REFUSED
_BOOLEAN, _TEXT = Kind.BOOLEAN, Kind.TEXT
_OFF = ("false", "f", "no", "n", "off", "0")
_NONE = ("", "null")

IGNORED: tuple[tuple[str, str], ...] = (
    (
        "indexes lie in the ledger directories, where they belong to the entry logs",
        "indexDirectories=~ minUsableSizeForIndexFileCreation=104857600 openFileLimit=20000 pageLimit=-1 pageSize=8192"
        " fileInfoCacheInitialCapacity=openFileLimit/4 fileInfoMaxIdleTime=0 fileInfoFormatVersionToWrite=1",
    ),
    (
        "locations lie in files of our own, there is no RocksDB",
        "dbStorage_rocksDB_blockCacheSize=~ dbStorage_rocksDB_blockSize=65536"
        " dbStorage_rocksDB_bloomFilterBitsPerKey=10 dbStorage_rocksDB_checksum_type=kxxHash"
        " dbStorage_rocksDB_format_version=5 dbStorage_rocksDB_logLevel=info dbStorage_rocksDB_logPath=~"
        " dbStorage_rocksDB_lz4CompressionEnabled=true dbStorage_rocksDB_maxSizeInLevel1MB=256"
        " dbStorage_rocksDB_numFilesInLevel0=4 dbStorage_rocksDB_numLevels=-1 dbStorage_rocksDB_sstSizeInMB=64"
        " dbStorage_rocksDB_writeBufferSizeMB=64 defaultRocksdbConf=conf/default_rocksdb.conf"
        " entryLocationRocksdbConf=conf/entry_location_rocksdb.conf"
        " ledgerMetadataRocksdbConf=conf/ledger_metadata_rocksdb.conf"
        " maxOperationNumbersInSingleRocksdbWriteBatch=100000 entryLocationCompactionInterval=-1"
        " gcEntryLogMetadataCacheEnabled=false gcEntryLogMetadataCachePath=~",
    ),
    (
        "there is one storage engine, which joins and sorts entries by ledger in its own way",
        "sortedLedgerStorageEnabled=true skipListArenaChunkSize=4194304 skipListArenaMaxAllocSize=131072"
        " entryLogPerLedgerEnabled=false entryLogPerLedgerCounterLimitsMultFactor=10"
        " entrylogMapAccessExpiryTimeInSeconds=300 maximumNumberOfActiveEntryLogs=500 numOfMemtableFlushThreads=8"
        " entryLogFilePreallocationEnabled=true flushEntrylogBytes=0 readBufferSizeBytes=512 writeBufferSizeBytes=65536"
        " dbStorage_directIOEntryLogger=false dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds=300"
        " dbStorage_directIOEntryLoggerReadBufferSizeMB=8"
        " dbStorage_directIOEntryLoggerTotalReadBufferSizeMB=12.5%~of~direct~memory"
        " dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB=12.5%~of~direct~memory"
        " dbStorage_maxThrottleTimeMs=10000",
    ),
    (
        "reading ahead goes by bytes and adapts to the reader",
        "dbStorage_readAheadCacheBatchSize=100 dbStorage_readAheadCacheBatchBytesSize=-1",
    ),
    (
        "the journal never waits for company: it writes what is there as soon as the disk is free",
        "journalAdaptiveGroupWrites=true journalMaxGroupWaitMSec=2 journalFlushWhenQueueEmpty=false"
        " journalBufferedEntriesThreshold=0",
    ),
    (
        "the journal's format, files and memory are our own: files are written ahead whole and used again, batches lie"
        " in rings that are bounded in bytes, blocks are 4 KiB, the page cache is passed by",
        "journalFormatVersionToWrite=6 journalMaxBackups=5 journalPreAllocSizeMB=16 journalWriteBufferSizeKB=64"
        " journalRemoveFromPageCache=true journalPageCacheFlushIntervalMSec=1000 journalReuseFiles=false"
        " journalAlignmentSize=512 journalQueueSize=10000 numJournalCallbackThreads=1",
    ),
    (
        "a damaged journal is never passed over in silence: what may be missing is said to be unknown until repaired",
        "skipReplayJournalInvalidRecord=false",
    ),
    (
        "a bookie does not start without its data unless a person says so (`--accept-data-loss`); what runs is checked"
        " by the scrub, what is stopped by `fastbk bookie check`",
        "dataIntegrityChecking=false dataIntegrityStampMissingCookies=false localConsistencyCheckOnStartup=false",
    ),
    (
        "directories are added by a person, with `fastbk bookie expand` while the bookie is stopped",
        "allowStorageExpansion=false",
    ),
    (
        "the scrub is limited by bytes (`[scrub] rate`), not by entries",
        "localScrubRateLimit=60",
    ),
    (
        "compaction is limited by bytes (`[gc] compaction_rate`), and safe at every step",
        "compactionRate=1000 compactionRateByEntries=1000 compactionMaxOutstandingRequests=100000"
        " useTransactionalCompaction=false useTargetEntryLogSizeForGc=false forceAllowCompaction=false",
    ),
    (
        "gc always asks the metadata before it deletes, and goes on while a disk is full, with room kept for it",
        "verifyMetadataOnGC=false isForceGCAllowWhenNoSpace=false gcOverreplicatedLedgerMaxConcurrentRequests=1000",
    ),
    (
        "a bookie whose disk is full always serves reads, and the directory that is full alone takes no adds",
        "readOnlyModeEnabled=true readOnlyModeOnAnyDiskFullEnabled=true",
    ),
    (
        "network workers are processes, one on up to four cores and a quarter of the cores above (`[bookie] workers`)",
        "numAddWorkerThreads=1 numHighPriorityWorkerThreads=8 numLongPollWorkerThreads=0 serverNumIOThreads=2~x~cores"
        " serverNumAcceptorThreads=1 readWorkerThreadsThrottlingEnabled=true requestTimerTickDurationMs=10"
        " requestTimerNumTicks=1024 enableBusyWait=false bookieDeathWatchInterval=1000 enableLocalTransport=false",
    ),
    (
        "TCP_NODELAY and SO_KEEPALIVE are always on, and sockets close without lingering",
        "serverTcpNoDelay=true serverSockKeepalive=true serverTcpLinger=0",
    ),
    (
        "buffers are bounded by `[network]` and `[limits]`; a client that does not read its replies is cut off",
        "byteBufAllocatorSizeInitial=65536 byteBufAllocatorSizeMin=65536 byteBufAllocatorSizeMax=1048576"
        " serverWriteBufferLowWaterMark=393216 serverWriteBufferHighWaterMark=524288"
        " closeChannelOnResponseTimeout=false waitTimeoutOnResponseBackpressureMs=-1",
    ),
    (
        "memory does not come from Netty's allocator",
        "allocatorExitOnOutOfMemory=false allocatorLeakDetectionPolicy=Disabled"
        " allocatorOutOfMemoryPolicy=FallbackToHeap allocatorPoolingConcurrency=2~x~cores"
        " allocatorPoolingPolicy=PooledDirect",
    ),
    (
        "retries with ZooKeeper have times of their own",
        "zkRetryBackoffStartMs=zkTimeout zkRetryBackoffMaxMs=zkTimeout"
        " zkRetryBackoffMaxRetries=unlimited zkRequestRateLimit=0",
    ),
    (
        "bookies write no ledger metadata, and the layout that is there counts, or the one of the URI",
        "ledgerManagerType=~ ledgerMetadataVersion=-1 ledgerManagerFactoryDisableClassCheck=false"
        " allowShadedLedgerManagerFactoryClass=false"
        " shadedLedgerManagerFactoryClassPrefix=dlshade. metastoreImplClass=~ metastoreMaxEntriesPerScan=50"
        " storeSystemTimeAsLedgerCreationTime=false",
    ),
    (
        "a bookie runs no AutoRecovery inside: run `fastbk autorecovery`, or Apache's daemon, beside it",
        "autoRecoveryDaemonEnabled=false auditorPeriodicBookieCheckInterval=86400 auditorPeriodicCheckInterval=604800"
        " auditorReplicasCheckInterval=0"
        " auditorLedgerVerificationPercentage=0 auditorMaxNumberOfConcurrentOpenLedgerOperations=500"
        " auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec=120000"
        " repairedPlacementPolicyNotAdheringBookieEnabled=false lostBookieRecoveryDelay=0"
        " openLedgerRereplicationGracePeriod=30000 lockReleaseOfFailedLedgerGracePeriod=300000"
        " underreplicatedLedgerRecoveryGracePeriod=0 rwRereplicateBackoffMs=5000 rereplicationEntryBatchSize=10"
        " replicationRateByBytes=-1 zkReplicationTaskRateLimit=0 inFlightReadEntryNumInLedgerChecker=-1"
        " storeSystemTimeAsLedgerUnderreplicatedMarkTime=true digestType=CRC32 passwd=~"
        " enableDigestTypeAutodetection=true",
    ),
    (
        "a bookie runs no AutoRecovery inside; `fastbk autorecovery --apache-config FILE` takes this key from the file",
        "auditorPeriodicPlacementPolicyCheckInterval=0 networkTopologyScriptFileName=~",
    ),
    (
        "clients choose ensembles, bookies do not; in this file it is for AutoRecovery's client",
        "ensemblePlacementPolicy=org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy"
        " minNumRacksPerWriteQuorum=2 enforceMinNumRacksPerWriteQuorum=false enforceMinNumFaultDomainsForWrite=false"
        " minNumZonesPerWriteQuorum=2 desiredNumZonesPerWriteQuorum=3 enforceStrictZoneawarePlacement=true"
        " ignoreLocalNodeInPlacementPolicy=false reppDnsResolverClass=org.apache.bookkeeper.net.ScriptBasedMapping"
        " networkTopologyScriptNumberArgs=100 stickyReadSEnabled=false"
        " reorderReadSequenceEnabled=false bookieAddressResolverEnabled=true",
    ),
    (
        "components are Java classes: streams and their storage are not part of a bookie here",
        "extraServerComponents=~ ignoreExtraServerComponentsStartupFailures=false storageserver.grpc.port=4181"
        " dlog.bkcEnsembleSize=3 dlog.bkcWriteQuorumSize=2 dlog.bkcAckQuorumSize=2 storage.range.store.dirs=~"
        " storage.serve.readonly.tables=false storage.cluster.controller.schedule.interval.ms=30000",
    ),
    (
        "metrics are those of fastbk, always on and for Prometheus",
        "exposeDefaultJVMMetrics=true codahaleStatsPrefix=~"
        " codahaleStatsOutputFrequencySeconds=60 codahaleStatsGraphiteEndpoint=~ codahaleStatsCSVEndpoint=~"
        " codahaleStatsSlf4jEndpoint=~ codahaleStatsJmxEndpoint=~ sanityCheckMetricsEnabled=false"
        " enableTaskExecutionStats=false limitStatsLogging=true preserveMdcForTaskExecution=false"
        " enableHealthCheck=true",
    ),
    (
        "it names a Java class for output or HTTP that has no counterpart here",
        "httpServerClass=org.apache.bookkeeper.http.vertx.VertxHttpServer entryFormatterClass=~"
        " ledgerIdFormatterClass=~",
    ),
    (
        "TLS here is OpenSSL's, with ciphers that have forward secrecy and authenticate what they encrypt",
        "tlsProvider=OpenSSL tlsEnabledCipherSuites=~",
    ),
    (
        "it counts only beside httpServerTlsEnable, which is refused",
        "httpServerKeyStorePath=~ httpServerKeyStorePassword=~ httpServerTrustStorePath=~"
        " httpServerTrustStorePassword=~",
    ),
)
"""(reason, keys)"""

# fmt: off
REFUSED = (
    Key("httpServerTlsEnable", "false", _REFUSED, kind=_BOOLEAN, harmless=_OFF,
        note="its stores are Java's own: write a file of ours with [http] tls = true (fastbk config convert), or switch"
             " httpServerEnabled off"),
    Key("zkEnableSecurity", "false", _REFUSED, kind=_BOOLEAN, harmless=_OFF,
        note="nodes in ZooKeeper would be made without the access rules that it asks for"),
    Key("disableServerSocketBind", "false", _REFUSED, kind=_BOOLEAN, harmless=_OFF,
        note="a bookie here is always reached through its port"),
    Key("registrationManagerClass", "", _REFUSED, kind=_TEXT,
        harmless=(*_NONE, "org.apache.bookkeeper.discover.zkregistrationmanager"),
        note="bookies register in ZooKeeper or in a metadata store of ours, by metadataServiceUri"),
    Key("journalChannelProvider", "org.apache.bookkeeper.bookie.DefaultFileChannelProvider", _REFUSED, kind=_TEXT,
        harmless=("", "org.apache.bookkeeper.bookie.defaultfilechannelprovider"),
        note="a class of your own that writes the journal cannot run here, and what it promises would not hold"),
)
# fmt: on


UNKNOWN = "not a key of Apache's bookies"
PREFIXES = {
    "dlog": "streams are not part of a bookie here",
    "storage.": "streams and their storage are not part of a bookie here",
    "storageserver.": "streams and their storage are not part of a bookie here",
    "codahaleStats": "metrics are for Prometheus",
    "dbStorage_": "locations lie in files of our own, there is no RocksDB",
    "client": "it is a key of clients",
}
"""What begins so is ignored for this reason when it has no row of its own."""


def _all() -> dict[str, Key]:
    rows = [*SETTINGS, *REFUSED]
    for reason, names in IGNORED:
        for each in names.split():
            name, _, default = each.partition("=")
            text = default.replace("~", " ").strip()
            rows.append(Key(name, text, Verdict.IGNORED, kind=Kind.TEXT, note=reason))
    found = {row.name: row for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


KEYS = _all()
"""The keys, by name."""


def key_of(name: str) -> Key:
    """Return what becomes of a key, whether it is known or not."""
    if (known := KEYS.get(name)) is not None:
        return known
    for prefix, reason in PREFIXES.items():
        if name.startswith(prefix):
            return Key(name, "", Verdict.IGNORED, kind=Kind.TEXT, note=reason)
    return Key(name, "", Verdict.IGNORED, kind=Kind.TEXT, note=UNKNOWN + nearest(name))


def is_unknown(key: Key) -> bool:
    """Return whether a key of this name was never heard of."""
    return key.note.startswith(UNKNOWN)


def nearest(name: str) -> str:
    """Return `: did you mean ...?` where some key's name is near, else nothing."""
    import difflib  # here: only a wrong key needs it

    lower = {known.lower(): known for known in KEYS}
    close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.8)
    return f": did you mean {lower[close[0]]}?" if close else ""

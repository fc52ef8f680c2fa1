"""Apache's keys that set something here, one row each. Data only."""

from __future__ import annotations

from fastbk.apache.configuration.keys import Key, Kind, Verdict
from fastbk.units import KIB, MIB

HONOURED, TRANSLATED = Verdict.HONOURED, Verdict.TRANSLATED
INTEGER, BOOLEAN, RATIO, TEXT, LIST = Kind.INTEGER, Kind.BOOLEAN, Kind.RATIO, Kind.TEXT, Kind.LIST
_DAY_MS = 86_400_000
_FOR_EVER_MS = 31 * _DAY_MS
"""The longest that intervals of gc may be."""

# fmt: off
KEYS = (
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

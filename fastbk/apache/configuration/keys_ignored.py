"""Apache's keys that set nothing here: what changes nothing, by reason, and what a bookie refuses. Data only.

In `IGNORED` a key stands as `name=default`, with a blank as `~`.
"""

from __future__ import annotations

from fastbk.apache.configuration.keys import Key, Kind, Verdict

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
        " auditorPeriodicPlacementPolicyCheckInterval=0 auditorReplicasCheckInterval=0"
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
        "clients choose ensembles, bookies do not; in this file it is for AutoRecovery's client",
        "ensemblePlacementPolicy=org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy"
        " minNumRacksPerWriteQuorum=2 enforceMinNumRacksPerWriteQuorum=false enforceMinNumFaultDomainsForWrite=false"
        " minNumZonesPerWriteQuorum=2 desiredNumZonesPerWriteQuorum=3 enforceStrictZoneawarePlacement=true"
        " ignoreLocalNodeInPlacementPolicy=false reppDnsResolverClass=org.apache.bookkeeper.net.ScriptBasedMapping"
        " networkTopologyScriptFileName=~ networkTopologyScriptNumberArgs=100 stickyReadSEnabled=false"
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

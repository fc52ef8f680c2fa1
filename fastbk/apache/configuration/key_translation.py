"""Translates a file of Apache's into a `BookieConfig`: single keys by the table, keys that belong
together by a rule.

A key that the file does not set leaves fastbk's own default in place, not Apache's. Only the
bookie's id and its address follow Apache's defaults. A bookie with such a file may listen beyond
loopback.

The rules of sizes come behind the others: what Apache's keys give, and what has to grow with them
(rings, caches, the journal, the memory in all). The rules of directories come last. They make pairs
of Apache's journal and ledger directories: each ledger directory needs a journal of its own.
Nothing is put where something else lies: a directory that is for both holds entry logs itself and
the journal in a folder, and a journal directory that several ledger directories share has a folder
for each but the first. So a bookie's directories stay where they are when others are added behind
them.

Decision 60.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import pwd
import re
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.apache.configuration.config_builder import ConfigBuilder
from fastbk.config import is_loopback
from fastbk.errors import ConfigError
from fastbk.server import process_table
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.checks import PAIRS_MAX, RECORD_BYTES_MAX, check
from fastbk.server.disks import space_thresholds
from fastbk.units import KIB, MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastbk.apache.configuration.config_builder import ConfigBuilder, Report
    from fastbk.apache.configuration.source import KeySource

LAYOUTS = {
    "FlatLedgerManagerFactory": "flat",
    "HierarchicalLedgerManagerFactory": "hierarchical",
    "LongHierarchicalLedgerManagerFactory": "longhierarchical",
}
APACHE_STORAGES = ("SortedLedgerStorage", "InterleavedLedgerStorage", "DbLedgerStorage")
PROMETHEUS = "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider"
APACHE = "org.apache.bookkeeper."


def translate(
    source: KeySource, network: Machine | None = None
) -> tuple[BookieConfig | None, Report]:
    """Return the configuration, None where it has problems, and the report, which names all of them."""
    builder = ConfigBuilder(source)

    def identify(_: ConfigBuilder) -> None:
        settled = settle_address(source, network)
        who = (
            "bookiePort",
            "bookieId",
            "advertisedAddress",
            "listeningInterface",
            "useHostNameAsBookieID",
        )
        builder.put(
            "bookie.listen",
            settled.listen,
            "bookiePort",
            "listeningInterface",
            "allowEphemeralPorts",
        )
        builder.put("bookie.id", settled.bookie_id, *who, "useShortHostName")
        builder.put("bookie.advertised", settled.advertised, *who[2:], "useShortHostName")
        builder.put("bookie.allow_unauthenticated_remote", True)

    rules: list[Callable[[ConfigBuilder], None]] = [
        ConfigBuilder.simple,
        ConfigBuilder.refuse,
        identify,
        _users,
        _metadata,
        _directories,
        _sync,
        _storage,
        _missing,
        apply_frames,
        apply_rings,
        apply_pending,
        apply_journal_size,
        apply_caches,
        _compaction,
        _scrub,
        _disk,
        _http,
        apply_tls,
        apply_sasl,
        fit,
        apply_floors,
    ]
    for rule in rules:
        try:
            rule(builder)
        except ConfigError as error:
            builder.report.problems.append(str(error))
    for line in source.properties.unfinished:
        builder.report.remarks.append(
            f"line {line} ends in a backslash and nothing follows: ignored, as in Apache"
        )
    report = builder.finish()
    if report.problems:
        return None, report
    try:
        config = fit_memory(builder, _convert(builder.document))
        check(config)
    except ConfigError as error:
        report.problems.append(str(error))
        return None, report
    return config, report


def _convert(document: dict[str, dict[str, Any]]) -> BookieConfig:
    try:
        return msgspec.convert(document, BookieConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error


def _users(builder: ConfigBuilder) -> None:
    allowed = builder.source.items("permittedStartupUsers")
    if not allowed:
        return
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    if user not in allowed:
        raise builder.source.fault(
            "permittedStartupUsers", f"this is {user}, allowed are {', '.join(allowed)}"
        )


def _metadata(builder: ConfigBuilder) -> None:
    keys: tuple[str, ...] = ("zkServers", "zkLedgersRootPath", "ledgerManagerFactoryClass")
    uri = metadata_uri(builder.source)
    if builder.source.text("metadataServiceUri") is not None:
        if builder.source.text(keys[-1]) is not None:
            builder.remark(keys[-1], "not used: metadataServiceUri goes before it")
        keys = ("metadataServiceUri",)
    builder.put("metadata.uri", uri, *keys)


def metadata_uri(source: KeySource) -> str:
    """Return the URI of the cluster that a file of Apache's names, a client's file included. Raises ConfigError."""
    if source.text("metadataServiceUri") is not None:
        # Commas between servers split the value like any list. As in Apache's, the URI names the layout by itself.
        return ";".join(source.items("metadataServiceUri"))
    layout = _layout(source)
    servers = source.items("zkServers")
    if not servers:
        raise ConfigError(
            "neither metadataServiceUri nor zkServers is set: the bookie needs its cluster's metadata"
        )
    root = source.text("zkLedgersRootPath") or "/ledgers"
    return f"zk+{layout}://{';'.join(servers)}{root}"


def _layout(source: KeySource) -> str:
    if (factory := source.text("ledgerManagerFactoryClass")) is not None:
        layout = LAYOUTS.get(factory.removeprefix(f"{APACHE}meta."))
        if layout is None:
            raise source.fault(
                "ledgerManagerFactoryClass",
                f"the layout of {factory} is not known here: ledgers would not be found",
            )
        return layout
    return "null"


def _directories(builder: ConfigBuilder) -> None:
    settled = settle_directories(builder.source)
    for section, names, all_of_them in (
        ("journal", ("journalDirectories", "journalDirectory"), settled.journals),
        ("ledgers", ("ledgerDirectories",), settled.ledgers),
    ):
        if len(all_of_them) == 1:
            builder.put(f"{section}.directory", all_of_them[0], *names)
        else:
            builder.put(f"{section}.directories", all_of_them, *names)
    builder.report.remarks += settled.remarks
    builder.report.notes += settled.notes


def _sync(builder: ConfigBuilder) -> None:
    for key in ("journalSyncData", "journalWriteData"):
        if builder.source.boolean(key) is False:
            builder.put("journal.sync", "never", key)
            builder.report.remarks.append(
                f"{key}=false: acknowledged entries may be lost with a crash"
            )


def _storage(builder: ConfigBuilder) -> None:
    name = builder.source.text("ledgerStorageClass")
    if name is not None and (
        not name.startswith(APACHE) or name.rpartition(".")[2] not in APACHE_STORAGES
    ):
        raise builder.source.fault(
            "ledgerStorageClass",
            f"{name} cannot run here; of Apache's there are {', '.join(APACHE_STORAGES)}",
        )


def _missing(builder: ConfigBuilder) -> None:
    """Say aloud what somebody may count on and has no counterpart here."""
    if builder.source.boolean("autoRecoveryDaemonEnabled"):
        builder.report.remarks.append(
            "autoRecoveryDaemonEnabled=true: a bookie here runs no AutoRecovery inside: run `fastbk autorecovery`,"
            " or Apache's daemon, beside it"
        )
    if components := builder.source.items("extraServerComponents"):
        builder.report.remarks.append(
            f"extraServerComponents: not started: {', '.join(components)}"
        )


def _compaction(builder: ConfigBuilder) -> None:
    source = builder.source
    for kind in ("minor", "major"):
        threshold, interval = f"{kind}CompactionThreshold", f"{kind}CompactionInterval"
        ratio, seconds = source.ratio(threshold), source.integer(interval)
        if seconds is not None and seconds > 0:
            builder.put(f"gc.{kind}_interval_ms", builder.integer(interval), interval)
        if (seconds is not None and seconds <= 0) or (ratio is not None and not 0 < ratio < 1):
            builder.put(f"gc.{kind}_ratio_max", 0.0, threshold, interval)  # off, as in Apache
        elif ratio is not None:
            builder.put(f"gc.{kind}_ratio_max", ratio, threshold)
    minor, major = builder.get("gc.minor_ratio_max"), builder.get("gc.major_ratio_max")
    if minor > major and (major == 0 or not builder.is_set("gc.major_ratio_max")):
        # Minor compaction goes on alone, or above our own default: major takes what minor takes.
        builder.put(
            "gc.major_ratio_max", minor, "minorCompactionThreshold", "majorCompactionThreshold"
        )
    limits = [
        (limit, key)
        for key in ("minorCompactionMaxTimeMillis", "majorCompactionMaxTimeMillis")
        if (limit := builder.integer(key)) is not None and limit > 0
    ]
    if limits:
        builder.put("gc.compaction_time_max_ms", max(limits)[0], *(key for _, key in limits))
    rate = builder.integer("compactionRateByBytes")
    if source.boolean("isThrottleByBytes") and rate is not None:
        builder.put("gc.compaction_rate_bytes", rate, "compactionRateByBytes", "isThrottleByBytes")


def _scrub(builder: ConfigBuilder) -> None:
    seconds = builder.source.integer("localScrubInterval")
    if seconds is None:
        return
    if seconds <= 0:
        builder.put("scrub.rate_bytes", 0, "localScrubInterval")
    else:
        builder.put("scrub.cycle_ms", builder.integer("localScrubInterval"), "localScrubInterval")


def _disk(builder: ConfigBuilder) -> None:
    source = builder.source
    full, warn, low = (source.ratio(f"diskUsage{which}Threshold") for which in ("", "Warn", "Lwm"))
    for key, value in (("", full), ("Warn", warn), ("Lwm", low)):
        if value is not None and not 0 < value < 1:
            raise source.fault(f"diskUsage{key}Threshold", f"{value:g} is not between 0 and 1")
    if full is not None:
        builder.put("disk.full_ratio", full, "diskUsageThreshold")
    limit: float = builder.get("disk.full_ratio")
    if warn is not None or builder.get("disk.warn_ratio") > limit:
        builder.put(
            "disk.warn_ratio",
            min(limit, warn or limit),
            "diskUsageWarnThreshold",
            "diskUsageThreshold",
        )
    if low is not None or full is not None:
        builder.put(
            "disk.low_water_ratio",
            min(limit, low or limit),
            "diskUsageLwmThreshold",
            "diskUsageThreshold",
        )


def _http(builder: ConfigBuilder) -> None:
    source = builder.source
    keys: tuple[str, ...]
    if source.boolean("httpServerEnabled"):
        keys = ("httpServerHost", "httpServerPort", "httpServerEnabled")
        host, port = source.text("httpServerHost") or "0.0.0.0", source.integer("httpServerPort")
        port = 8080 if port is None else port
    else:
        is_on = source.boolean("enableStatistics") is not False and (
            source.boolean("prometheusStatsHttpEnable") is not False
        )
        if not is_on or source.text("statsProviderClass") != PROMETHEUS:
            return
        keys = ("prometheusStatsHttpAddress", "prometheusStatsHttpPort", "statsProviderClass")
        host, port = source.text(keys[0]) or "0.0.0.0", source.integer(keys[1])
        port = 8000 if port is None else port
    if not 0 <= port <= 65_535:
        raise source.fault(keys[1], f"{port} is not a port")
    builder.put("http.listen", f"[{host}]:{port}" if ":" in host else f"{host}:{port}", *keys)
    if keys[-1] == "httpServerEnabled":
        # As in Apache, whose server knows no authentication either.
        builder.put("http.allow_unauthenticated_remote", True, keys[-1])
    else:
        # Apache's Prometheus port has no other page. Where clients of the bookie authenticate, ours shows no more.
        builder.put("http.public", ["health", "metrics"], keys[-1])


HEADER_BYTES = 4 * KIB
"""What a frame may have beside an entry that fills Apache's largest frame."""
FRAME_BYTES_MIN = 16 * KIB
RING_BYTES_MIN, RING_BYTES_MAX = 16 * MIB, 1024 * MIB
JOURNAL_BYTES_MIN, JOURNAL_BYTES_MAX = 64 * MIB, 1 << 40
JOURNAL_FILE_BYTES = 128 * MIB
CACHE_BYTES_MAX = 1 << 40
PENDING_MAX = 1 << 20
_HOLD_FRAMES = (
    ("limits.add_ring_size_bytes", 3),
    ("limits.reply_ring_size_bytes", 2),
    ("limits.request_ring_size_bytes", 0),
    ("network.partial_frames_bytes_max", 2),
    ("network.reply_backlog_bytes_max", 1),
    ("journal.first_file_size_bytes", 4),
    ("journal.file_size_bytes", 4),
    ("ledgers.write_cache_size_bytes", 3),
)
"""What has to hold so many of the largest frames; rings are powers of two."""
_HOLD_BATCHES = _HOLD_FRAMES[5:]


def apply_frames(builder: ConfigBuilder) -> None:
    """nettyMaxFrameSizeBytes."""
    key = "nettyMaxFrameSizeBytes"
    if (size_bytes := builder.source.integer(key)) is None:
        return
    wanted = size_bytes + HEADER_BYTES
    allowed = min(max(wanted, FRAME_BYTES_MIN), RECORD_BYTES_MAX)
    builder.remark_bounded(key, wanted, allowed, format_size(allowed))
    builder.put("limits.frame_size_bytes_max", allowed, key)


def apply_rings(builder: ConfigBuilder) -> None:
    """journalMaxMemorySizeMb."""
    key = "journalMaxMemorySizeMb"
    if (size_mb := builder.source.integer(key)) is None:
        return
    size_bytes = min(max(size_mb * MIB, RING_BYTES_MIN), RING_BYTES_MAX)
    builder.put("limits.add_ring_size_bytes", 1 << (size_bytes.bit_length() - 1), key)


def apply_pending(builder: ConfigBuilder) -> None:
    """Limits on requests that wait: Apache counts them for each of its threads."""
    for kind, threads_default in (("Add", 1), ("Read", 8)):
        key = f"maxPending{kind}RequestsPerThread"
        if (limit := builder.source.integer(key)) is None:
            continue
        threads = builder.source.integer(f"num{kind}WorkerThreads")
        threads = threads_default if threads is None else max(1, threads)
        allowed = min(max(0, limit * threads), PENDING_MAX)
        builder.put(f"network.apache_{kind.lower()}s_pending_max", allowed, key)


def apply_journal_size(builder: ConfigBuilder) -> None:
    """journalMaxSizeMB."""
    key = "journalMaxSizeMB"
    if (size_mb := builder.source.integer(key)) is None:
        return
    limit_bytes = min(max(size_mb * MIB, JOURNAL_BYTES_MIN), JOURNAL_BYTES_MAX)
    builder.remark_bounded(key, size_mb * MIB, limit_bytes, str(limit_bytes // MIB))
    file_bytes = min(JOURNAL_FILE_BYTES, limit_bytes // 4)
    file_bytes = max(32 * MIB, file_bytes // MIB * MIB)
    builder.put("journal.limit_bytes", limit_bytes, key)
    builder.put("journal.file_size_bytes", file_bytes, key)
    builder.put("journal.first_file_size_bytes", min(file_bytes, 64 * MIB), key)


def apply_caches(builder: ConfigBuilder) -> None:
    """The sizes of write and read cache."""
    write = _cache_bytes(builder, "dbStorage_writeCacheMaxSizeMb")
    if write is not None:
        builder.put("ledgers.write_cache_size_bytes", write // 2, "dbStorage_writeCacheMaxSizeMb")
    elif (one_bytes := builder.source.integer("skipListSizeLimit")) is not None and one_bytes > 0:
        builder.put(
            "ledgers.write_cache_size_bytes", min(one_bytes, CACHE_BYTES_MAX), "skipListSizeLimit"
        )
    read = _cache_bytes(builder, "dbStorage_readAheadCacheMaxSizeMb")
    if read is not None:
        builder.put(
            "ledgers.read_cache_size_bytes", max(read, MIB), "dbStorage_readAheadCacheMaxSizeMb"
        )


def _cache_bytes(builder: ConfigBuilder, key: str) -> int | None:
    """Return a size in MB or percent of the machine's memory; None when it is not set, or not above nothing."""
    text = builder.source.text(key)
    if text is not None and text.endswith("%"):
        number = text.removesuffix("%").strip()
        if not number.isdigit() or not 0 < int(number) <= 90:
            raise builder.source.fault(key, f"{text!r} is not 1% to 90%")
        size_bytes = _memory_bytes() * int(number) // 100
        builder.remark(key, f"{format_size(size_bytes)} on this machine")
        return size_bytes
    size_mb = builder.source.integer(key)
    if size_mb is None or size_mb <= 0:
        return None
    if size_mb * MIB > CACHE_BYTES_MAX:
        builder.remark(key, f"lowered to {CACHE_BYTES_MAX // MIB}")
    return min(size_mb * MIB, CACHE_BYTES_MAX)


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def fit(builder: ConfigBuilder) -> None:
    """Make everything large enough for the largest frame and batch: a file in Apache's format asks for no more."""
    frame_bytes, batch_bytes = (
        builder.get("limits.frame_size_bytes_max"),
        builder.get("journal.batch_size_bytes_max"),
    )
    why = f"holds several frames of {format_size(frame_bytes)}"
    for setting, times in _HOLD_FRAMES:
        builder.raise_to(setting, _ring_bytes(setting, times * frame_bytes), why)
    for setting, times in _HOLD_BATCHES:
        builder.raise_to(
            setting, times * batch_bytes, f"holds several batches of {format_size(batch_bytes)}"
        )
    builder.raise_to(
        "journal.limit_bytes", 2 * builder.get("journal.file_size_bytes"), "holds two journal files"
    )


def _ring_bytes(setting: str, least: int) -> int:
    is_ring = setting.endswith("_ring_size_bytes")
    return 1 << (least - 1).bit_length() if is_ring and least else least


NEVER_FREE_BYTES = 1 << 50
"""Tests of Apache's set the largest number there is, to have what it bounds refused."""


def apply_floors(builder: ConfigBuilder) -> None:
    """The free space that is kept on a ledger directory's disk.

    Apache's bookies ask both only once a disk is beyond `diskUsageThreshold`: neither makes one read-only that is not.
    """
    journal = msgspec.convert(builder.document.get("journal", {}), type(BookieConfig().journal))
    reserve = space_thresholds.reserve_bytes(journal)
    repair = int(reserve * space_thresholds.REPAIR_SHARE)
    keys = ("minUsableSizeForHighPriorityWrites", "minUsableSizeForEntryLogCreation")
    is_set = False
    for key in keys:
        wanted = builder.source.integer(key)
        if wanted is None:
            continue
        if wanted >= NEVER_FREE_BYTES:
            builder.remark(key, "no disk has so much: taken as not set")
            continue
        if is_set:
            builder.remark(key, f"{keys[0]} says it")
        elif wanted < repair:
            builder.remark(key, f"raised to {format_size(repair)}")
        else:
            builder.put("disk.high_priority_free_bytes_min", wanted, key)
        is_set = True


def fit_memory(builder: ConfigBuilder, config: BookieConfig) -> BookieConfig:
    """Return the configuration with as much memory allowed as its caches and rings add up to."""
    needed = process_table.memory_bytes(config)
    if needed <= process_table.memory_total_bytes(config):
        return config
    builder.report.origins["bookie.memory_total_bytes"] = "the sum of caches and rings"
    bookie = msgspec.structs.replace(config.bookie, memory_total_bytes=-(-needed // MIB) * MIB)
    return msgspec.structs.replace(config, bookie=bookie)


APACHE_TEMPORARY = ("/tmp/bk-txn", "/tmp/bk-data")  # noqa: S108
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
JOURNAL_FOLDER, PAIR_FOLDER = "journal", "pair-"


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories of each pair, and what people should be told of them."""

    journals: tuple[str, ...]
    ledgers: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What is worth knowing."""
    remarks: tuple[str, ...] = ()
    """What is worth a warning."""


def settle_directories(source: KeySource) -> Directories:
    """Return the pairs' directories, as absolute paths. Raises ConfigError."""
    journals = source.items("journalDirectories") or source.items("journalDirectory")[:1]
    ledgers = source.items("ledgerDirectories")
    for key, given in (("journalDirectories", journals), ("ledgerDirectories", ledgers)):
        if not given:
            raise ConfigError(
                f"{key} is not set: Apache would put it into a temporary folder, where data is lost with the next boot"
            )
        for one in given:
            if os.path.normpath(one) in APACHE_TEMPORARY:
                raise source.fault(
                    key if key in source.properties else "journalDirectory",
                    f"{one} is Apache's temporary folder, where data is lost with the next boot: name another",
                )
    pairs = paired(
        [os.path.abspath(journal) for journal in journals],
        [os.path.abspath(ledger) for ledger in ledgers],
    )
    remarks = [
        f"{directory} is a temporary folder: data there may be lost with the next boot"
        for directory in dict.fromkeys((*journals, *ledgers))
        if os.path.abspath(directory).startswith(tuple(f"{folder}/" for folder in TEMPORARY))
    ]
    if source.boolean("allowMultipleDirsUnderSameDiskPartition") is False:
        _check_partitions(ledgers)
    return Directories(pairs.journals, pairs.ledgers, pairs.notes, tuple(remarks))


def paired(journals: Sequence[str], ledgers: Sequence[str]) -> Directories:
    """Return a journal and a ledger directory for each pair. Raises ConfigError.

    Args:
        journals, ledgers: at least one each, absolute paths.
    """
    for what, given in (("journalDirectories", journals), ("ledgerDirectories", ledgers)):
        if len(set(given)) < len(given):
            raise ConfigError(f"{what} names a directory twice")
    count = max(len(journals), len(ledgers))
    if count > PAIRS_MAX:
        raise ConfigError(
            f"{count} directories are {count} journal/index pairs, {PAIRS_MAX} are possible: join some of the disks"
        )
    found = []
    for pair in range(count):
        journal = journals[pair % len(journals)]
        ledger = ledgers[pair % len(ledgers)]
        if journal in ledgers:
            journal = f"{journal}/{JOURNAL_FOLDER}"
        if pair >= len(journals):
            journal = f"{journal}/{PAIR_FOLDER}{pair}"
        if pair >= len(ledgers):
            ledger = f"{ledger}/{PAIR_FOLDER}{pair}"
        found.append((journal, ledger))
    notes = [
        f"pair {pair}: journal in {journal}, entry logs in {ledger}"
        for pair, (journal, ledger) in enumerate(found)
        if journal not in journals or ledger not in ledgers
    ]
    return Directories(tuple(one[0] for one in found), tuple(one[1] for one in found), tuple(notes))


def _check_partitions(ledgers: Sequence[str]) -> None:
    """Refuse ledger directories on one file system. Those that do not exist yet count as the folder they go into."""
    seen: dict[int, str] = {}
    for ledger in ledgers:
        place = Path(ledger).absolute()
        while not place.exists():
            place = place.parent
        device = place.stat().st_dev
        if device in seen:
            raise ConfigError(
                f"ledger directories {seen[device]} and {ledger} are on one file system, which"
                " allowMultipleDirsUnderSameDiskPartition=false forbids"
            )
        seen[device] = ledger


# Translates Apache's keys about TLS and SASL (DIGEST-MD5).
#
#

FACTORY = "tlsProviderFactoryClass"
APACHES_OWN = "org.apache.bookkeeper.tls.TLSContextFactory"
AUTHORIZATION = "bookieAuthProviderFactoryClass"
BY_ROLES = "org.apache.bookkeeper.tls.BookieAuthZFactory"
NOTHING = ("", "null", "none")
TYPES = ("PEM", "PKCS12")
VERSIONS = {"TLSv1.2": "1.2", "TLSv1.3": "1.3"}


def apply_tls(builder: ConfigBuilder) -> None:
    """Set [tls] where the file has TLS on. Raises ConfigError for what would not be what it asks for."""
    source = builder.source
    factory = source.text(FACTORY) or ""
    provider = source.text(AUTHORIZATION) or ""
    has_roles = provider == BY_ROLES
    if provider.lower() not in NOTHING and provider not in (BY_ROLES, BY_SASL):
        raise source.fault(
            AUTHORIZATION,
            f"that class cannot run here; of Apache's there are {BY_ROLES} and {BY_SASL}",
        )
    if factory.lower() in NOTHING:
        if has_roles:
            raise _fault(
                builder, FACTORY, f"{AUTHORIZATION} needs TLS, since roles are in certificates"
            )
        return
    if factory != APACHES_OWN:
        raise source.fault(
            FACTORY, f"the class {factory} cannot run here; Apache's own is {APACHES_OWN}"
        )
    builder.put("tls.mode", "prefer", FACTORY)
    _identity(builder)
    if source.boolean("tlsClientAuthentication"):
        _authorities(builder)
    if has_roles:
        _roles(builder)
    if (refresh_s := builder.integer("tlsCertFilesRefreshDurationSeconds")) is not None:
        builder.put("tls.refresh_interval_s", refresh_s, "tlsCertFilesRefreshDurationSeconds")
    if versions := source.items("tlsEnabledProtocols"):
        allowed = sorted(VERSIONS[version] for version in versions if version in VERSIONS)
        if not allowed:
            raise source.fault("tlsEnabledProtocols", "a bookie here speaks TLSv1.2 and TLSv1.3")
        builder.put("tls.version_min", allowed[0], "tlsEnabledProtocols")


def _identity(builder: ConfigBuilder) -> None:
    kind = _type_of(builder, "tlsKeyStoreType")
    store = _path(builder, "tlsKeyStore", "the bookie's key")
    if kind == "PEM":
        builder.put("tls.key_file", store, "tlsKeyStore", "tlsKeyStoreType")
        certificate = _path(builder, "tlsCertificatePath", "the bookie's certificate")
        builder.put("tls.certificate_file", certificate, "tlsCertificatePath")
    else:
        builder.put("tls.certificate_file", store, "tlsKeyStore", "tlsKeyStoreType")
    if (password := builder.source.text("tlsKeyStorePasswordPath")) is not None:
        builder.put("tls.key_password_file", password, "tlsKeyStorePasswordPath")


def _authorities(builder: ConfigBuilder) -> None:
    kind = _type_of(builder, "tlsTrustStoreType")
    store = _path(builder, "tlsTrustStore", "the authorities of clients' certificates")
    builder.put("tls.client_certificates", "require", "tlsClientAuthentication")
    builder.put("tls.ca_file", store, "tlsTrustStore", "tlsTrustStoreType")
    password = builder.source.text("tlsTrustStorePasswordPath")
    if password is not None and kind == "PKCS12":
        builder.put("tls.ca_password_file", password, "tlsTrustStorePasswordPath")


def _roles(builder: ConfigBuilder) -> None:
    source = builder.source
    if not source.boolean("tlsClientAuthentication"):
        raise _fault(
            builder,
            "tlsClientAuthentication",
            f"{AUTHORIZATION} needs it: roles are in certificates",
        )
    roles = source.items("authorizedRoles")
    if not roles:
        raise _fault(builder, "authorizedRoles", f"{AUTHORIZATION} needs at least one")
    builder.put("tls.mode", "require", FACTORY, AUTHORIZATION)
    builder.put("tls.authorized_roles", roles, "authorizedRoles")


def _type_of(builder: ConfigBuilder, key: str) -> str:
    kind = (builder.source.text(key) or "JKS").upper()
    if kind in TYPES:
        return kind
    if kind == "JKS":
        store = builder.source.text(key.removesuffix("Type")) or "STORE.jks"
        target = store.removesuffix(".jks") + ".p12"
        raise _fault(
            builder,
            key,
            "only Java reads JKS (Apache's default); convert the store and set PKCS12: keytool -importkeystore"
            f" -srckeystore {store} -destkeystore {target} -deststoretype PKCS12",
        )
    raise _fault(builder, key, f"{kind} is not known here; there are {' and '.join(TYPES)}")


def _path(builder: ConfigBuilder, key: str, what: str) -> str:
    path = builder.source.text(key)
    if not path:
        raise _fault(builder, key, f"it has to name {what}")
    return path


def _fault(builder: ConfigBuilder, key: str, reason: str) -> ConfigError:
    if key in builder.source.properties:
        return builder.source.fault(key, reason)
    return ConfigError(f"{key} is not set: {reason}")


PROVIDER = "bookieAuthProviderFactoryClass"
BY_SASL = "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
LOGIN_FILE = "java.security.auth.login.config"
SECTION, ALLOWED = "saslJaasBookieSectionName", "saslJaasClientAllowedIds"
ALLOWED_DEFAULT = ".*bookkeeper.*"


def apply_sasl(builder: ConfigBuilder) -> None:
    """Set [authentication] where the file has SASL on. Raises ConfigError."""
    source = builder.source
    if source.text(PROVIDER) != BY_SASL:
        return
    path = source.text(LOGIN_FILE)
    if not path:
        raise ConfigError(
            f"{PROVIDER} is SASL's: name the file of Java's -D{LOGIN_FILE} in the key {LOGIN_FILE}"
        )
    builder.put("authentication.methods", ("sasl",), PROVIDER)
    builder.put("authentication.users_file", path, LOGIN_FILE)
    builder.put("authentication.users_section", source.text(SECTION) or "Bookie", SECTION)
    builder.put("authentication.users_allowed", source.text(ALLOWED) or ALLOWED_DEFAULT, ALLOWED)
    # As Apache's bookie, which does not mind.
    builder.put("authentication.sasl_without_tls", True, PROVIDER)


# Who a bookie is by Apache's keys: the address that it tells, its id, and where it listens.
#

PORT_DEFAULT = 3181
EVERYWHERE = "0.0.0.0"
VERSION_6_TABLE = Path("/proc/net/if_inet6")
_ADDRESS_OF_INTERFACE = 0x8915  # SIOCGIFADDR
_ID = re.compile(r"[a-zA-Z0-9:\-_.]+")


class Machine:
    """The names and interfaces of this machine."""

    def own_address(self) -> str:
        """Return the address that the host's own name has. Raises OSError."""
        return self.address_of(socket.gethostname())

    def interface_address(self, name: str) -> str:
        """Return an interface's address, IPv4 if it has one. Raises OSError."""
        request = struct.pack("256s", name.encode()[:15])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            try:
                answer = fcntl.ioctl(asked.fileno(), _ADDRESS_OF_INTERFACE, request)
                return socket.inet_ntoa(answer[20:24])
            except OSError:
                interface_address = _version_6_address(name)
                if interface_address is None:
                    raise
                return interface_address

    def name_of(self, address: str) -> str:
        """Return the full name of an address, or the address where it has none. Raises OSError."""
        return socket.getfqdn(address)

    def address_of(self, host: str) -> str:
        """Return the first address that a name stands for, IPv4 before IPv6. Raises OSError."""
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        addresses.sort(key=lambda address: address[0] != socket.AF_INET)
        return str(addresses[0][4][0])


@dataclass(frozen=True, slots=True)
class Address:
    """What the keys come to."""

    listen: str
    bookie_id: str
    advertised: str


def settle_address(source: KeySource, network: Machine | None = None) -> Address:
    """Return who the bookie is. Raises ConfigError for what Apache's bookie would refuse, too."""
    network = network or Machine()
    port = source.integer("bookiePort")
    port = PORT_DEFAULT if port is None else port
    if not 0 <= port <= 65_535:
        raise source.fault("bookiePort", f"{port} is not a port")
    given_id = source.text("bookieId")
    if given_id is not None and (not _ID.fullmatch(given_id) or given_id.lower() == "readonly"):
        raise source.fault(
            "bookieId", f"{given_id!r} cannot be a bookie's id: letters, digits and :-_. only"
        )
    if not port:
        if not source.boolean("allowEphemeralPorts"):
            raise source.fault("bookiePort", "port 0 needs allowEphemeralPorts=true")
        if given_id is None:
            raise source.fault(
                "bookiePort",
                "port 0 needs a bookieId: ledgers name bookies for good, and the port changes with every start",
            )
    interface = source.text("listeningInterface")
    host = source.text("advertisedAddress")
    own = None
    try:
        if interface is not None:
            own = network.interface_address(interface)
        if host is None:
            host = _own_host(source, network, own or network.own_address())
            _check_reachable(source, host, network.address_of(host))
    except OSError as error:
        what = f"interface {interface}" if interface and own is None else "the host's own name"
        raise ConfigError(
            f"{what}: no address found ({error.strerror or error}): correct listeningInterface, or set"
            " advertisedAddress to the address that clients reach this bookie by"
        ) from error
    return Address(f"{_bracketed(own or EVERYWHERE)}:{port}", given_id or f"{host}:{port}", host)


def _check_reachable(source: KeySource, host: str, address: str) -> None:
    """Refuse an address that nobody chose and no other machine reaches."""
    if is_loopback(address.partition("%")[0]) and not source.boolean("allowLoopback"):
        raise ConfigError(
            f"this bookie's address would be {host} ({address}), which no other machine reaches: set listeningInterface"
            " or advertisedAddress, or allowLoopback=true for a cluster on one machine"
        )


def _own_host(source: KeySource, network: Machine, address: str) -> str:
    if not source.boolean("useHostNameAsBookieID"):
        return address
    name = network.name_of(address)
    if name == address:
        raise ConfigError(
            f"useHostNameAsBookieID: {address} has no name: correct the name service or set bookieId"
        )
    return name.split(".", 1)[0] if source.boolean("useShortHostName") else name


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _version_6_address(name: str) -> str | None:
    try:
        lines = VERSION_6_TABLE.read_text().splitlines()
    except OSError:
        return None
    found = [
        ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))
        for line in lines
        if line.split()[-1] == name
    ]
    found.sort(key=lambda one: one.is_link_local)
    return str(found[0]) if found else None

"""Translates a file of Apache's into a `BookieConfig`: single keys by the table, keys that belong together by a rule.

A key that the file does not set leaves fastbk's own default in place, not Apache's. Only the bookie's id and its
address follow Apache's defaults. A bookie with such a file may listen beyond loopback.
"""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, Any

import msgspec

from fastbk.apache.configuration import address, directories
from fastbk.apache.configuration.config_builder import ConfigBuilder
from fastbk.apache.configuration.sasl import apply_sasl
from fastbk.apache.configuration.sizes import (
    apply_caches,
    apply_floors,
    apply_frames,
    apply_journal_size,
    apply_pending,
    apply_rings,
    fit,
    fit_memory,
)
from fastbk.apache.configuration.tls import apply_tls
from fastbk.errors import ConfigError
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.checks import check

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.apache.configuration.address import Machine
    from fastbk.apache.configuration.report import Report
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
        settled = address.settle(source, network)
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
    settled = directories.settle(builder.source)
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

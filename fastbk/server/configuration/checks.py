"""What no single setting can see is wrong: the settings of a file against each other and the machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastbk.config import (
    is_every_machines_own,
    is_loopback,
    resolves_to_loopback_only,
    split_address,
)
from fastbk.errors import ConfigError
from fastbk.security.settings import (
    HTTP_CURE,
    AuthenticationSettings,
    authenticates,
    authentication_problems,
    http_port,
    http_tls,
    keeps_strangers_out,
    requires_authentication,
    server_tls,
)
from fastbk.server import process_table
from fastbk.server.configuration.settings import quota_problems
from fastbk.server.disks import space_thresholds
from fastbk.units import GIB, KIB, MIB, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.configuration.settings import BookieSettings

COLD_FRAME_BYTES = 16 * KIB
"""Hellos and their like are answered from a buffer of this size."""
RECORD_BYTES_MAX = 31 * MIB
"""A journal's batch is at most 64 MiB: two of the largest records, and headers."""
TIMEOUT_MS_MAX = 1_000_000
PAIRS_MAX = 8
"""Maximum pairs, as in `boundary/base.h`, which needs Linux; a configuration may be checked anywhere."""


def check(config: BookieConfig) -> None:
    """Refuse what no single field can see is wrong. Raises ConfigError with the first problem."""
    for problem in _problems(config):
        raise ConfigError(problem)


def check_processors(config: BookieConfig) -> None:
    """Refuse processors that this machine does not have, or does not give to this process. Raises ConfigError."""
    usable = os.sched_getaffinity(0)
    if missing := sorted(set(config.bookie.processors) - usable):
        raise ConfigError(
            f"[bookie] processors: {', '.join(map(str, missing))} cannot be used here, but"
            f" {', '.join(map(str, sorted(usable)))}"
        )


def check_security_files(config: BookieConfig) -> None:
    """Refuse files of [tls] and [authentication] that are not good. Raises ConfigError."""
    if config.authentication != AuthenticationSettings():  # 100 ms that other starts do not pay
        from fastbk.security.auth_files import check_files

        check_files(config.authentication)
    if config.tls.mode != "off":
        server_tls(config.tls)
    http_tls(config.http, config.tls)


def _problems(config: BookieConfig) -> Iterator[str]:
    if not config.metadata.uri:
        yield "[metadata] uri is missing: the bookie needs it"
    else:
        yield from _uri_problems(config.metadata.uri)
    yield from _directory_problems(config)
    host, port = split_address(config.bookie.listen, "[bookie] listen")
    is_allowed = config.bookie.allow_unauthenticated_remote
    is_closed = authenticates(config.tls) or keeps_strangers_out(config.authentication, config.tls)
    if not is_loopback(host) and not is_allowed and not is_closed:
        yield (
            f"[bookie] listen = {config.bookie.listen} is reachable from other machines and strangers are"
            ' not kept out: listen on 127.0.0.1, or set [tls] mode and client_certificates to "require", or'
            ' [tls] mode to "require" and [authentication] methods, or'
            " [bookie] allow_unauthenticated_remote = true"
        )
    yield from _registration_problems(config, host)
    yield from authentication_problems(config.authentication, config.authorization, config.tls)
    yield from quota_problems(config.quotas, has_names=bool(config.authentication.methods))
    if config.tls.authorized_roles and not authenticates(config.tls):
        yield '[tls] authorized_roles needs mode = "require" and client_certificates = "require"'
    if config.tls.mode == "off" and config.tls.certificate_file and not config.http.tls:
        yield '[tls] names a certificate and is off: set mode = "prefer" or "require"'
    if not port and not config.bookie.id:
        yield "[bookie] listen has port 0: give the bookie an id, which must not change"
    if len(config.bookie.id.encode()) > 127:
        yield "[bookie] id is longer than 127 bytes"
    yield from _place_problems(config.bookie)
    yield from _pause_problems(config.bookie)
    yield from _http_problems(config)
    if config.metadata.zookeeper_file and not config.metadata.uri.startswith("zk"):
        yield "[metadata] zookeeper_file is for metadata in ZooKeeper"
    if config.audit.file and not os.path.isabs(config.audit.file):
        yield "[audit] file must be an absolute path"
    limits = config.limits
    rings = (("add_ring_size", limits.add_ring_size_bytes, 3),
             ("reply_ring_size", limits.reply_ring_size_bytes, 2),
             ("request_ring_size", limits.request_ring_size_bytes, 0))  # fmt: skip
    for name, size_bytes, frames in rings:
        if size_bytes & (size_bytes - 1):
            yield f"[limits] {name} must be a power of two"
        if size_bytes < frames * limits.frame_size_bytes_max:
            yield f"[limits] {name} must hold {frames} frames of frame_size_max"
    if config.journal.file_size_bytes * 2 > config.journal.limit_bytes:
        yield "[journal] limit must hold at least two files of file_size"
    if config.gc.minor_ratio_max > config.gc.major_ratio_max:
        yield "[gc] minor_ratio_max must not be above major_ratio_max"
    yield from _too_small(config)
    yield from space_thresholds.problems(config.disk, config.journal)
    needed_bytes, total_bytes = (
        process_table.memory_bytes(config),
        process_table.memory_total_bytes(config),
    )
    if needed_bytes > total_bytes:
        yield (
            f"the memory settings add up to {format_size(needed_bytes)}, above"
            f" [bookie] memory_total = {format_size(total_bytes)}: shrink caches and rings or raise it"
        )


def _http_problems(config: BookieConfig) -> Iterator[str]:
    """Yield why the pages could not be served as `[http]` says."""
    if config.http.listen:
        http_host, _ = split_address(config.http.listen, "[http] listen")
        pages = http_port(
            config.http,
            http_host,
            config.authentication,
            is_permitted=config.bookie.allow_unauthenticated_remote
            and not requires_authentication(config.authentication, config.tls),
        )
        if problem := pages.problem(HTTP_CURE):
            yield problem
    if config.http.changing_roles and not (
        config.http.tls and config.http.client_certificates != "none"
    ):
        yield "[http] changing_roles needs tls = true and client_certificates: roles are in certificates"


def _registration_problems(config: BookieConfig, host: str) -> Iterator[str]:
    """Yield why other machines could not use what the bookie would register in a ZooKeeper of another machine."""
    if config.metadata.uri.startswith("sqlite:"):
        return
    from fastbk.meta.uri import is_zookeeper, parse_zookeeper

    try:
        servers = (
            parse_zookeeper(config.metadata.uri).servers
            if is_zookeeper(config.metadata.uri)
            else ()
        )
    except ConfigError:
        return  # said already
    if all(is_every_machines_own(split_address(one, "[metadata] uri")[0]) for one in servers):
        return
    there = config.bookie.advertised or host
    # What a name means to others their name service says: by the one of this machine only the address that the bookie
    # listens on is judged. Debian gives a machine's own name 127.0.1.1 in its /etc/hosts, which others do not have.
    if is_every_machines_own(there) or (
        not config.bookie.advertised and resolves_to_loopback_only(host)
    ):
        yield (
            f"[bookie] listen = {config.bookie.listen}: clients and other bookies would find the address {there} in"
            " ZooKeeper, which means their own machine: set [bookie] advertised to an address of this machine that"
            " they reach, or listen there"
        )
    elif is_every_machines_own(host) and not config.bookie.id:
        yield (
            f"[bookie] id is missing, and {config.bookie.listen} is no id: each machine has that address. Set [bookie]"
            f" id to a name that never changes, such as {there}:3181"
        )


def _uri_problems(uri: str) -> Iterator[str]:
    """Yield what the start would say of the URI, by the same code."""
    if uri.startswith("sqlite:/") and uri.strip("/") != "sqlite:":
        return  # without the import below, which takes 30 ms of a start
    from fastbk.meta.uri import check_uri, is_gateway

    if is_gateway(uri):
        yield "[metadata] uri names a gateway: a bookie needs the metadata store itself (`zk://...`)"
        return
    try:
        check_uri(uri)
    except ConfigError as error:
        yield f"[metadata] uri: {error}"


def _directory_problems(config: BookieConfig) -> Iterator[str]:
    journals, ledgers = config.journal.all_directories, config.ledgers.all_directories
    for name, section in (("journal", config.journal), ("ledgers", config.ledgers)):
        if not all(section.all_directories):
            yield f"[{name}] directory is missing: the bookie needs it"
        if section.directory and section.directories:
            yield f"[{name}] has a directory and directories: give one of the two"
    if len(journals) != len(ledgers):
        yield (
            f"[journal] directories names {len(journals)}, [ledgers] directories {len(ledgers)}: each journal"
            " needs the directory of its index, in the same order"
        )
    if len(journals) > PAIRS_MAX:
        yield f"[journal] directories names {len(journals)}: at most {PAIRS_MAX}"
    everywhere = [os.path.abspath(directory) for directory in (*journals, *ledgers)]
    if len(set(everywhere)) < len(everywhere):
        yield (
            "the directories of [journal] and [ledgers] must be different ones: on one disk put the journal into a"
            " folder of its own, like LEDGERS/journal"
        )


def _too_small(config: BookieConfig) -> Iterator[str]:
    """What has to hold several of something else; below that C would refuse to start."""
    frame_bytes, batch_bytes = (
        config.limits.frame_size_bytes_max,
        config.journal.batch_size_bytes_max,
    )
    if not COLD_FRAME_BYTES <= frame_bytes <= RECORD_BYTES_MAX:
        yield "[limits] frame_size_max must be 16KiB to 31MiB"
    if batch_bytes > RECORD_BYTES_MAX:
        yield "[journal] batch_size_max must be at most 31MiB"
    sizes = (
        ("[journal] first_file_size", config.journal.first_file_size_bytes, 4),
        ("[journal] file_size", config.journal.file_size_bytes, 4),
        ("[network] partial_frames_max", config.network.partial_frames_bytes_max, 2),
        ("[network] reply_backlog_max", config.network.reply_backlog_bytes_max, 1),
        # A batch of the smallest entries takes 9/4 of its bytes there, and is taken in whole.
        ("[ledgers] write_cache_size", config.ledgers.write_cache_size_bytes, 3),
    )
    for name, size_bytes, times in sizes:
        if size_bytes < times * frame_bytes:
            yield (
                f"{name} must hold {times} frames of [limits] frame_size_max,"
                f" {format_size(times * frame_bytes)}, and has {format_size(size_bytes)}"
            )
        if size_bytes < times * batch_bytes and not name.startswith("[network]"):
            yield (
                f"{name} must hold {times} batches of [journal] batch_size_max,"
                f" {format_size(times * batch_bytes)}, and has {format_size(size_bytes)}"
            )
    if config.network.reply_backlog_bytes_max >= GIB:
        yield "[network] reply_backlog_max must be below 1GiB"
    if config.network.unread_replies_bytes_max < config.network.reply_backlog_bytes_max:
        yield "[network] unread_replies_max must not be below reply_backlog_max"
    for name in ("hello_timeout_ms", "frame_timeout_ms", "write_timeout_ms"):
        if getattr(config.network, name) > TIMEOUT_MS_MAX:
            yield f"[network] {name.removesuffix('_ms')} must be at most 1000s"


def _pause_problems(bookie: BookieSettings) -> Iterator[str]:
    if bookie.crash_loop_pause_max_ms < bookie.crash_loop_pause_min_ms:
        yield "[bookie] crash_loop_pause_max must not be below crash_loop_pause_min"


def _place_problems(bookie: BookieSettings) -> Iterator[str]:
    """Yield what is wrong with `[bookie] location` and `labels`."""
    if not bookie.location and not bookie.labels:
        return
    from fastbk.placement.config import (  # here: a start without them is faster
        check_labels,
        check_location,
    )

    try:
        if bookie.location:
            check_location(bookie.location)
        check_labels(bookie.labels)
    except ConfigError as error:
        yield f"[bookie] {error.message}"

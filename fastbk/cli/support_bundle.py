"""`fastbk support-bundle -o FILE`: one file without secrets for those who help."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_json, add_metadata, note, opened_store, print_answer
from fastbk.cli.terminal import seconds
from fastbk.errors import ConfigError, Error
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.admin.support_bundle import SupportBundle
    from fastbk.server.configuration.bookie_config import BookieConfig

CLUSTER_COMMANDS = {
    "cluster/status.json": ("cluster", "status", "--json"),
    "cluster/bookies.json": ("cluster", "bookies", "--json"),
    "cluster/under-replicated.json": ("cluster", "under-replicated", "--json"),
    "cluster/heal.json": ("cluster", "heal", "--json"),
    "cluster/metadata.json": ("metadata", "show", "--json"),
    "cluster/hold.json": ("metadata", "status", "--json"),
    "cluster/maintenance.json": ("bookie", "maintenance", "--json"),
}
JOURNAL_LINES = 20_000
EVENT_FILES_MAX = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.description = (
        "Collect what somebody needs who has to understand a cluster from afar: versions, states, settings, metrics,"
        " events, the findings of `fastbk doctor`, and the ends of logs. Bookies may be down. Secrets are removed: of"
        " settings only those that are known to be harmless are in it. Look into the file before you send it."
    )
    name = time.strftime("fastbk-support-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime())
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path(name),
        metavar="FILE",
        help="the file (fastbk-support-TIME.tar.gz)",
    )
    parser.add_argument(
        "--config", type=Path, action="append", default=[], metavar="FILE",
        help="a bookie of this machine, also one that is down: its settings, events, and `doctor`; again for each",
    )  # fmt: skip
    parser.add_argument(
        "--log",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a log whose end goes in; again for each",
    )
    parser.add_argument(
        "--page", action="append", default=[], metavar="HOST:PORT",
        help="also of the janitor, healer or bookie with this page; https://HOST:PORT with TLS; again for each",
    )  # fmt: skip
    parser.add_argument(
        "--patience",
        type=seconds,
        default=120.0,
        metavar="SECONDS",
        help="longest time to collect (120)",
    )
    add_metadata(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Collect and write. Raises StorageError, ConfigError."""
    from fastbk.admin.support_bundle import (
        Redactor,
        SupportBundle,
        known_secrets,
        secret_files,
        versions,
    )

    if options.output.exists():
        raise ConfigError(f"{options.output} exists: choose another name by -o")
    configs = [(path, _loaded(path)) for path in options.config]
    files = [path for _, one in configs if not isinstance(one, str) for path in secret_files(one)]
    redactor = Redactor(known_secrets(os.environ, [*files, *_files_of_environment()]))
    bundle = SupportBundle(redactor, deadline_s=options.patience)
    bundle.add_json("versions.json", versions())
    if not configs:
        bundle.add_own_command("doctor.jsonl", "doctor", "--json")
    for number, (path, config) in enumerate(configs, 1):
        _add_bookie_here(bundle, f"here/{number}", path, config)
    for number, path in enumerate(options.log, 1):
        bundle.add_file(f"logs/{number}-{path.name}", path)
    journal = (
        "journalctl",
        "--no-pager",
        "-q",
        "-o",
        "cat",
        "-n",
        str(JOURNAL_LINES),
        "-u",
        "fastbk-*",
    )
    bundle.add_command("logs/systemd.log", journal)
    for address in options.page:
        bundle.add_service(address)
    _add_cluster(bundle, options)
    size_bytes = bundle.write(options.output)
    for name, why in bundle.missing.items():
        note(f"missing or not whole: {name}: {redactor.text(why)}")
    facts = {"file": str(options.output), "bytes": size_bytes, "missing": len(bundle.missing)}
    text = f"{options.output}: {format_size(size_bytes)}"
    if bundle.missing:
        text += f", {format_count(len(bundle.missing), 'part')} missing or not whole"
    return print_answer(options, facts, f"{text}. Look into it before you send it")


def _loaded(path: Path) -> BookieConfig | str:
    """Return a bookie's settings, or why they cannot be read."""
    from fastbk.server.configuration import bookie_file

    try:
        return bookie_file.load(path)
    except ConfigError as error:
        return str(error)


def _files_of_environment() -> list[str]:
    """Return the files of secrets that variables name, and those of the ZooKeeper file."""
    from fastbk.admin.support_bundle import files_in
    from fastbk.cli.context import VARIABLES

    public = ("metadata", "user", "tls_ca_file", "tls_certificate_file")
    named = {
        os.environ.get(variable, "") for name, variable in VARIABLES.items() if name not in public
    }
    zookeeper = os.environ.get(VARIABLES["zookeeper_file"], "")
    return [path for path in named if path] + (files_in(zookeeper) if zookeeper else [])


def _add_bookie_here(
    bundle: SupportBundle, folder: str, path: Path, config: BookieConfig | str
) -> None:
    """Add what the files of one bookie of this machine say."""
    from fastbk.admin.support_bundle import allowed_settings
    from fastbk.observe.event_log import events_path

    bundle.add_own_command(f"{folder}/doctor.jsonl", "doctor", "--json", "--config", str(path))
    if isinstance(config, str):
        bundle.missing[f"{folder}/settings.json"] = config
        return
    bundle.add_json(f"{folder}/settings.json", {"file": str(path), **allowed_settings(config)})
    events = events_path(config.ledgers.all_directories[0])
    found = [
        events,
        *(events.with_name(f"{events.name}.{number}") for number in range(1, EVENT_FILES_MAX)),
    ]
    for file in [one for one in found if one.exists()]:
        bundle.add_file(f"{folder}/{file.name}", file)


def _add_cluster(bundle: SupportBundle, options: argparse.Namespace) -> None:
    """Add what the cluster and its bookies say, as far as they answer."""
    from fastbk.meta.uri import URI_VARIABLE

    if options.metadata:
        os.environ[URI_VARIABLE] = options.metadata
    if not (uri := os.environ.get(URI_VARIABLE, "")):
        bundle.missing["cluster"] = "no cluster is named: give --metadata URI or --context NAME"
        return
    try:
        with opened_store(uri) as store:
            registrations = store.list_bookies()
            known = [identity.bookie_id for identity in store.list_identities()]
    except (Error, OSError) as error:
        # Each command would wait for metadata again.
        reason = " ".join(str(error).split())
        bundle.missing["cluster"] = (
            f"{reason}. Without metadata, --page HOST:PORT adds what a bookie's page says"
        )
        return
    for name, words in CLUSTER_COMMANDS.items():
        bundle.add_own_command(name, *words)
    bundle.add_bookies(registrations, uri, known)

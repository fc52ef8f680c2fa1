"""Options and output that several commands share."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.units import format_entries, format_size

if TYPE_CHECKING:
    import argparse


DIGESTS = ("crc32c", "crc32", "hmac", "dummy")


def digest_name(text: str) -> str:
    """Return the name of a digest as all of fastbk writes it; `none` is accepted for Apache's `dummy`."""
    return "dummy" if text.lower() == "none" else text.lower()


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument(
        "--json", action="store_true", help="answer in JSON on stdout; messages go to stderr"
    )


def add_metadata(parser: argparse.ArgumentParser) -> None:
    """Add --metadata."""
    parser.add_argument(
        "--metadata", metavar="URI", help="which cluster; default: the variable FASTBK_METADATA"
    )


def metadata_uri(options: argparse.Namespace) -> str:
    """Return the cluster's metadata URI. Raises ConfigError that says how to give one."""
    from fastbk.meta.uri import uri_or_default

    return uri_or_default(options.metadata or None, "give --metadata URI")


def need_linux(what: str) -> None:
    """Raise ConfigError where bookies cannot run, naming what can."""
    if sys.platform != "linux":
        raise ConfigError(
            f"{what} runs bookies, and those run on Linux only: give the URI of a cluster on Linux to"
            " the client's commands (`fastbk ledger`) instead"
        )


def print_json(answer: object) -> None:
    """Print one JSON document on a line of its own."""
    import json

    print(json.dumps(answer, ensure_ascii=False))


def note(text: str) -> None:
    """Tell the person at the terminal something that is not the answer."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """A line on stderr that is overwritten on a terminal, a few times a second, and absent
    elsewhere.
    """

    EVERY_S = 0.2

    def __init__(self, what: str, total_bytes: int | None = None) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._shown = sys.stderr.isatty()
        self._began_s = time.monotonic()
        self._next_s = self._began_s + self.EVERY_S

    def at(self, entries: int, size_bytes: int) -> None:
        """Say how far it is; cheap when it is not yet time for a new line."""
        now_s = time.monotonic()
        if not self._shown or now_s < self._next_s:
            return
        self._next_s = now_s + self.EVERY_S
        rate = size_bytes / max(1e-9, now_s - self._began_s)
        share = f" of {format_size(self._total_bytes)}" if self._total_bytes else ""
        text = f"{self._what}: {format_entries(entries)}, {format_size(size_bytes)}{share}, "
        print(f"\r\x1b[K{text}{format_size(int(rate))}/s", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

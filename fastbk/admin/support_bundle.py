"""A support bundle: what somebody needs who has to understand a cluster from afar, in one file without secrets.

    bundle = SupportBundle(Redactor(known), size_bytes_max=..., deadline_s=...)
    bundle.add_json("versions.json", versions())
    bundle.add_bookies(registrations, uri)
    bundle.write(path)

Every part is bounded in size, and the whole in size and time. A part that cannot be had is missing, and `manifest.json`
says why: a bundle is wanted when something is down. All text goes through the redactor.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import fastbk
from fastbk.admin.page_client import BookieSilent, client_at, client_of
from fastbk.admin.redaction import REMOVED, allowed_setting
from fastbk.errors import Error, StorageError
from fastbk.observe.event_record import LIMIT_MAX, Query
from fastbk.safe_files import FILE_MODE, replaced

if TYPE_CHECKING:
    from fastbk.admin.page_client import AdminClient
    from fastbk.admin.redaction import Redactor
    from fastbk.meta.api import BookieRegistration
    from fastbk.model.ids import BookieId

SIZE_BYTES_MAX = 64 << 20
"""Of all parts, before compression."""
PART_BYTES_MAX = 4 << 20
DEADLINE_S = 120.0
PAGE_TIMEOUT_S = 5.0
PAGES_AT_ONCE = 16
BOOKIES_MAX = 200
SETTINGS_PAGE = "/api/v1/config/server_config"
PAGES = ("/info", "/disks", "/gc", "/slow", "/scrub", "/readyz", "/log_level")
PACKAGES = ("cffi", "cryptography", "flatbuffers", "kazoo", "lz4", "msgspec", "PyJWT", "uvloop", "zstandard", "pyspark",
            "pyarrow", "textual", "starlette")  # fmt: skip


class SupportBundle:
    """The parts of one bundle. Threads may add parts at once.

    Attributes:
        missing: parts that are not there, or not whole, and why.
    """

    def __init__(
        self,
        redactor: Redactor,
        *,
        size_bytes_max: int = SIZE_BYTES_MAX,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """`deadline_s`: seconds from now on, after which no part is begun and none is waited for."""
        self.missing: dict[str, str] = {}
        self._redactor = redactor
        self._room_bytes = size_bytes_max
        self._end_s = time.monotonic() + deadline_s
        self._parts: dict[str, bytes] = {}
        self._adding = threading.Lock()
        self._is_closed = False

    @property
    def left_s(self) -> float:
        """How much time is left."""
        return max(0.0, self._end_s - time.monotonic())

    def add_json(self, name: str, value: object) -> None:
        """Add what JSON can hold."""
        self._add(
            name,
            json.dumps(self._redactor.value(msgspec.to_builtins(value)), indent=1, default=str)
            + "\n",
        )

    def add_text(self, name: str, text: str) -> None:
        """Add text, line by line; of a long one the end."""
        self._add(
            name,
            "".join(f"{self._redactor.line(line)}\n" for line in self._redactor_input(name, text)),
        )

    def add_file(self, name: str, path: Path) -> None:
        """Add the end of a file of lines, as a log."""
        try:
            with path.open("rb") as file:
                size_bytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, size_bytes - PART_BYTES_MAX))
                data = file.read(PART_BYTES_MAX)
        except OSError as error:
            self.missing[name] = f"{path}: {error.strerror}"
            return
        if size_bytes > PART_BYTES_MAX:
            self.missing[name] = (
                f"only the last {PART_BYTES_MAX >> 20} MiB of {size_bytes >> 20} MiB"
            )
            data = data.partition(b"\n")[2]
        self.add_text(name, data.decode("utf-8", "replace"))

    def add_command(self, name: str, words: Sequence[str], timeout_s: float = 30.0) -> None:
        """Add what a program prints, of both streams; it is killed at the timeout, or when the time is over."""
        limit_s = min(timeout_s, self.left_s)
        try:
            done = subprocess.run(
                [*words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s,
                check=False,
            )  # fmt: skip
        except FileNotFoundError:
            self.missing[name] = f"there is no {words[0]}"
            return
        except subprocess.TimeoutExpired as error:
            self.missing[name] = f"not done within {limit_s:.0f} s"
            self.add_text(name, (error.stdout or b"").decode("utf-8", "replace"))
            return
        self.add_text(name, done.stdout[-PART_BYTES_MAX:].decode("utf-8", "replace"))

    def add_own_command(self, name: str, *words: str) -> None:
        """Add what a command of fastbk prints."""
        self.add_command(name, [sys.executable, "-P", "-m", "fastbk.cli", *words])

    def add_bookies(
        self,
        registrations: Sequence[BookieRegistration],
        uri: str,
        known: Collection[BookieId] = (),
    ) -> None:
        """Add what each bookie that is registered says of itself, several at a time.

        Those of `known` that are not registered are missing.
        """
        for bookie_id in sorted(set(known) - {one.service.bookie_id for one in registrations}):
            self.missing[_folder(bookie_id)] = (
                "it is not registered: it is down; on its machine, --config FILE adds its settings, events and doctor"
            )
        pool = ThreadPoolExecutor(PAGES_AT_ONCE, thread_name_prefix="support-bundle")
        started = {}
        for registration in registrations[:BOOKIES_MAX]:
            started[pool.submit(self._add_bookie, registration, uri)] = (
                registration.service.bookie_id
            )
        for one in registrations[BOOKIES_MAX:]:
            self.missing[_folder(one.service.bookie_id)] = f"more than {BOOKIES_MAX} bookies"
        _, late = wait(started, timeout=self.left_s)
        for task in late:
            task.cancel()
            self.missing[_folder(started[task])] = "not all of it within the time of the bundle"
        pool.shutdown(wait=False, cancel_futures=True)

    def write(self, path: Path) -> int:
        """Write the file, which only its owner can read; return its size in bytes. Raises StorageError."""
        with self._adding:
            self._is_closed = True
        made = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        manifest = {
            "made": made,
            "software": f"fastbk {fastbk.__version__}",
            "parts": {name: len(data) for name, data in sorted(self._parts.items())},
            "missing": self.missing,
            "removed_text": REMOVED,
        }
        text = json.dumps(self._redactor.value(manifest), indent=1) + "\n"
        try:
            with replaced(path) as draft:
                draft.chmod(FILE_MODE)
                with tarfile.open(draft, "w:gz") as archive:
                    for name, data in [
                        ("manifest.json", text.encode()),
                        *sorted(self._parts.items()),
                    ]:
                        entry = tarfile.TarInfo(f"fastbk-support-{made}/{name}")
                        entry.size, entry.mtime, entry.mode = len(data), int(time.time()), FILE_MODE
                        archive.addfile(entry, io.BytesIO(data))
            return path.stat().st_size
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}: choose another place by -o"
            ) from error

    def _redactor_input(self, name: str, text: str) -> list[str]:
        """Return a text's lines. Secrets of several lines, as keys, are removed first."""
        if len(text) > PART_BYTES_MAX:
            self.missing[name] = f"only the last {PART_BYTES_MAX >> 20} MiB"
            text = text[-PART_BYTES_MAX:].partition("\n")[2]
        lines = text.splitlines()
        if "PRIVATE KEY" in text:
            lines = self._redactor.text(text).splitlines()
        return lines

    def _add(self, name: str, text: str) -> None:
        data = text.encode("utf-8", "replace")
        with self._adding:
            if self._is_closed:
                return
            if len(data) > self._room_bytes:
                self.missing[name] = f"its {len(data):,} bytes are more than there is room for"
                return
            self._room_bytes -= len(data)
            self._parts[name] = data

    def _add_bookie(self, registration: BookieRegistration, uri: str) -> None:
        folder = _folder(registration.service.bookie_id)
        try:
            client = client_of(registration, uri, PAGE_TIMEOUT_S)
        except Error as error:
            self.missing[folder] = str(error)
            return

        def page_part(page: str) -> Callable[[], None]:
            return lambda: self.add_json(
                f"{folder}{page}.json",
                client.state(page) if page == "/readyz" else client.get(page),
            )

        parts = {f"{folder}{page}.json": page_part(page) for page in PAGES}
        parts[f"{folder}/settings.json"] = lambda: self.add_json(
            f"{folder}/settings.json", _settings(client)
        )
        self._add_parts(folder, {**parts, **self._common_parts(folder, client)})

    def add_service(self, address: str) -> None:
        """Add metrics and events of a janitor, healer or bookie; `address`: HOST:PORT. Raises ConfigError."""
        client = client_at(address, "--page", PAGE_TIMEOUT_S)
        folder = _folder(address.rpartition("//")[2], "services")
        self._add_parts(folder, self._common_parts(folder, client))

    def _common_parts(self, folder: str, client: AdminClient) -> dict[str, Callable[[], None]]:
        """Return the parts that each process with a page has."""
        return {
            f"{folder}/metrics.txt": lambda: self.add_text(
                f"{folder}/metrics.txt", client.text("/metrics")
            ),
            f"{folder}/events.jsonl": lambda: self._add_events(f"{folder}/events.jsonl", client),
        }

    def _add_parts(self, folder: str, parts: Mapping[str, Callable[[], None]]) -> None:
        """Add parts of one process. One that does not answer at first is not requested for the others."""
        for number, (name, add) in enumerate(parts.items()):
            if not self.left_s:
                self.missing[name] = "the time of the bundle was over"
                continue
            try:
                add()
            except (Error, OSError) as error:
                reason = " ".join(str(error).split())
                if number == 0 and isinstance(error, BookieSilent):
                    self.missing[folder] = reason
                    return
                self.missing[name] = reason

    def _add_events(self, name: str, client: AdminClient) -> None:
        page = client.get("/events", Query(limit=LIMIT_MAX, is_newest=True).parameters())
        self.add_text(name, "\n".join(json.dumps(event) for event in page.get("events", ())))


def _folder(name: str, kind: str = "bookies") -> str:
    """Return the folder of a bookie or service in the bundle, which no name can lead out of."""
    return f"{kind}/" + "".join(
        one if one.isalnum() or one in "-_." else "_" for one in name
    ).lstrip(".")


def _settings(client: AdminClient) -> dict[str, object]:
    """Return the settings of a running bookie that may leave; Apache's names for the same ones are left out."""
    return {
        name: allowed_setting(name, value)
        for name, value in client.get(SETTINGS_PAGE).items()
        if "." in name
    }


def versions() -> dict[str, object]:
    """Return what runs here: fastbk, Python, packages, the system."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "fastbk": fastbk.__version__,
        "python": sys.version,
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "processors": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "packages": packages,
    }

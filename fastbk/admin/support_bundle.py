"""A support bundle: what somebody needs who has to understand a cluster from afar, in one file without secrets.

    bundle = SupportBundle(Redactor(known), size_bytes_max=..., deadline_s=...)
    bundle.add_json("versions.json", versions())
    bundle.add_bookies(registrations, uri)
    bundle.write(path)

Every part is bounded in size, and the whole in size and time. A part that cannot be had is missing, and `manifest.json`
says why: a bundle is wanted when something is down.

All text goes through the `Redactor`, which takes secrets out in two ways. What is known as a secret, because a file of
secrets or a variable holds it, is removed wherever it stands. What looks like one (a private key, a signed token, the
value of a `password=`) is removed without being known. Settings do not go through it alone: `allowed_settings` names
those that may leave.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import fastbk
from fastbk.admin.page_client import BookieSilent, client_at, client_of
from fastbk.errors import Error, StorageError
from fastbk.observe.events import LIMIT_MAX, Query
from fastbk.safe_files import FILE_MODE, replaced
from fastbk.server.configuration.bookie_config import BookieConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastbk.admin.page_client import AdminClient
    from fastbk.meta.api import BookieRegistration
    from fastbk.model.ids import BookieId

SIZE_BYTES_MAX = 64 << 20
"""Maximum bytes of all parts, before compression."""
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


# Taking secrets out of text and JSON. Pure, but for `known_secrets`, which reads files.

REMOVED = "(removed)"
LEFT_OUT = "(left out)"
SECRET_BYTES_MAX = 1 << 20
SECRET_CHARACTERS_MIN = 4
"""A shorter content of a file is too common in text to be removed from it."""
PIECE_CHARACTERS_MIN = 12
QUOTED_CHARACTERS_MIN = 8

_NAMES = r"pass(?:word|wd|phrase)?|secret|token|credentials?|authorization|api_?key|private_?key"
_SENSITIVE = re.compile(rf"(?:^|[_\-.])(?:{_NAMES})s?$|masterKey$", re.IGNORECASE)
_PATTERNS = (
    (
        re.compile(
            r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        "",
    ),
    (re.compile(r"\beyJ[\w-]{4,}\.[\w-]{4,}(?:\.[\w-]*)?"), ""),
    (re.compile(r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"), ""),
    (re.compile(r"(?i)(\bBearer\s+)[\w.~+/=-]{8,}"), r"\1"),
    (
        # What stands before a "_" is looked for from the beginning of a word only: a line may be one long word.
        re.compile(
            rf"(?i)((?:(?<!\w)\w*_|(?<![A-Za-z]))(?:{_NAMES})\\?[\"']?\s*[=:]\s*\\?[\"']?)[^\s,;\"'\\&)}}]+"
        ),
        r"\1",
    ),
    (re.compile(r"(\bdigest:[^:\s]+:)[A-Za-z0-9+/]{27}="), r"\1"),
)
"""What looks like a secret, and what stays of it."""


class Redactor:
    """Removes secrets. `known`: contents of files of secrets, whole or in parts."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        found = sorted(
            {one for one in known if len(one) >= SECRET_CHARACTERS_MIN}, key=len, reverse=True
        )
        self._known = re.compile("|".join(map(re.escape, found))) if found else None

    def text(self, text: str) -> str:
        """Return text without secrets."""
        if self._known is not None:
            text = self._known.sub(REMOVED, text)
        for pattern, kept in _PATTERNS:
            text = pattern.sub(kept + REMOVED, text)
        return text

    def value(self, value: object) -> object:
        """Return what JSON holds without secrets: also not in the names of an object, nor under telling names."""
        if isinstance(value, dict):
            return {
                self.text(str(name)): REMOVED
                if one and self._is_hidden(str(name), one)
                else self.value(one)
                for name, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return self.text(value) if isinstance(value, str) else value

    @staticmethod
    def _is_hidden(name: str, value: object) -> bool:
        return is_sensitive(name) and not isinstance(value, bool | int | float)

    def line(self, line: str) -> str:
        """Return one line of a log, which may be JSON, without secrets."""
        if line.startswith("{"):
            try:
                return msgspec.json.encode(self.value(msgspec.json.decode(line))).decode()
            except (ValueError, RecursionError):
                pass
        return self.text(line)


def is_sensitive(name: str) -> bool:
    """Return whether a value under this name may be a secret; `token_file`, a path, is none."""
    return bool(_SENSITIVE.search(name))


def known_secrets(environment: Mapping[str, str], files: Iterable[str]) -> set[str]:
    """Return the secrets in variables, and in files of secrets; one that cannot be read is left out.

    Of a file the whole content counts, and its long pieces: keys have several lines, and passwords stand in quotes.
    """
    found = {value for name, value in environment.items() if value and is_sensitive(name)}
    for path in files:
        try:
            with open(path, "rb") as file:
                content = file.read(SECRET_BYTES_MAX).decode("utf-8", "replace").strip()
        except OSError:
            continue
        found.add(content)
        found |= {
            part
            for part in re.split(r"[\s\"',:;{}\[\]]+", content)
            if len(part) >= PIECE_CHARACTERS_MIN
        }
        found |= {
            one
            for one in re.findall(r"[\"']([^\"'\n]+)[\"']", content)
            if len(one) >= QUOTED_CHARACTERS_MIN
        }
    # Paths and names of settings stand in files of secrets as well; they are needed to understand the rest.
    return {
        one
        for one in found
        if not one.startswith("/") and "PRIVATE KEY" not in one and one not in _KNOWN_NAMES
    }


_STRINGS = frozenset((
    "bookie.listen", "bookie.id", "bookie.advertised", "bookie.location", "bookie.labels", "bookie.processors",
    "metadata.uri", "metadata.zookeeper_file", "http.listen", "http.changing_roles", "http.allowed_hosts",
    "audit.file", "tls.certificate_file", "tls.key_file", "tls.key_password_file", "tls.ca_file",
    "tls.ca_password_file", "tls.authorized_roles", "authentication.methods", "authentication.users_file",
    "authentication.users_section", "authentication.token_keys_file", "authentication.tag_keys_file",
    "authentication.tag_key_file", "authentication.token_audience", "authentication.revoked_file",
    "authorization.readers", "authorization.writers", "authorization.healers", "authorization.services",
    "authorization.admins",
    "journal.directory", "journal.directories", "journal.backend", "journal.sync", "ledgers.directory",
    "ledgers.directories",
))  # fmt: skip
"""Settings whose text may leave. A new one may not, until it stands here."""


def allowed_settings(config: BookieConfig) -> dict[str, object]:
    """Return a bookie's settings by `section.name`: numbers, choices and texts that may leave; others are named."""
    found: dict[str, object] = {}
    for section, fields in msgspec.to_builtins(config).items():
        for name, value in fields.items():
            found[f"{section}.{name}"] = allowed_setting(f"{section}.{name}", value)
    return found


def allowed_setting(name: str, value: object) -> object:
    """Return a setting's value if it may leave, by its name in the form `section.name`."""
    return (
        value
        if isinstance(value, bool | int | float) or not value or name in _STRINGS
        else LEFT_OUT
    )


_KNOWN_NAMES = frozenset(
    field.name
    for section in msgspec.structs.fields(BookieConfig)
    for field in msgspec.structs.fields(section.type)
)


def files_in(path: str) -> list[str]:
    """Return the files of secrets that a TOML file names, as ZooKeeper's does, itself included."""
    try:
        with open(path, "rb") as file:
            given = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        given = {}
    return [
        path,
        *(
            str(given[name])
            for name in ("password_file", "key_file", "key_password_file")
            if given.get(name)
        ),
    ]


def secret_files(config: BookieConfig) -> list[str]:
    """Return the paths of the files with secrets that a bookie's settings name."""
    tls, authentication = config.tls, config.authentication
    names = (
        tls.key_file, tls.key_password_file, tls.ca_password_file, authentication.users_file,
        authentication.tag_key_file,
    )  # fmt: skip
    zookeeper = config.metadata.zookeeper_file
    return [*(name for name in names if name), *(files_in(zookeeper) if zookeeper else ())]

"""What a bookie's children give up for good: paths when they are configured, system calls when set up (INV-N3).

A child that an attacker takes over then reads no other files than these, runs no program and, unless it is gc with
ZooKeeper, connects to nobody. The supervisor, which starts them, is not confined.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING, Literal

import msgspec

import fastbk
from fastbk.errors import ConfigError
from fastbk.native.process import (
    FILE_VARIABLE,
    UNSUPPORTED,
    confine_calls,
    confine_paths,
    confine_rings,
    preload,
)
from fastbk.observe import logs
from fastbk.security.settings import folders_of_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.server.configuration.bookie_config import BookieConfig
    from fastbk.server.process_table import Process

SYSTEM_PATHS = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/etc/localtime",
    "/usr/share/zoneinfo", "/dev/null", "/dev/urandom", "/sys/fs/cgroup", "/proc/sys/kernel/random",
)  # fmt: skip
"""Libraries, time zones and the like, which every process may read."""
NAME_PATHS = (
    "/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf", "/etc/host.conf",
    "/run/systemd/resolve",
)  # fmt: skip
"""What looking up ZooKeeper's names takes."""


MODULES = ("unicodedata",)
"""Every process's modules in C that the standard library imports when it first needs them."""
MODULES_OF_KEYS = ("cryptography.hazmat.primitives.serialization.pkcs12",)
"""A renewed file may be of the other format."""
THREAD_LIBRARY = "libgcc_s.so.1"
"""The C library loads it when a thread is ended."""


class Confinement(msgspec.Struct, kw_only=True):
    """What one child may still do; with the defaults everything."""

    mode: Literal["auto", "require", "off"] = "off"
    read: tuple[str, ...] = ()
    """Directories and files, beside the program itself."""
    write: tuple[str, ...] = ()
    may_connect: bool = False
    modules: tuple[str, ...] = ()
    """Imported before the system calls are given up: those that this child may need later."""

    def begin(self, role: str) -> None:
        """Open no other paths from now on; before this process makes threads. Raises ConfigError with `require`."""
        if self.mode == "off":
            return
        if role != "journal":
            try:
                confine_rings()
            except OSError as error:
                self._cannot("io_uring", error)
        try:
            read = (*program_paths(), *self.read)
            write = (*self.write, *kill_point_folders())
            version = confine_paths(read, write, may_connect=self.may_connect)
        except OSError as error:
            self._cannot("paths", error)
        else:
            if version == UNSUPPORTED:
                self._cannot("paths", OSError(errno.ENOSYS, "the kernel has no Landlock"))

    def finish(self, role: str) -> None:
        """Make no system calls but those of `role` from now on. Raises ConfigError with `require`."""
        if self.mode == "off":
            return
        self._load()
        try:
            confine_calls(role, may_connect=self.may_connect)
        except OSError as error:
            self._cannot("system calls", error)

    def _load(self) -> None:
        """Load what this process may come to need: from now on it makes no memory executable."""
        preload(THREAD_LIBRARY)
        for name in (*MODULES, *self.modules):
            importlib.import_module(name)
        if self.may_connect:
            for service in name_services():
                preload(f"libnss_{service}.so.2")

    def _cannot(self, what: str, error: OSError) -> None:
        if self.mode == "require":
            raise ConfigError(
                f'[bookie] confinement = "require": {what} cannot be given up here: {error.strerror}'
            ) from error
        logs.warning("process.not_confined", what=what, reason=error.strerror)


def program_paths() -> Iterator[str]:
    """Yield what the program itself consists of, and what it may look up about itself and the system."""
    package = os.path.dirname(os.path.realpath(fastbk.__file__))
    yield from SYSTEM_PATHS
    yield from {sys.prefix, sys.base_prefix, sys.exec_prefix, package}
    # The folder that has `fastbk` in it may have anything else beside it.
    yield from (
        one for one in sys.path if one and os.path.realpath(one) != os.path.dirname(package)
    )
    yield f"/proc/{os.getpid()}"


def name_services() -> Iterator[str]:
    """Yield what looks the names of hosts up on this machine: a library each, which the C library loads."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        with open("/etc/nsswitch.conf", encoding="utf-8") as file:
            lines = file.read().splitlines()
        for line in lines:
            database, _, services = line.partition("#")[0].partition(":")
            if database.strip() == "hosts":
                yield from (one for one in services.split() if one.isidentifier())


def kill_point_folders() -> Iterator[str]:
    """Yield where an armed kill point leaves its mark."""
    if path := os.environ.get(FILE_VARIABLE):
        yield os.path.dirname(os.path.abspath(path))


def confinement_of(process: Process, config: BookieConfig) -> Confinement:
    """Return what a child needs of the file system and of the network."""
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    may_connect = False
    modules: tuple[str, ...] = ()
    if process.role == "worker":
        read = tuple(folders_of_workers(config.authentication, config.tls))
        modules = (
            *(MODULES_OF_KEYS if config.tls.mode != "off" else ()),
            *(("jwt", "jwt.algorithms") if "token" in config.authentication.methods else ()),
        )
    elif process.role == "journal":
        write = (config.journal.all_directories[process.index],)
    elif process.role == "index":
        write = (
            config.ledgers.all_directories[process.index],
            config.journal.all_directories[process.index],
        )
        read = config.journal.all_directories  # what its neighbours on the same disk take
    elif process.role == "gc":
        path = config.metadata.uri.removeprefix("sqlite:")
        is_sqlite = path != config.metadata.uri
        write = (
            *config.ledgers.all_directories,
            *((os.path.dirname(os.path.realpath(path)),) if is_sqlite else ()),
        )
        read = NAME_PATHS
        modules = (
            "fastbk.observe.library_log",
            "fastbk.meta.sqlite.store" if is_sqlite else "fastbk.meta.zookeeper.store",
        )
        if not is_sqlite:
            from fastbk.meta.zookeeper import security as zookeeper_security

            security = zookeeper_security.from_environment()
            read = (*read, *security.folders)
            modules = (*modules, "encodings.idna")
            if security.tls_files is not None:
                modules = (*modules, "fastbk.security.tls", *MODULES_OF_KEYS)
        may_connect = not is_sqlite
    return Confinement(
        mode=config.bookie.confinement,
        read=read,
        write=write,
        may_connect=may_connect,
        modules=modules,
    )

"""A bookie's configuration file, in our own format or in Apache's: the one way to a `BookieConfig`.

A name that ends in `.conf` or `.properties` is a file of Apache's (`fastbk.apache.configuration`), with `BK_` variables
before it. Everything else is TOML, and no variable changes it. What reads Apache's format is imported for such a file
only: its 20 ms would be a third of what a bookie imports before it spawns its children.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from fastbk import config as toml
from fastbk.errors import ConfigError
from fastbk.observe import logs
from fastbk.server.configuration.bookie_config import BookieConfig

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from fastbk.apache.configuration.config_builder import Report


class BookieFile(msgspec.Struct, frozen=True):
    """A file that was read."""

    path: Path
    config: BookieConfig
    report: Report | None = None
    """What became of Apache's keys; None for a file of ours."""

    def origin(self, setting: str) -> str:
        """Return where the value of `section.field` comes from; empty: it is the default."""
        if self.report is not None:
            return self.report.origins.get(setting, "")
        section, _, name = setting.partition(".")
        default = getattr(getattr(BookieConfig(), section), name)
        return "" if getattr(getattr(self.config, section), name) == default else str(self.path)

    def log(self) -> None:
        """Say once what became of Apache's keys, at a bookie's start."""
        if self.report is None:
            return
        from fastbk.apache.configuration.keys import Verdict

        logs.info(
            "bookie.apache_configuration",
            file=str(self.path),
            honoured=len(self.report.named(Verdict.HONOURED)),
            translated=len(self.report.named(Verdict.TRANSLATED)),
            ignored=" ".join(self.report.named(Verdict.IGNORED)),
            unknown=" ".join(self.report.unknown()),
            more=f"fastbk config check {self.path}",
        )
        for note in self.report.notes:
            logs.info("bookie.configuration", note=note)
        for remark in self.report.remarks:
            logs.warning("bookie.configuration", remark=remark)


def load(path: Path, environment: Mapping[str, str] | None = None) -> BookieConfig:
    """Return what the file at `path` configures. Raises ConfigError."""
    return read(path, environment).config


def read(path: Path, environment: Mapping[str, str] | None = None) -> BookieFile:
    """Return the file at `path`, and what became of its keys. Raises ConfigError with all that forbids a start."""
    if path.suffix == ".toml" or not _is_apache(path):
        try:
            return BookieFile(path, toml.load(path, BookieConfig))
        except ConfigError as error:
            from fastbk.apache.configuration import source

            if not source.is_apache_file(path):
                raise
            endings = " or ".join(source.SUFFIXES)
            raise ConfigError(
                f"{error}; if it is in Apache's format, its name has to end in {endings}"
            ) from error
    found, report = examine(path, environment)
    if found is None:
        raise ConfigError(f"{path}: {'; '.join(report.problems)}")
    return BookieFile(path, found, report)


def examine(
    path: Path, environment: Mapping[str, str] | None = None
) -> tuple[BookieConfig | None, Report]:
    """Return what a file of Apache's configures, None where it must not be started with, and what became of its keys.

    Raises ConfigError for a file that cannot be read.
    """
    from fastbk.apache.configuration import key_translation, source

    return key_translation.translate(
        source.read(path, os.environ if environment is None else environment)
    )


def _is_apache(path: Path) -> bool:
    from fastbk.apache.configuration import source

    return source.is_apache(path)


def differences(config: BookieConfig) -> dict[str, dict[str, object]]:
    """Return the settings that are not at their defaults, by section and field."""
    found: dict[str, dict[str, object]] = {}
    for section in msgspec.structs.fields(BookieConfig):
        mine, default = getattr(config, section.name), section.type()
        for each in msgspec.structs.fields(section.type):
            value = getattr(mine, each.name)
            if value != getattr(default, each.name):
                found.setdefault(section.name, {})[each.name] = value
    return found

"""A ledger's password on the command line: from a file, a variable or the terminal.

Arguments are no place for it: every user of the machine sees them in the list of processes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from fastbk.errors import ConfigError, os_errors_as

VARIABLE = "FASTBK_LEDGER_PASSWORD"
ASK = "-"
_BYTES_MAX = 4096


def add_password(parser: argparse.ArgumentParser) -> None:
    """Add --password-file."""
    parser.add_argument(
        "--password-file", metavar="FILE",
        help=f"holds the ledger's password, if it has one; {ASK} asks for it on the terminal;"
        f" default: the variable {VARIABLE}",
    )  # fmt: skip
    # Without this argparse would take `--password pw` for `--password-file pw`.
    parser.add_argument("--password", type=_refused, help=argparse.SUPPRESS)


def _refused(_: str) -> str:
    raise argparse.ArgumentTypeError(
        "other users would see a password in the list of processes: give --password-file FILE,"
        f" or set {VARIABLE}"
    )


def password_of(options: argparse.Namespace) -> bytes:
    """Return the ledger's password, empty if none is given. Raises ConfigError."""
    if options.password_file == ASK:
        return _asked()
    if options.password_file is not None:
        return _read(Path(options.password_file))
    return os.environ.get(VARIABLE, "").encode()


def _asked() -> bytes:
    import getpass
    import warnings

    try:
        with warnings.catch_warnings():
            # Without a terminal it would be read from stdin, and shown.
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass("password of the ledger: ").encode()
    except (EOFError, OSError, getpass.GetPassWarning) as error:
        raise ConfigError(
            f"--password-file {ASK} asks on the terminal, and there is none: give a file"
        ) from error


def _read(path: Path) -> bytes:
    """Return what a file holds, without the newline at its end."""
    with (
        os_errors_as(ConfigError, f"--password-file {path}: cannot read it"),
        path.open("rb") as file,
    ):
        found = file.read(_BYTES_MAX + 1)
    if len(found) > _BYTES_MAX:
        raise ConfigError(f"--password-file {path}: it has more than {_BYTES_MAX} bytes")
    return found.removesuffix(b"\n")

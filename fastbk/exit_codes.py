"""The exit codes of all commands but `fastbk shell`, which has Apache's. docs/exit-codes.md explains them to users.

75 and 78 are the numbers of sysexits.h, so that a systemd unit can say `RestartPreventExitStatus=78`.
"""

from __future__ import annotations

from fastbk.errors import ConfigError, Error

DONE = 0
FAILED = 1
"""The command ran, but failed; or what it examined is not well."""
USAGE = 2
"""Wrong arguments, or an argument is missing. Nothing was done."""
UNREACHABLE = 75
"""The metadata store or a bookie does not answer, or is busy: the same command may succeed later."""
REFUSED = 78
"""A bookie's configuration file or directories do not allow a start. Only a person can change that."""
INTERRUPTED = 130
"""Ctrl-C ended the command; the shell's own number for that."""


def of_command(error: Error) -> int:
    """Return the exit code of a command that ended with this error."""
    if isinstance(error, ConfigError):
        return USAGE
    return UNREACHABLE if error.retryable else FAILED

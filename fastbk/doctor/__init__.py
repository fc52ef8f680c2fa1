"""Checks a machine and a bookie's settings, directories and metadata, and names a fix.

No check repairs anything; each only writes and removes a small file in a directory. Here is what a check finds, and how
all checks are run. `examine.py` has their order.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from fastbk.errors import Error


class Status(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, but slower, or with less safety, than it could."""
    FAIL = "fail"
    """A bookie would not start, or could lose what it promises."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result.

    Attributes:
        why: what was found.
        fix: a command or sentence; empty where nothing is to be done.
        verdict: where it is a part of the verdict that `fastbk cluster status` gives, the word for it; else empty.
    """

    name: str
    status: Status
    why: str
    fix: str = ""
    verdict: str = ""


def ok(why: str, name: str = "") -> Finding:
    """Return a finding of nothing wrong. `name`: of what was looked at, where it is not the check's."""
    return Finding(name, Status.OK, why)


def warn(why: str, fix: str, name: str = "") -> Finding:
    """Return a finding of something that could be better."""
    return Finding(name, Status.WARN, why, fix)


def fail(why: str, fix: str, name: str = "") -> Finding:
    """Return a finding of something that has to be mended."""
    return Finding(name, Status.FAIL, why, fix)


Check = tuple[str, Callable[[], Finding | Iterable[Finding]]]
"""A name, and what looks; it may find several things."""


def run_checks(checks: Iterable[Check]) -> Iterator[Finding]:
    """Take all looks, one after the other; one that cannot be taken is a warning, and does not keep the others."""
    for name, look in checks:
        try:
            found = look()
            for one in [found] if isinstance(found, Finding) else found:
                yield replace(one, name=one.name or name)
        except (Error, OSError, ValueError) as error:
            text = " ".join(str(error).split())
            fix = "run it as the bookie's user or root"
            yield warn(f"could not be looked at: {text}", fix, name)

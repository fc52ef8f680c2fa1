"""What `fastbk stream` and `fastbk namespace` take: paths, policies, positions."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from fastbk.cli.options import add_verb, digest_name, run_client_verb
from fastbk.errors import ConfigError, PolicyInvalid, StreamNotFound
from fastbk.exit_codes import INTERRUPTED
from fastbk.stream.paths import split_stream_path
from fastbk.units import format_size, format_span_s, parse_duration_us, parse_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from fastbk.cli.options import ClientVerb, Verb, Verbs
    from fastbk.stream.client import Client
    from fastbk.stream.namespace.namespace import Namespace
    from fastbk.stream.policy import PolicyPatch, StreamPolicy
    from fastbk.stream.positions import AtTime, Start
    from fastbk.stream.stream import Stream

START_HELP = "earliest, latest, a position (3.120.0), seq:N, txid:N, time:2026-01-31T12:00:00Z"
LOST = "records are gone (truncated, lost)"


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add --from and --to."""
    parser.add_argument(
        "--from", dest="start", default="earliest", metavar="POSITION",
        help=f"where to begin (earliest): {START_HELP}",
    )  # fmt: skip
    parser.add_argument("--to", dest="end", metavar="POSITION", help="where to end, not with it")


def add_on_gap(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --on-gap."""
    text = f"where {what}: fail, or tell of it and go on"
    parser.add_argument("--on-gap", choices=["fail", "tell"], default="fail", help=text)


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add --set."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE",
        help="of its policy, the rest is inherited; may be given several times (roll_bytes=64MiB, retention_age=7d,"
        " compression=zstd, ensemble=3 ...; `fastbk namespace info` shows all)",
    )  # fmt: skip


def add_inherit(parser: argparse.ArgumentParser) -> None:
    """Add --inherit."""
    parser.add_argument(
        "--inherit", action="append", default=[], metavar="FIELD",
        help="take this field from the namespace above again; may be given several times",
    )  # fmt: skip


async def set_policy(what: Namespace | Stream, options: argparse.Namespace) -> dict[str, object]:
    """Change a policy as --set and --inherit say; return its fields."""
    if not options.set and not options.inherit:
        raise ConfigError("nothing to change: give --set FIELD=VALUE or --inherit FIELD")
    await what.set_policy(policy_of(options.set), inherit=options.inherit)
    return policy_facts(await what.policy())


def policy_of(pairs: Iterable[str]) -> PolicyPatch:
    """Return the patch that FIELD=VALUE words say. Raises PolicyInvalid, which names the fields."""
    import msgspec

    from fastbk.stream.policy import PolicyPatch

    fields = PolicyPatch.__struct_fields__
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise PolicyInvalid(f"{pair}: write FIELD=VALUE")
        if f"{name}_s" in fields:
            name = f"{name}_s"
        if name not in fields:
            raise PolicyInvalid(f"{name}: a policy has {', '.join(fields)}")
        found[name] = digest_name(text) if name == "digest" else _value(name, text)
    try:
        return msgspec.convert(found, PolicyPatch)
    except msgspec.ValidationError as error:
        raise PolicyInvalid(str(error)) from error


def _is_size(name: str) -> bool:
    return name.endswith("_bytes") or name == "bytes_max"


def _value(name: str, text: str) -> object:
    """Return a field's value: sizes and durations with or without a unit (bytes, seconds)."""
    try:
        if text.isascii() and text.isdigit():
            return float(text) if name.endswith("_s") else int(text)
        if _is_size(name):
            return parse_size(text)
        if name.endswith("_s"):
            return parse_duration_us(text) / 1e6
    except ValueError as error:
        example = "64MiB" if _is_size(name) else "90s, 2h or 7d"
        raise PolicyInvalid(f"{name}: {text!r} cannot be: write it like {example}") from error
    return {"true": True, "yes": True, "false": False, "no": False}.get(text, text)


def policy_facts(policy: StreamPolicy | PolicyPatch) -> dict[str, object]:
    """Return a policy's fields; of a patch those that it names."""
    import msgspec

    found = msgspec.structs.asdict(policy)
    return {name: value for name, value in found.items() if value is not None}


async def origins_of(client: Client, namespace: str) -> dict[str, str]:
    """Return for each setting that a namespace or one above it has which of them it is: the nearest."""
    names = namespace.split("/") if namespace else []
    found: dict[str, str] = {}
    for depth in range(len(names) + 1):
        path = "/".join(names[:depth])
        patch = policy_facts(await client.namespace(path).policy())
        found |= dict.fromkeys(patch, f"from {path}" if path else "from the root")
    return found


def policy_lines(
    effective: dict[str, object], own: dict[str, object], origins: dict[str, str]
) -> list[str]:
    """Return a line a field: its value, where it is from, and what that means for people."""
    origin_of = origins | dict.fromkeys(own, "set here")
    width = max(map(len, (*origin_of.values(), "default")))
    return [
        f"  {name:<22} {value!s:<12} {origin_of.get(name, 'default'):<{width}}  {_said(name, value)}".rstrip()
        for name, value in effective.items()
    ]


def _said(name: str, value: object) -> str:
    """Return what a value means, where its number does not say it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if not value:
        return "never by age" if name == "roll_age_s" else "no limit"
    if _is_size(name):
        return format_size(int(value))
    return format_span_s(value) if name.endswith("_s") else ""


def range_of(options: argparse.Namespace) -> tuple[Start, Start | None]:
    """Return what --from and --to name. Raises ConfigError."""
    return start_of(options.start), None if options.end is None else start_of(options.end)


async def pattern_of(client: Client, text: str) -> tuple[Namespace, str] | None:
    """Return the namespace and the pattern of names that a word stands for; None: it is the path of a stream.

    A stream whose own name has such characters is meant by its path.
    """
    from fastbk.stream.pattern.store import has_magic

    if not has_magic(text):
        return None
    with suppress(StreamNotFound):
        await stream_of(client, text).context()
        return None
    space, _, names = text.rpartition("/")
    return client.namespace(space), names


def pattern_start_of(text: str, option: str) -> Literal["earliest", "latest"] | AtTime:
    """Return where to begin in all streams of a pattern. Raises ConfigError for a place of one stream."""
    from fastbk.stream.positions import DLSN, AtSeq, AtTxid

    start = start_of(text)
    if isinstance(start, DLSN | AtSeq | AtTxid):
        raise ConfigError(
            f"{option} {text} is a place in one stream: with a pattern give earliest, latest or"
            " time:2026-01-31T12:00:00Z, or name one stream"
        )
    return start


def stream_of(client: Client, path: str) -> Stream:
    """Return the stream of this path. No I/O."""
    namespace, name = split_stream_path(path)
    return client.namespace(namespace).stream(name)


def start_of(text: str) -> Start:
    """Return where to begin, as `START_HELP` says. Raises ConfigError."""
    from fastbk.stream.positions import DLSN, AtSeq, AtTime, AtTxid

    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    kind, colon, value = text.partition(":")
    if not colon:
        with suppress(ConfigError):  # its message knows of one form only
            return DLSN.parse(text)
    if kind == "time":
        return AtTime(_time(value))
    if kind in ("seq", "txid") and value.isascii() and value.isdigit():
        return AtSeq(int(value)) if kind == "seq" else AtTxid(int(value))
    raise ConfigError(f"{text!r} is no position: write one of {START_HELP}")


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no time: write it as 2026-01-31T12:00:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


EXAMPLES = {
    "STREAM": "namespace and name, such as shop/orders",
    "NAMESPACE": "such as shop/eu",
}


def add_verb_of_one(
    verbs: Verbs,
    name: str,
    act: Verb | ClientVerb,
    text: str,
    what: str = "STREAM",
    *,
    takes_pattern: bool = False,
) -> argparse.ArgumentParser:
    """Declare a verb of one stream or namespace (`what`), its first argument."""
    parser = add_verb(verbs, name, act, text)
    more = (
        "; or a pattern, such as 'shop/*', for all streams of one namespace that match"
        if takes_pattern
        else ""
    )
    parser.add_argument(what.lower(), metavar=what, help=EXAMPLES[what] + more)
    return parser


ENDLESS = ("tail", "watch")
"""Verbs that Ctrl-C is the usual end of: no failure, and nothing to be said."""


def run_endless(options: argparse.Namespace) -> int:
    """Run the verb that was chosen on a client; return its exit code."""
    try:
        return run_client_verb(options)
    except KeyboardInterrupt:
        if options.verb not in ENDLESS:
            raise
        return INTERRUPTED

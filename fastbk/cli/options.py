"""Options and output that several commands share, and consent to what cannot be undone.

Every delete, truncate, seal and decommission asks for consent in the same way. On a terminal the command prints what
it is about to do and waits for `yes`. Elsewhere it needs `--yes`, so that a script never deletes by accident.
`--dry-run` prints the same sentence and changes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fastbk.cli.terminal import add_run_options, is_quiet, padded, plain
from fastbk.errors import ConfigError
from fastbk.exit_codes import DONE, FAILED

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from fastbk.meta import MetadataStore
    from fastbk.observe.event_log import EventLog
    from fastbk.security.tls import ClientCertificates, RefreshedContext
    from fastbk.web.page_admission import PageAdmission

Verb: TypeAlias = "Callable[[argparse.Namespace], int]"
ClientVerb: TypeAlias = "Callable[[Any, argparse.Namespace], Awaitable[int]]"
"""A verb on a ledger's client or a stream's."""
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

T = TypeVar("T")

DIGESTS = ("crc32c", "crc32", "hmac", "dummy")
METADATA_TIMEOUT_S = 10.0


def add_verbs(parser: argparse.ArgumentParser) -> Verbs:
    """Return what `add_verb` adds to; one of the verbs has to be given."""
    return parser.add_subparsers(dest="verb", required=True, metavar="VERB")


def add_verb(
    verbs: Verbs, name: str, act: Verb | ClientVerb, text: str, *aliases: str
) -> argparse.ArgumentParser:
    """Declare a verb that `act` runs; `text` stands in the list of verbs and in its own help."""
    parser = verbs.add_parser(name, help=text, description=text, aliases=aliases)
    parser.set_defaults(act=act)
    return parser


def run_verb(options: argparse.Namespace) -> int:
    """Run the verb that was chosen; return its exit code."""
    return int(options.act(options))


def run_client_verb(options: argparse.Namespace) -> int:
    """Connect to the cluster and run the verb that was chosen; return its exit code."""
    import asyncio

    import fastbk

    async def connected() -> int:
        async with fastbk.connect(metadata_uri(options)) as client:
            return int(await options.act(client, options))

    return asyncio.run(connected())


def opened_store(uri: str) -> closing[MetadataStore]:
    """Return a cluster's metadata store, closed at the end of `with`. Raises ConfigError where there is none."""
    from fastbk.meta import open_store

    return closing(open_store(uri, METADATA_TIMEOUT_S, may_make=False))


def some_of(lines: Sequence[str], count_max: int) -> list[str]:
    """Return the first of many lines, and one that says how many are left out: no list ends silently."""
    more = len(lines) - count_max
    return [*lines[:count_max], *([f"  and {more} more: --json lists all"] if more > 0 else [])]


def digest_name(text: str) -> str:
    """Return the name of a digest as all of fastbk writes it; `none` is accepted for Apache's `dummy`."""
    return "dummy" if text.lower() == "none" else text.lower()


HTTP_HOSTS = "a name that clients of --http call this machine by, beside localhost and its own"


def add_http(parser: argparse.ArgumentParser, pages: str, hosts_help: str = HTTP_HOSTS) -> None:
    """Declare where a process answers `pages`."""
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help=f"answer {pages} there; port 0: any, the log says which (default: nowhere)",
    )
    parser.add_argument(
        "--http-host",
        action="append",
        default=[],
        metavar="NAME",
        help=hosts_help,
    )
    parser.add_argument(
        "--http-tls",
        nargs="?",
        const="none",
        choices=("none", "request", "require"),
        metavar="CLIENTS",
        help="serve --http with TLS, by FASTBK_TLS_CERTIFICATE_FILE and FASTBK_TLS_KEY_FILE; CLIENTS: whether they"
        " have to show a certificate of FASTBK_TLS_CA_FILE's: none (default), request, require",
    )
    parser.add_argument(
        "--http-token-keys", default="", metavar="FILE",
        help="public keys of tokens, as bookies have them: clients of --http authenticate themselves with tokens",
    )  # fmt: skip
    parser.add_argument(
        "--http-token-audience",
        default="",
        metavar="ID",
        help="the audience of these tokens (the cluster's id)",
    )
    parser.add_argument(
        "--http-revoked",
        default="",
        metavar="FILE",
        help="who is not accepted any more, as bookies have it",
    )
    parser.add_argument(
        "--http-changing-role", action="append", default=[], metavar="ROLE",
        help="only certificates with this role change anything by --http; default: all that --http-tls accepts",
    )  # fmt: skip
    parser.add_argument(
        "--http-public", action="extend", nargs="+", default=[], choices=("health", "metrics"), metavar="PAGES",
        help="what --http answers to everybody, beyond this machine, too: health (/livez), metrics, or both",
    )  # fmt: skip
    parser.add_argument(
        "--http-allow-unauthenticated-remote", action="store_true",
        help="let everybody who reaches --http from other machines do everything there",
    )  # fmt: skip


HTTP_CURE = (
    "use 127.0.0.1, or give --http-tls require (or --http-tls and --http-token-keys FILE), or --http-public health"
    " metrics if others need nothing more, or --http-allow-unauthenticated-remote to let everybody do everything"
    " (docs/http.md)"
)


def http_admission(
    options: argparse.Namespace,
    cluster_id: Callable[[], str],
    note: Callable[..., object] | None = None,
) -> PageAdmission:
    """Return who may use the pages of `--http`. Raises ConfigError where these must not be served there.

    `cluster_id`: the audience of tokens; "" while it is not known.
    """
    from fastbk.config import split_address
    from fastbk.security.settings import AuthenticationSettings, HttpPort
    from fastbk.web.page_admission import PageAdmission, nothing, page_credentials

    host, _ = split_address(options.http, "--http")
    port = HttpPort(
        where=f"--http {options.http}",
        host=host,
        is_encrypted=options.http_tls is not None,
        client_certificates=options.http_tls or "none",
        takes_tokens=bool(options.http_token_keys),
        public=options.http_public,
        is_permitted=options.http_allow_unauthenticated_remote,
    )
    if problem := port.problem(HTTP_CURE):
        raise ConfigError(problem)
    settings = AuthenticationSettings(
        token_keys_file=options.http_token_keys,
        token_audience=options.http_token_audience,
        revoked_file=options.http_revoked,
    )
    return PageAdmission(
        port,
        changing_roles=options.http_changing_role,
        credentials=page_credentials(settings, cluster_id),
        note=note or nothing,
    )


def http_tls(options: argparse.Namespace) -> RefreshedContext | None:
    """Return the context for the pages of `--http`, None: in the clear. Raises ConfigError."""
    return None if options.http_tls is None else server_tls(options.http_tls, "--http-tls")


def server_tls(client_certificates: ClientCertificates, option: str) -> RefreshedContext:
    """Return a server's context by the environment. Raises ConfigError, which begins with `option`."""
    from fastbk.security.tls import RefreshedContext, TlsOptions, server_context

    files = TlsOptions.from_environment()
    if files is None:
        raise ConfigError(
            f"{option}: FASTBK_TLS_CERTIFICATE_FILE and FASTBK_TLS_KEY_FILE are not set"
        )
    return RefreshedContext(files, lambda: server_context(files, client_certificates, option))


def own_certificate_lines() -> Callable[[], list[str]]:
    """Return what makes the lines of `/metrics` about the certificates of this process."""
    from fastbk.security.tls import TlsOptions

    files = TlsOptions.from_environment()
    if files is None:
        return list
    from fastbk.web.certificate_watch import certificate_lines

    return certificate_lines(files)


def add_lifeline(parser: argparse.ArgumentParser) -> None:
    """Declare the descriptor of a socket, for who starts a process that is to end with it: `end_with_lifeline`."""
    parser.add_argument("--lifeline", type=int, metavar="FD", help=argparse.SUPPRESS)


def begin_service(role: str) -> None:
    """Begin a command that runs until a signal, before it reads anything secret: each calls this first.

    From now on it gets no new privileges, and no other process of its user reads its memory, where tokens of users
    may be. Its log is configured.
    """
    from fastbk.observe import logs

    logs.configure()
    logs.bind(role=role)
    try:
        from fastbk.native.process import confine
    except ImportError as error:  # clients of other systems have no such module
        logs.warning("process.not_confined", what="privileges", reason=str(error))
    else:
        confine()


def end_with_lifeline(options: argparse.Namespace) -> None:
    """Exit, from the running loop, once the other end of the lifeline is closed.

    Who started us is gone then, and its metadata may be: nothing is waited for. Every step may be repeated.
    """
    if options.lifeline is not None:
        import asyncio
        import os

        asyncio.get_running_loop().add_reader(options.lifeline, os._exit, 0)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json, --quiet and --timeout."""
    parser.add_argument(
        "--json", action="store_true", help="answer in JSON on stdout; messages go to stderr"
    )
    add_run_options(parser)


def add_config(
    parser: argparse.ArgumentParser, text: str = "the bookie's file, as it was started with"
) -> None:
    """Add --config, which has to be given."""
    parser.add_argument("--config", type=Path, metavar="FILE", required=True, help=text)


def add_metadata(parser: argparse.ArgumentParser) -> None:
    """Add --metadata and --context, which name the cluster (`fastbk.cli.context`)."""
    parser.add_argument(
        "--metadata",
        metavar="URI",
        help="which cluster; default: the variable FASTBK_METADATA, then the context",
    )
    parser.add_argument(
        "--context",
        metavar="NAME",
        help="a cluster by its name; default: FASTBK_CONTEXT, then `fastbk context use`",
    )


def add_common(verbs: Verbs) -> None:
    """Add --metadata and --json to all verbs."""
    for verb in dict.fromkeys(verbs.choices.values()):  # an alias is the same verb
        add_metadata(verb)
        add_json(verb)


def metadata_uri(options: argparse.Namespace) -> str:
    """Return the cluster's metadata URI. Raises ConfigError that says how to give one."""
    from fastbk.meta.uri import uri_or_default

    return uri_or_default(options.metadata or None, "give --metadata URI or --context NAME")


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

    text = json.dumps(answer, ensure_ascii=False, default=_fields_of)
    print(text if text.isprintable() else json.dumps(answer, default=_fields_of))


def _fields_of(value: object) -> dict[str, object]:
    """Return the fields of a message, which may be a value of an answer's dataclass."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    raise TypeError(f"{type(value).__name__} cannot be printed as JSON")


def print_answer(
    options: argparse.Namespace,
    facts: T,
    *lines: str,
    as_lines: Callable[[T], Iterable[str]] | None = None,
) -> int:
    """Print `facts` as JSON if that is wanted, else these lines; return the exit code of success.

    `as_lines` makes more lines of the facts. It is not called for JSON: another version's facts may lack what it needs.
    """
    if options.json:
        print_json(facts)
    else:
        sys.stdout.writelines(
            f"{line}\n" for line in (*lines, *(as_lines(facts) if as_lines else ()))
        )
    return DONE


def table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Return rows as lines of aligned columns; `align` has `<` or `>` for each column."""
    widths = [max(len(plain(one)) for one in column) for column in zip(*rows, strict=True)]
    return ["  ".join(map(padded, row, widths, align)).rstrip() for row in rows]


def text_or_base64(name: str, value: bytes) -> dict[str, str]:
    """Return bytes for JSON, which has none: as text where they are text, else in base64."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        import base64

        return {f"{name}_base64": base64.b64encode(value).decode()}


def note(text: str) -> None:
    """Print a message on stderr that is not the answer; nothing with --quiet."""
    if not is_quiet():
        print(text, file=sys.stderr, flush=True)


def add_confirmation(parser: argparse.ArgumentParser) -> None:
    """Add --yes and --dry-run."""
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask for confirmation")
    add_dry_run(parser)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Add --dry-run."""
    parser.add_argument(
        "--dry-run", action="store_true", help="print what would be done, and change nothing"
    )


def exit_without_consent(
    options: argparse.Namespace, action: str, facts: Mapping[str, object] | None = None
) -> int | None:
    """Return None to go on, else the exit code to end with now.

    `action` completes "fastbk would ...": `delete stream shop/a (3 segments, 4.1 MB)`. `facts` is what --dry-run prints
    with --json. Raises ConfigError without --yes where nobody can be asked.
    """
    if options.dry_run:
        if options.json:
            print_json({"dry_run": True, "action": action, **(facts or {})})
        else:
            print(f"would {action}; nothing was changed")
        return DONE
    if options.yes:
        return None
    if not sys.stdin.isatty():
        raise ConfigError(
            f"this would {action}, and there is no terminal to ask at: give --yes to do it, or --dry-run to see more"
        )
    print(f"This will {action}. Type yes to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() == "yes":
        return None
    note("nothing was changed")
    return FAILED


# `--events FILE`: where a janitor or a healer records its events, and the lines of `/metrics` about its process.

STATE = "STATE_DIRECTORY"
"""systemd sets it to the folders that a unit's StateDirectory names."""


def add_events(parser: argparse.ArgumentParser, role: str) -> None:
    """Declare where the events of a process of `role` are recorded."""
    parser.add_argument(
        "--events",
        type=Path,
        metavar="FILE.jsonl",
        help="where events are recorded, in FILE.jsonl, FILE.1.jsonl and so on; default: as a systemd service"
        f" {role}-events.jsonl in its state directory, else only in memory",
    )


@contextmanager
def recorded_events(options: argparse.Namespace, role: str) -> Iterator[EventLog]:
    """Record what this process logs while the block runs. Set the log's `source` once its name is known."""
    from fastbk.observe.event_log import EventLog

    log = EventLog(role, role)
    log.begin()
    try:
        log.open(events_file(options.events, role))
        yield log
    finally:
        log.close()


def process_lines(events: EventLog, role: str) -> Callable[[], list[str]]:
    """Return what makes the lines of `/metrics` about this process: its certificates, events, memory and time."""
    from fastbk.observe.prometheus import OwnUsage

    certificates, usage = own_certificate_lines(), OwnUsage(role)
    return lambda: [*certificates(), *events.metric_lines(), *usage.metric_lines()]


def events_file(given: Path | None, role: str) -> Path | None:
    """Return where a process records its events; None: only in memory."""
    folder = os.environ.get(STATE, "").partition(":")[0]
    if given is not None:
        return given.absolute()
    return Path(folder) / f"{role}-events.jsonl" if folder else None

"""`fastbk console`: a web page that shows a cluster and changes it, until SIGTERM."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import (
    add_http,
    add_lifeline,
    add_metadata,
    begin_service,
    end_with_lifeline,
    http_admission,
    http_tls,
    metadata_uri,
    own_certificate_lines,
    server_tls,
)
from fastbk.errors import ConfigError, os_errors_as

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncGenerator

    from fastbk.web.page_admission import PageAdmission
    from fastbk.web.page_server import Request, Response

LISTEN_DEFAULT = "127.0.0.1:8080"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--listen",
        default=LISTEN_DEFAULT,
        metavar="HOST:PORT",
        help=f"where browsers find it ({LISTEN_DEFAULT}); beyond loopback it needs --token-keys and --tls",
    )
    add_http(
        parser,
        "/metrics and /livez",
        hosts_help="a name that browsers, and clients of --http, call this machine by, beside localhost and its own",
    )
    parser.add_argument(
        "--tls",
        action="store_true",
        help="serve with TLS, by FASTBK_TLS_CERTIFICATE_FILE and FASTBK_TLS_KEY_FILE",
    )
    parser.add_argument(
        "--token-keys",
        default="",
        metavar="FILE",
        help="public keys of tokens, as bookies have them (`fastbk token key` makes the file): users sign in with a"
        " token; without: everybody on this machine may do everything",
    )
    parser.add_argument(
        "--token-audience",
        default="",
        metavar="ID",
        help="the audience of tokens (the cluster's id)",
    )
    parser.add_argument(
        "--revoked",
        default="",
        metavar="FILE",
        help="who is not accepted any more, as bookies have it",
    )
    parser.add_argument(
        "--audit",
        type=Path,
        metavar="FILE",
        help="its audit log (console-audit.log in the user's state folder)",
    )
    parser.add_argument(
        "--page",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="show also the events of the janitor or healer whose --http this is; https://HOST:PORT with TLS",
    )
    parser.add_argument(
        "--name", default="", metavar="TEXT", help="of the cluster, shown on all pages"
    )
    add_lifeline(parser)
    add_metadata(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    begin_service("console")
    from fastbk.config import split_address

    try:
        from fastbk.console.process import ConsoleOptions
        from fastbk.console.process import run as serve
    except ModuleNotFoundError as error:
        if error.name in ("starlette", "uvicorn", "jinja2"):
            raise ConfigError(
                f"the console needs {error.name}, which is not installed: pip install 'fastbk[console]'"
            ) from error
        raise
    host, port = split_address(options.listen, "--listen")
    cluster_ids = [""]
    admission = None if options.http is None else http_admission(options, lambda: cluster_ids[-1])
    chosen = ConsoleOptions(
        uri=metadata_uri(options),
        host=host,
        port=port,
        audit_file=options.audit or _audit_file(),
        name=options.name,
        hosts=tuple(options.http_host),
        tls=server_tls("none", "--tls") if options.tls else None,
        token_keys_file=options.token_keys,
        token_audience=options.token_audience,
        revoked_file=options.revoked,
        pages=tuple(options.page),
        on_cluster=cluster_ids.append,
    )

    async def serving() -> None:
        end_with_lifeline(options)
        async with _pages(options, admission):
            await serve(chosen)

    asyncio.run(serving())
    return 0


@asynccontextmanager
async def _pages(
    options: argparse.Namespace, admission: PageAdmission | None
) -> AsyncGenerator[None, None]:
    """Answer `/metrics` and `/livez` on `--http` while the block runs: browsers' port is for those who sign in."""
    if options.http is None:
        yield
        return
    from fastbk.config import split_address
    from fastbk.observe import logs
    from fastbk.observe.prometheus import OwnUsage
    from fastbk.web.page_server import METRICS, TEXT, PageServer, refused_lines

    host, port = split_address(options.http, "--http")
    server = PageServer((*options.http_host, host), admission)
    certificates, usage = own_certificate_lines(), OwnUsage("console")

    async def metrics(request: Request) -> Response:
        if request.method != "GET":
            return 405, TEXT, b"not for this path\n"
        lines = (
            refused_lines("fastbk_console_http_refused", server.refused())
            + certificates()
            + usage.metric_lines()
        )
        return 200, METRICS, "".join(f"{line}\n" for line in lines).encode()

    async def alive(request: Request) -> Response:
        del request
        return 200, TEXT, b"ok\n"

    server.add_page("/metrics", metrics, is_quick=True)
    server.add_page("/livez", alive, is_quick=True)
    with os_errors_as(ConfigError, f"--http {options.http}: cannot listen"):
        await server.open(host, port, http_tls(options))
    logs.info("console.pages", http_port=server.port)
    try:
        yield
    finally:
        await server.close()


def _audit_file() -> Path:
    state = os.environ.get("STATE_DIRECTORY") or os.environ.get("XDG_STATE_HOME")
    folder = Path(state) if state else Path.home() / ".local" / "state"
    return (
        folder if os.environ.get("STATE_DIRECTORY") else folder / "fastbk"
    ) / "console-audit.log"

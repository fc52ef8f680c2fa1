"""`fastbk serve`: appends to streams for many producers, until SIGTERM; any number may run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_lifeline, add_metadata, begin_service, end_with_lifeline
from fastbk.exit_codes import DONE

if TYPE_CHECKING:
    import argparse

    from fastbk.producers.configuration import ServeConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="its TOML file: docs/serve.md; without one, a trial",
    )
    parser.add_argument(
        "--check", action="store_true", help="only check the file, and the files that it names"
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="where producers reach it, in place of [serve] listen (127.0.0.1:3183); port 0 takes a free one",
    )
    parser.add_argument(
        "--advertised",
        metavar="HOST[:PORT]",
        help="what others reach it by, in place of [serve] advertised; default: what it listens on",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve /metrics, /livez and /readyz there, in place of [http] listen",
    )
    add_lifeline(parser)
    add_metadata(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    from fastbk.producers.configuration import check_named_files

    if options.check:
        check_named_files(_config(options))
        print("a write service would start with it, where metadata and bookies answer")
        return DONE
    from fastbk.producers.process import loop_factory

    begin_service("serve")
    config = _config(options)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_run(config, options))
    return DONE


def _config(options: argparse.Namespace) -> ServeConfig:
    """Return the file's configuration, with what the options say in its place. Raises ConfigError."""
    from msgspec.structs import replace

    from fastbk import config as toml
    from fastbk.cli.options import metadata_uri
    from fastbk.producers.configuration import ServeConfig, check

    config = ServeConfig() if options.config is None else toml.load(options.config, ServeConfig)
    if options.metadata or not config.metadata.uri:
        config = replace(config, metadata=replace(config.metadata, uri=metadata_uri(options)))
    if options.listen is not None:
        config = replace(config, serve=replace(config.serve, listen=options.listen))
    if options.advertised is not None:
        config = replace(config, serve=replace(config.serve, advertised=options.advertised))
    if options.http is not None:
        config = replace(config, http=replace(config.http, listen=options.http))
    check(config, "fastbk serve" if options.config is None else str(options.config))
    return config


async def _run(config: ServeConfig, options: argparse.Namespace) -> None:
    from fastbk.producers.process import serve

    end_with_lifeline(options)
    await serve(config)

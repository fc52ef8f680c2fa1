"""`fastbk gateway`: metadata for clients that may not reach the metadata store, until SIGTERM; any number may run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastbk.cli.options import add_config, add_lifeline, begin_service, end_with_lifeline
from fastbk.exit_codes import DONE

if TYPE_CHECKING:
    import argparse

    from fastbk.gateway.configuration import GatewayConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_config(parser, "its TOML file: docs/gateway.md")
    parser.add_argument(
        "--check", action="store_true", help="only check the file, and the files that it names"
    )
    add_lifeline(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal."""
    from fastbk.gateway.configuration import check_named_files, load

    if options.check:
        check_named_files(load(options.config))
        print(f"{options.config}: a gateway would start with it, where the metadata store answers")
        return DONE
    begin_service("gateway")
    config = load(options.config)
    asyncio.run(_run(config, options))
    return DONE


async def _run(config: GatewayConfig, options: argparse.Namespace) -> None:
    from fastbk.gateway.process import serve

    end_with_lifeline(options)
    await serve(config)

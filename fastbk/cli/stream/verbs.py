"""What `fastbk stream` and `fastbk namespace` share: how a verb is declared, and how it is run against a cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias

from fastbk.cli.options import metadata_uri

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Mapping

    from fastbk.stream.client import Client

    Verb: TypeAlias = Callable[[Client, argparse.Namespace], Awaitable[int]]
    Verbs: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]


def add_verb(verbs: Verbs, name: str, text: str) -> argparse.ArgumentParser:
    """Declare a verb; `text` stands in the list of verbs and in its own help."""
    return verbs.add_parser(name, help=text, description=text)


def add_verb_of_one(verbs: Verbs, name: str, text: str, what: str) -> argparse.ArgumentParser:
    """Declare a verb of one stream or namespace (`what`), its first argument."""
    parser = add_verb(verbs, name, text)
    parser.add_argument(what.lower(), metavar=what, help=EXAMPLES[what])
    return parser


ENDLESS = ("tail", "watch")
"""Verbs that Ctrl-C is the usual end of: no failure, and nothing to be said."""
EXIT_INTERRUPTED = 130
"""What a shell says of a command that Ctrl-C ended."""
EXAMPLES = {
    "STREAM": "namespace and name, such as shop/orders",
    "NAMESPACE": "such as shop/eu",
}


def run_verb(options: argparse.Namespace, verbs: Mapping[str, Verb]) -> int:
    """Connect to the cluster and run the verb that was chosen; return its exit code."""
    try:
        return asyncio.run(_connected(metadata_uri(options), verbs[options.verb], options))
    except KeyboardInterrupt:
        if options.verb not in ENDLESS:
            raise
        return EXIT_INTERRUPTED


async def _connected(uri: str, verb: Verb, options: argparse.Namespace) -> int:
    import fastbk

    async with fastbk.connect(uri) as client:
        return await verb(client, options)

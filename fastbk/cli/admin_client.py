"""Asks a running bookie over its HTTP page: how commands find it, and what its refusals become.

A bookie is named by `--http HOST:PORT`, by its id in a cluster's metadata (its registration tells where it listens for
HTTP), or not at all where the cluster has only one.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fastbk.admin.page_client import AdminClient, client_at, client_of
from fastbk.cli.options import add_metadata, metadata_uri, opened_store
from fastbk.errors import ConfigError, Error
from fastbk.units import format_names

if TYPE_CHECKING:
    from fastbk.meta.api import BookieRegistration


def add_bookie(parser: argparse.ArgumentParser) -> None:
    """Add the options that name one running bookie."""
    parser.add_argument(
        "bookie_id",
        nargs="?",
        metavar="ID",
        help="the bookie's id, as `fastbk bookie list` shows it; may be left out where there is only one",
    )
    parser.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="where it listens for HTTP, instead of its id; https://HOST:PORT with TLS",
    )
    add_metadata(parser)


def admin_client(options: argparse.Namespace) -> AdminClient:
    """Return the client of the bookie that the options name. Raises ConfigError, Error."""
    if options.http:
        return client_at(options.http, "--http")
    return find_bookie(metadata_uri(options), options.bookie_id)


def find_bookie(uri: str, bookie_id: str | None) -> AdminClient:
    """Return the client of a bookie that is up, by its id, None: of the only one. Raises ConfigError, Error."""
    with opened_store(uri) as store:
        listed = store.list_bookies()
    return client_of(_chosen(listed, bookie_id, uri), uri)


def _chosen(listed: list[BookieRegistration], wanted: str | None, uri: str) -> BookieRegistration:
    ids = format_names(one.service.bookie_id for one in listed)
    if wanted is None:
        if len(listed) == 1:
            return listed[0]
        raise ConfigError(f"{uri} lists {len(listed)} bookies: name one of: {ids}")
    for one in listed:
        if one.service.bookie_id == wanted:
            return one
    raise Error(
        f"{uri} lists no bookie {wanted} that is up; up are: {ids}. If it is down, its own log says why. If it is"
        " starting, wait; its log says how far it is. If metadata does not list it although it runs, name it by"
        " --http HOST:PORT"
    )

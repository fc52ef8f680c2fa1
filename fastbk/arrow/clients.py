"""The client that a reader of batches uses: the caller's, or one of its own."""

from __future__ import annotations

from contextlib import ExitStack

import fastbk.sync


def client_in(
    held: ExitStack, uri_or_client: str | fastbk.sync.Client | None
) -> fastbk.sync.Client:
    """Return the client that was given, or one of that metadata URI that `held` closes."""
    if isinstance(uri_or_client, fastbk.sync.Client):
        return uri_or_client
    client = fastbk.sync.connect(uri_or_client)
    held.callback(client.close)
    return client

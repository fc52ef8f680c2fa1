"""Which bookie of a cluster `fastbk bench` loads."""

from __future__ import annotations

from argparse import Namespace
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from fastbk.cli.bench import service_under_load
from fastbk.errors import StorageError
from fastbk.meta import open_store
from fastbk.meta.api import APACHE_PROTOCOL, BookieService, Endpoint
from fastbk.model.ids import BookieId

if TYPE_CHECKING:
    from pathlib import Path


def test_a_bookie_of_apaches_is_loaded_through_apaches_protocols_only(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/metadata.sqlite"
    with closing(open_store(uri)) as store:
        there = (Endpoint("127.0.0.1", 4181, APACHE_PROTOCOL),)
        lease = store.register_bookie(BookieService(BookieId("b1"), 0, there), writable=True)
        options = Namespace(metadata=uri, data=None, protocol="v3")
        with service_under_load(options) as service:
            assert (service.bookie_id, service.port, service.bookie) == ("b1", 4181, None)
        options.protocol = "fastbk"
        refusal = pytest.raises(StorageError, match=r"no writable bookie .* that speaks fastbk")
        with refusal, service_under_load(options):
            pass
        lease.close()

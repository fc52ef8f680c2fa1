"""Clients that show a gateway a certificate have the rights of its role; a gateway in the clear is for this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fastbk.errors import ConfigError, Error, Unauthorized
from fastbk.meta import MetadataStore, open_store
from fastbk.meta.gateway.store import GatewayAccess
from fastbk.security.authority import Authority, Issued
from fastbk.security.tls import TlsOptions
from tests.fixtures.certificates import shown
from tests.fixtures.gateways import GatewayProcess
from tests.fixtures.metadata import metadata, new_cluster

ROLES = """
[authentication]
methods = ["certificate"]
[authorization]
readers = ["certificate:reader"]
writers = ["certificate:writer"]
admins = ["certificate:admin"]
"""
Open = Callable[[str], MetadataStore]


@pytest.fixture(scope="module")
def open_as(
    authority: Authority, issued: Issued, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Open]:
    """Opens a store as the holder of a certificate with a role."""
    folder = tmp_path_factory.mktemp("certificates")
    own = TlsOptions(ca_file=str(authority.ca_file))
    gateway = GatewayProcess(
        folder / "gateway",
        new_cluster(folder / "metadata.sqlite"),
        shown(own, issued),
        authentication=ROLES,
    )
    gateway.start()

    def one(role: str) -> MetadataStore:
        certificate = authority.issue(folder / role, common_name="app", roles=f"0:{role}")
        return open_store(gateway.uri, access=GatewayAccess(shown(own, certificate), None))

    yield one
    assert gateway.stop() == 0


def outcome(call: Callable[[], object]) -> str:
    """Return the operation that a refused call lacks; "": it is not refused."""
    try:
        call()
    except Unauthorized as error:
        return str(error).rpartition("operation ")[2]
    return ""


def test_a_role_has_the_rights_that_it_has_at_bookies_and_admins_have_more(open_as: Open) -> None:
    with (
        closing(open_as("admin")) as admin,
        closing(open_as("writer")) as writer,
        closing(open_as("reader")) as reader,
    ):
        ledger_id = writer.next_ledger_id()
        version = writer.create_ledger(ledger_id, metadata(token=3))
        writer.update_ledger(ledger_id, metadata(token=3).closed(9, 90), version)
        assert reader.read_ledger(ledger_id).metadata.last_entry_id == 9
        assert outcome(reader.next_ledger_id) == "add"
        assert outcome(lambda: writer.delete_ledger(ledger_id)) == "delete"
        admin.delete_ledger(ledger_id)
        assert writer.list_ledgers() == []
    with (
        closing(open_as("stranger")) as stranger,
        pytest.raises(Unauthorized, match="has no role at this gateway"),
    ):
        stranger.list_ledgers()


def test_in_the_clear_only_this_machine_is_served(tmp_path: Path) -> None:
    gateway = GatewayProcess(tmp_path / "gateway", new_cluster(tmp_path / "metadata.sqlite"), None)
    gateway.start()
    with closing(open_store(gateway.uri, access=GatewayAccess(None, None))) as store:
        assert store.list_ledgers() == []
    with pytest.raises(ConfigError, match="without TLS, for trials"):
        open_store("gateway://192.0.2.1:3182", access=GatewayAccess(None, None))
    tls = TlsOptions(ca_file=str(tmp_path / "ca.crt"))
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(Error):
        open_store(gateway.uri, access=GatewayAccess(tls, None))
    assert gateway.stop() == 0

"""A store behind a gateway keeps what all stores promise: the suites of the drivers, by a client with all rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fastbk.errors import ConfigError
from fastbk.meta import MetadataStore, open_store
from fastbk.security.rights import OPERATIONS
from tests.fixtures.gateway_store import behind_gateway, principal
from tests.unit.meta import test_metadata_store as ledgers
from tests.unit.meta import test_records as records
from tests.unit.meta.test_metadata_store import Open


@pytest.fixture
def open_driver(tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def one() -> MetadataStore:
            store = open_store(f"memory:{tmp_path}")
            stack.callback(store.close)
            gateway, _ = behind_gateway(store, principal(*OPERATIONS))
            stack.callback(gateway.close)
            return gateway

        one()
        yield one


def _suite(module: object, *left_out: str) -> dict[str, object]:
    found = {name: value for name, value in vars(module).items() if name.startswith("test_")}
    assert set(left_out) <= set(found)
    return {name: value for name, value in found.items() if name not in left_out}


globals().update(_suite(records))
LEFT_OUT = (
    # Registrations, identities and connections are not the gateway's, or not there in this process.
    "test_a_registration_says_how_to_reach_the_bookie",
    "test_a_registration_says_that_an_endpoint_has_tls",
    "test_the_same_data_takes_its_registration_over_and_other_data_does_not",
    "test_a_lease_that_is_not_renewed_runs_out",
    "test_a_closed_store_says_so",
    "test_a_forked_child_is_told_to_open_its_own",
    "test_a_uri_that_cannot_be_served_says_why",
    # They create ledgers that have entries already, or change what never changes: a gateway refuses that.
    "test_several_ledgers_are_read_at_once",
    "test_watches_tell_of_changes_made_through_another_handle",
    "test_a_callback_that_fails_ends_no_watch",
    "test_any_sequence_of_changes_agrees_with_a_dictionary",
    "test_any_sequence_of_changes_of_a_cluster_agrees_with_a_dictionary",
)
globals().update(_suite(ledgers, *LEFT_OUT))


def test_what_only_bookies_and_repairs_need_is_refused_with_what_to_use(open_driver: Open) -> None:
    store = open_driver()
    for call in (
        store.list_identities,
        store.highest_drawn_id,
        lambda: store.read_identity("b1"),
        lambda: store.coordination,
    ):
        with pytest.raises(ConfigError, match="give the URI of the metadata store behind it"):
            call()

"""What a client may do by a gateway: rights, namespaces, passwords, and attempts to have others' ledgers deleted.

INV-W1, INV-W3, INV-W4.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from fastbk.errors import ConfigError, MetadataConflict, NoSuchLedger, Unauthorized
from fastbk.gateway.access import is_above
from fastbk.meta import MetadataStore
from fastbk.meta.gateway import messages
from fastbk.meta.records import Change
from fastbk.model.ledger import PLACEHOLDER, SEGMENT_KEY, LedgerMetadata, custom_of_stream
from fastbk.model.missing_replica import MissingReplica
from fastbk.security.rights import OPERATIONS
from fastbk.stream import chain as chains
from fastbk.stream.chain import Chain, put_chain
from fastbk.stream.cursor.state import CursorRecord, CursorState, put_record
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    EntryRecord,
    NamespaceRecord,
    StreamRecord,
    UsageRecord,
    put,
)
from fastbk.stream.paths import (
    chain_path,
    cursors_path,
    drafts_path,
    entry_path,
    namespace_path,
    stream_path,
    usage_path,
)
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN
from tests.fixtures.gateway_store import (
    BANK,
    ORDERS,
    PAYMENTS,
    SHOP,
    WRITER,
    DirectCalls,
    chain,
    ledger,
    of,
    principal,
    two_namespaces,
    version_of,
)
from tests.fixtures.metadata import metadata


@pytest.fixture
def store(tmp_path: object) -> MetadataStore:
    return two_namespaces(f"operations {tmp_path}")


# --- ledgers --------------------------------------------------------------------------------------------------------


def test_a_reader_sees_ledgers_without_their_passwords_and_changes_none(
    store: MetadataStore,
) -> None:
    one = ledger(store, last=9)
    reader, writer = of(store, "read"), of(store, *WRITER)
    assert reader.read_ledger(one).metadata.password is None
    assert writer.read_ledger(one).metadata.password == b"secret"
    found = store.read_ledger(one)
    for call in (
        lambda: reader.update_ledger(
            one, replace(found.metadata, custom={"a": b"b"}), found.version
        ),
        lambda: reader.delete_ledger(one),
        lambda: reader.create_ledger(99, metadata()),
        reader.next_ledger_id,
        lambda: reader.marks.update(one, [MissingReplica("b1", 0, 5)]),
    ):
        with pytest.raises(Unauthorized):
            call()
    assert store.read_ledger(one) == found


def test_who_may_write_may_not_delete(store: MetadataStore) -> None:
    one = ledger(store, last=9)
    with pytest.raises(Unauthorized, match="needs the operation delete"):
        of(store, *WRITER).delete_ledger(one)
    of(store, "delete").delete_ledger(one)
    with pytest.raises(NoSuchLedger):
        store.read_ledger(one)


def test_a_limited_client_works_with_ledgers_of_its_namespaces_only(store: MetadataStore) -> None:
    mine, theirs, bare = ledger(store, "shop"), ledger(store, "bank"), ledger(store)
    shop = of(store, *OPERATIONS, namespaces=("shop", "shop/*"))
    assert shop.list_ledgers() == [mine]
    assert shop.read_ledger(mine).metadata.namespace == "shop"
    for other in (theirs, bare):
        found = store.read_ledger(other)
        for call in (
            lambda: shop.read_ledger(other),  # noqa: B023
            lambda: shop.read_ledgers([mine, other]),  # noqa: B023
            lambda: shop.update_ledger(other, found.metadata.closed(1, 2), found.version),  # noqa: B023
            lambda: shop.delete_ledger(other),  # noqa: B023
            lambda: shop.marks.update(other, [MissingReplica("b1", 0, 5)]),  # noqa: B023
        ):
            with pytest.raises(Unauthorized, match="its token is limited to namespaces"):
                call()
    with pytest.raises(Unauthorized, match="its token is limited to namespaces"):
        shop.create_ledger(store.next_ledger_id(), metadata())
    found = store.read_ledger(mine)
    moved = replace(found.metadata, custom={"fastbk.namespace": b"bank"})
    with pytest.raises(Unauthorized):
        shop.update_ledger(mine, moved, found.version)


def test_only_an_admin_chooses_an_id_that_was_not_drawn(store: MetadataStore) -> None:
    """INV-W7: a high id could use up those that the counter is to give out."""
    drawn = store.next_ledger_id()
    client = of(store, *WRITER)
    for chosen in (drawn + 1, 2**62 - 1):
        with pytest.raises(Unauthorized, match="needs the operation admin"):
            client.create_ledger(chosen, metadata())
    assert store.list_ledgers() == []
    client.create_ledger(drawn, metadata())
    of(store, *WRITER, "admin").create_ledger(2**62 - 1, metadata())


def test_a_limited_listing_goes_on_over_pages_of_others(store: MetadataStore) -> None:
    for _ in range(5):
        ledger(store, "bank")
    mine = [ledger(store, "shop") for _ in range(3)]
    shop = of(store, "read", namespaces=("shop",))
    assert shop.list_ledgers(count_max=2) == mine[:2]
    assert shop.list_ledgers(mine[1], count_max=2) == mine[2:]


def test_a_ledgers_namespace_is_the_admins(store: MetadataStore) -> None:
    one = ledger(store, "shop")
    found = store.read_ledger(one)
    moved = replace(found.metadata, custom={"fastbk.namespace": b"bank"})
    with pytest.raises(Unauthorized, match="needs the operation admin"):
        of(store, *WRITER).update_ledger(one, moved, found.version)
    of(store, "admin").update_ledger(one, moved, found.version)


# --- lost answers ---------------------------------------------------------------------------------------------------


def test_a_request_that_is_repeated_finds_what_it_did(store: MetadataStore) -> None:
    calls = DirectCalls(store, principal(*OPERATIONS))
    value = metadata(token=5).to_bytes()
    assert calls.call(messages.CreateLedger(1000, 50, value, False), int) == 0
    assert calls.call(messages.CreateLedger(1000, 50, value, True), int) == 0
    with pytest.raises(MetadataConflict):
        calls.call(messages.CreateLedger(1000, 50, metadata(token=6).to_bytes(), True), int)
    closed = metadata(token=5).closed(9, 90).to_bytes()
    assert calls.call(messages.UpdateLedger(1000, 50, closed, 0, False), int) == 1
    assert calls.call(messages.UpdateLedger(1000, 50, closed, 0, True), int) == 1
    with pytest.raises(MetadataConflict):
        calls.call(messages.UpdateLedger(1000, 50, closed, 0, False), int)
    calls.call(messages.DeleteLedger(1000, 50, None, False), type(None))
    calls.call(messages.DeleteLedger(1000, 50, None, True), type(None))
    with pytest.raises(NoSuchLedger):
        calls.call(messages.DeleteLedger(1000, 50, None, False), type(None))
    row = (messages.ChangeRow("other/a", b"1", None),)
    first = calls.call(messages.ChangeRecords(1000, row, False), list[int])
    assert calls.call(messages.ChangeRecords(1000, row, True), list[int]) == first
    with pytest.raises(MetadataConflict) as caught:
        calls.call(
            messages.ChangeRecords(1000, (messages.ChangeRow("other/a", b"2", None),), True),
            list[int],
        )
    assert caught.value.outcome == "unknown"


# --- records --------------------------------------------------------------------------------------------------------


def test_a_limited_client_sees_its_namespaces_and_the_way_to_them(store: MetadataStore) -> None:
    shop = of(store, *OPERATIONS, namespaces=("shop",)).records
    visible = [chain_path(ORDERS), stream_path(ORDERS), namespace_path(SHOP), usage_path(ROOT_ID)]
    assert None not in shop.read(visible)
    assert shop.read([namespace_path(ROOT_ID)]) == [None], (
        "the root has no record, and everybody may know that"
    )
    for path in (chain_path(PAYMENTS), stream_path(PAYMENTS), namespace_path(BANK), entry_path(ROOT_ID, "bank"),
                 entry_path(BANK, "payments"), "elections/auditor"):  # fmt: skip
        with pytest.raises(Unauthorized):
            shop.read([path])
    parts = store.records.children(namespace_path(ROOT_ID))
    listed = [name for part in parts for name in shop.children(f"{namespace_path(ROOT_ID)}/{part}")]
    assert listed == ["shop"]
    for folder in ("", "streams", "streams/0c", cursors_path(PAYMENTS)):
        with pytest.raises(Unauthorized):
            shop.children(folder)
    with pytest.raises(Unauthorized):
        shop.change([Change(chain_path(PAYMENTS), put_chain(chains.open_for_append(Chain(PAYMENTS), "w")),
                            version_of(store, chain_path(PAYMENTS)))])  # fmt: skip


def test_a_stream_is_created_with_its_name_and_counted(store: MetadataStore) -> None:
    records = of(store, *WRITER, namespaces=("shop",)).records
    new = [
        Change(entry_path(SHOP, "bills"), put(EntryRecord("stream", "0d01"))),
        Change(stream_path("0d01"), put(StreamRecord(SHOP, "bills"))),
        Change(chain_path("0d01"), put_chain(Chain("0d01"))),
    ]
    here = Change(usage_path(SHOP), put(UsageRecord(2, 1, 2)), version_of(store, usage_path(SHOP)))
    root = Change(
        usage_path(ROOT_ID), put(UsageRecord(3, 0, 2)), version_of(store, usage_path(ROOT_ID))
    )
    cheap = Change(
        usage_path(ROOT_ID), put(UsageRecord(1, 0, 2)), version_of(store, usage_path(ROOT_ID))
    )
    name, record, _ = new
    for wrong in (
        [*new, here],
        new,
        [here, root],
        [record, here, root],
        [name, here, root],
        [*new, here, cheap],
    ):
        with pytest.raises(Unauthorized):
            records.change(wrong)
    records.change([*new, here, root])


def test_deleting_a_stream_and_shortening_its_retention_need_rights_of_their_own(
    store: MetadataStore,
) -> None:
    path, name = stream_path(ORDERS), entry_path(SHOP, "orders")
    short = Change(
        path,
        put(StreamRecord(SHOP, "orders", PolicyPatch(retention_age_s=1.0))),
        version_of(store, path),
    )
    with pytest.raises(Unauthorized, match="needs the operation truncate"):
        of(store, *WRITER).records.change([short])
    of(store, *WRITER, "truncate").records.change([short])
    quota = put(NamespaceRecord(ROOT_ID, "shop", PolicyPatch(streams_max=10**6)))
    with pytest.raises(Unauthorized, match="needs the operation admin"):
        of(store, *WRITER, "truncate", "delete").records.change(
            [Change(namespace_path(SHOP), quota, version_of(store, namespace_path(SHOP)))]
        )
    deletion = [
        Change(name, None, version_of(store, name)),
        Change(path, put(StreamRecord(SHOP, "orders", PolicyPatch(retention_age_s=1.0), deleting=True)),
               version_of(store, path)),
        Change(usage_path(SHOP), put(UsageRecord(0, 1, 0)), version_of(store, usage_path(SHOP))),
        Change(usage_path(ROOT_ID), put(UsageRecord(1, 0, 2)), version_of(store, usage_path(ROOT_ID))),
    ]  # fmt: skip
    with pytest.raises(Unauthorized, match="needs the operation delete"):
        of(store, *WRITER, "truncate").records.change(deletion)
    of(store, *WRITER, "delete").records.change(deletion)


def test_a_chain_names_no_others_ledger_to_be_deleted(store: MetadataStore) -> None:
    """INV-W4: neither one that is there, nor one that somebody has drawn and creates later."""
    writer = of(store, *WRITER, namespaces=("shop",)).records
    known, version = chain(store)
    (version,) = writer.change(
        [Change(chain_path(ORDERS), put_chain(chains.open_for_append(known, "w")), version)]
    )
    theirs = ledger(store, "bank", PAYMENTS, last=9)
    known, version = chain(store)
    with pytest.raises(Unauthorized, match="is there already"):
        writer.change(
            [
                Change(
                    chain_path(ORDERS),
                    put_chain(chains.reserve(known, known.epoch, theirs)),
                    version,
                )
            ]
        )
    drawn = store.next_ledger_id()
    (version,) = writer.change(
        [Change(chain_path(ORDERS), put_chain(chains.reserve(known, known.epoch, drawn)), version)]
    )
    store.create_ledger(drawn, replace(metadata(), custom={"fastbk.stream": PAYMENTS.encode()}))
    known, version = chain(store)
    for wrong in (
        chains.open_for_append(known, "again"),
        changed(known, reserved=-1, doomed=(drawn,)),
    ):
        with pytest.raises(Unauthorized, match=f"ledger {drawn} is not one of stream {ORDERS}"):
            writer.change([Change(chain_path(ORDERS), put_chain(wrong), version)])
    state = put_record(CursorRecord(CursorState(), doomed=(theirs,)))
    with pytest.raises(Unauthorized, match="is there already"):
        writer.change([Change(f"{cursors_path(ORDERS)}/mine", state)])


def test_who_may_add_deletes_the_ledgers_of_a_draft_that_was_given_up(store: MetadataStore) -> None:
    """INV-W4: they were named before they existed. The janitor deletes them otherwise, a week later."""
    writer, reader = (of(store, *rights, namespaces=("shop",)) for rights in (WRITER, ("read",)))
    drafted, segment = store.next_ledger_id(), store.next_ledger_id()
    change = Change(
        f"{drafts_path(ORDERS)}/0~a~b~c",
        b'{"made_us": 1, "ledgers": [%d, %d]}' % (drafted, segment),
    )
    (version,) = writer.records.change([change])
    custom = custom_of_stream(ORDERS, "shop")
    store.create_ledger(drafted, replace(metadata(9), custom=custom))
    store.create_ledger(segment, replace(metadata(9), custom={**custom, SEGMENT_KEY: b"1"}))
    with pytest.raises(Unauthorized, match="needs the operation delete"):
        writer.delete_ledger(drafted)
    assert change.value is not None
    writer.records.change(
        [replace(change, value=change.value[:-1] + b', "given_up": true}', version=version)]
    )
    for client, other in (
        (reader, drafted),
        (writer, segment),
        (writer, ledger(store, "shop", ORDERS, last=9)),
    ):
        with pytest.raises(Unauthorized, match=r"needs the operation (add|delete)"):
            client.delete_ledger(other)
    writer.delete_ledger(drafted)
    with pytest.raises(NoSuchLedger):
        store.read_ledger(drafted)


def test_a_chain_takes_no_others_ledger_for_a_segment(store: MetadataStore) -> None:
    """INV-W4: retention would delete it."""
    writer = of(store, *WRITER).records
    known, version = chain(store)
    for theirs in (ledger(store, "bank", PAYMENTS, last=9), ledger(store, "bank", last=9)):
        contents = chains.Contents(5, 0, 5, 1, 2, DLSN(1, 9, 0), -1, 100)
        wrong = chains.attach(known, ((theirs, contents),), "k", 0, 1)
        with pytest.raises(Unauthorized, match="is not one of stream"):
            writer.change([Change(chain_path(ORDERS), put_chain(wrong), version)])


def test_a_segment_does_not_end_before_its_ledger(store: MetadataStore) -> None:
    """INV-W3"""
    writer = of(store, *WRITER).records
    mine = ledger(store, "shop", ORDERS, last=9)
    known, version = chain(store)
    for last, match in ((4, "ends at entry 9, not 4"), (9, "")):
        contents = chains.Contents(5, 0, 5, 1, 2, DLSN(1, last, 0), -1, 90)
        change = Change(
            chain_path(ORDERS),
            put_chain(chains.attach(known, ((mine, contents),), "k", 0, 1)),
            version,
        )
        if match:
            with pytest.raises(Unauthorized, match=match):
                writer.change([change])
        else:
            writer.change([change])


def test_what_is_sent_is_bounded_and_checked(store: MetadataStore) -> None:
    calls = DirectCalls(store, principal(*OPERATIONS))
    for body in (
        b"",
        b"\xff",
        messages.encode([1000]),
        messages.encode([1000, [0] * (messages.KEYS_MAX + 1)]),
    ):
        with pytest.raises(ConfigError):
            messages.decode_request("read-ledgers", body)
    with pytest.raises(ConfigError, match="no such operation"):
        messages.decode_request("format-cluster", b"")
    twice = (messages.ChangeRow("a/b", b"1", None), messages.ChangeRow("a/b", b"2", None))
    with pytest.raises(ConfigError, match="once"):
        calls.call(messages.ChangeRecords(1000, twice, False), list[int])
    with pytest.raises(ConfigError):
        calls.call(messages.CreateLedger(1000, 9, b"nonsense", False), int)
    assert LedgerMetadata.from_bytes(metadata().to_bytes()) == metadata()


@pytest.mark.parametrize(
    ("patterns", "path", "above"),
    [
        (("shop/eu",), "", True),
        (("shop/eu",), "shop", True),
        (("shop/eu",), "sho", False),
        (("shop/eu/*",), "shop", True),
        (("sh*",), "shop", True),
        (("*/eu",), "anything", True),
        (("shop",), "bank", False),
        (("shop/*",), "bank", False),
    ],
)
def test_the_way_to_a_namespace(patterns: tuple[str, ...], path: str, above: bool) -> None:
    assert is_above(patterns, path) is above


def test_an_empty_ledger_of_others_stays_theirs(store: MetadataStore) -> None:
    """A placeholder, which keeps an id from being used, belongs to nobody; an empty ledger does."""
    theirs = ledger(store, "bank", last=-1)
    assert store.read_ledger(theirs).metadata.is_empty
    shop = of(store, *WRITER, namespaces=("shop",))
    with pytest.raises(Unauthorized):
        shop.delete_ledger(theirs)
    drawn = store.next_ledger_id()
    with pytest.raises(Unauthorized):
        shop.create_ledger(drawn, metadata(-1))
    shop.create_ledger(drawn, PLACEHOLDER)
    shop.delete_ledger(drawn)
    with pytest.raises(Unauthorized):
        shop.create_ledger(drawn + 1000, PLACEHOLDER)


def test_a_refusal_says_what_was_named_and_what_the_token_is_limited_to(
    store: MetadataStore,
) -> None:
    bank = of(store, *OPERATIONS, namespaces=("bank", "bank/*"))
    with pytest.raises(Unauthorized) as caught:
        bank.records.read([entry_path(ROOT_ID, "shop")])
    assert "may not read name shop: its token is limited to namespaces (bank, bank/*)" in str(
        caught.value
    )
    many = of(store, *OPERATIONS, namespaces=tuple(f"n{number}" for number in range(9)))
    with pytest.raises(Unauthorized, match=r"\(n0, n1, n2, n3, n4 and 4 more\)"):
        many.records.read([chain_path(ORDERS)])

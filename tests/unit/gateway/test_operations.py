"""What a client may do by a gateway: rights, namespaces, passwords, and attempts to have others' ledgers deleted.

INV-W1, INV-W3, INV-W4.
"""

from __future__ import annotations

import random
import struct
import time
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace as changed

from fastbk.errors import (
    ConfigError,
    MetadataConflict,
    MetadataUnavailable,
    NoSuchLedger,
    QuotaExceeded,
    StorageError,
    Unauthorized,
)
from fastbk.gateway.access import Access, NamespaceTree, is_above
from fastbk.gateway.operations import read_states
from fastbk.gateway.rules import CHAINS_MAX, NEW_PAGES_MAX, USAGE_BYTES_MAX
from fastbk.meta.gateway import messages
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import SqliteRecords
from fastbk.model.ledger import PLACEHOLDER, SEGMENT_KEY, LedgerMetadata, custom_of_stream
from fastbk.model.missing_replica import MissingReplica
from fastbk.security.rights import OPERATIONS
from fastbk.stream import chain as chains
from fastbk.stream.chain import LISTED_ROWS_MAX, Chain, get_chain, get_page, put_chain
from fastbk.stream.cursor.state import CursorRecord, CursorState, put_record
from fastbk.stream.cursor.store import CURSORS_MAX
from fastbk.stream.drafts import ledgers_named
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    EntryRecord,
    NamespaceRecord,
    StreamRecord,
    UsageRecord,
    put,
)
from fastbk.stream.paths import (
    NAME_PARTS,
    chain_path,
    cursors_path,
    decode,
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

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore


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
        [
            msgspec.structs.replace(
                change, value=change.value[:-1] + b', "given_up": true}', version=version
            )
        ]
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


# Requests that clients with few rights send to hurt others: what a gateway, and whoever reads
# their records, makes of them.
#
# INV-W1, INV-W3, INV-W4.


# --- records that are small to send and large to read ---------------------------------------------------------------


def packed(mark: bytes, body: bytes) -> bytes:
    return mark + b"\x01" + zlib.compress(body, 9)


def rows(count: int) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + b"\x95\x01\x01\x02\x00\x00" * count


@pytest.mark.parametrize("count", [LISTED_ROWS_MAX + 1, 2_000_000, 8_000_000])
def test_a_chain_of_millions_of_rows_is_refused_before_they_are_made(
    store: MetadataStore, count: int
) -> None:
    """12 kB became a gigabyte, and nobody else was answered for twelve seconds."""
    head = (
        b"\x9b"
        + msgspec.msgpack.encode(ORDERS)
        + b"\x00\xa0\xc2\x93\x01\x00\x00\x01\x01\x00\x00\x90"
    )
    bomb = packed(b"FBKC", head + rows(count))
    began_s = time.process_time()
    with pytest.raises(StorageError):
        get_chain(bomb)
    with pytest.raises(StorageError):
        get_page(packed(b"FBKP", rows(count)))
    reader = of(store, "read").records
    with pytest.raises(Unauthorized):
        reader.change([Change(chain_path(ORDERS), bomb, version_of(store, chain_path(ORDERS)))])
    assert time.process_time() - began_s < 1.0


def test_one_request_changes_few_chains_and_names_few_pages_and_ledgers(
    store: MetadataStore,
) -> None:
    writer = of(store, *WRITER).records
    ids = [f"0f{number:02}" for number in range(CHAINS_MAX + 1)]
    many = [Change(chain_path(one), put_chain(Chain(one))) for one in ids]
    with pytest.raises(Unauthorized, match="send several"):
        writer.change(many)
    known, version = chain(store)
    count = NEW_PAGES_MAX + 1
    pages = b"".join(
        msgspec.msgpack.encode([one, 0, one, one, *[0] * 7]) for one in range(1, count + 1)
    )
    body = (
        b"\x9c" + msgspec.msgpack.encode(ORDERS) + b"\x00\xa0\xc2\x93\x01\x00\x00\x01\x01\x00\x00"
    )
    body += b"\xdc" + struct.pack(">H", count) + pages + b"\x90" + msgspec.msgpack.encode(count + 1)
    with pytest.raises(Unauthorized, match="pages at most"):
        writer.change([Change(chain_path(ORDERS), packed(b"FBKC", body), version)])
    assert chain(store) == (known, version)
    drawn = [store.next_ledger_id() for _ in range(6000)]
    drafts = [
        msgspec.json.encode({"made_us": 1, "ledgers": drawn[at : at + 1000]})
        for at in range(0, 6000, 1000)
    ]
    with pytest.raises(Unauthorized, match="ledgers at most"):
        writer.change(
            [Change(f"{drafts_path(ORDERS)}/0~a~{at}~c", one) for at, one in enumerate(drafts)]
        )
    with pytest.raises(Unauthorized, match="length <= 1000"):
        large = msgspec.json.encode({"made_us": 1, "ledgers": drawn[:1001]})
        writer.change([Change(f"{drafts_path(ORDERS)}/0~a~b~c", large)])


# --- what others read and count -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["read", "add"])
def test_nobody_spoils_the_counts_that_all_who_create_something_write(
    store: MetadataStore, operation: str
) -> None:
    """The root's, of which a client of one namespace changes what its own streams add."""
    shop = of(store, operation, namespaces=("shop",)).records
    path = usage_path(ROOT_ID)
    version = version_of(store, path)
    long = put(UsageRecord(2, 0, 2))[:-1] + b',"more":"%b"}' % (b"x" * USAGE_BYTES_MAX)
    for value in (
        put(UsageRecord(2, 1, 2)),
        b'{"streams":2,"names":2,"changes":%d}' % 10**40,
        long,
    ):
        with pytest.raises(Unauthorized, match=r"count|changes|bytes"):
            shop.change([Change(path, value, version)])


@pytest.mark.parametrize("name", ["%73hop", "shop%2Feu", "shop%2feu", "%2E%2E", "a%0Ab"])
def test_a_name_has_one_spelling_and_is_no_path(store: MetadataStore, name: str) -> None:
    """`shop/eu` in the root namespace would be a path that a token for `shop/*` may work in."""
    shop = of(store, *WRITER, "delete", namespaces=("*",)).records
    part = f"{zlib.crc32(name.encode()) % NAME_PARTS:02d}"
    new = [
        Change(f"{namespace_path(ROOT_ID)}/{part}/{name}", put(EntryRecord("namespace", "ee01"))),
        Change(namespace_path("ee01"), put(NamespaceRecord(ROOT_ID, decode(name)))),
        Change(usage_path("ee01"), put(UsageRecord())),
        Change(
            usage_path(ROOT_ID), put(UsageRecord(2, 1, 3)), version_of(store, usage_path(ROOT_ID))
        ),
    ]
    with pytest.raises(Unauthorized):
        shop.change(new)


def test_whose_an_others_ledger_is_stays_unsaid(store: MetadataStore) -> None:
    theirs = ledger(store, "bank/secret-merger", last=9)
    with pytest.raises(Unauthorized, match="its token is limited to namespaces") as caught:
        of(store, *WRITER, namespaces=("shop",)).read_ledger(theirs)
    assert "merger" not in str(caught.value)


# --- others' ledgers ------------------------------------------------------------------------------------------------


def test_an_id_is_named_only_once_it_was_drawn(store: MetadataStore) -> None:
    """INV-W4: the ids that others draw next are known. The janitor would see to it that they can never be used."""
    nexts = tuple(range(store.next_ledger_id() + 1, store.highest_drawn_id() + 10))
    state = put_record(CursorRecord(CursorState(), doomed=nexts))
    with pytest.raises(Unauthorized, match="was not drawn"):
        of(store, "read").records.change([Change(f"{cursors_path(ORDERS)}/mine", state)])
    draft = msgspec.json.encode({"made_us": 1, "ledgers": nexts})
    assert ledgers_named(draft) == nexts
    writer = of(store, *WRITER).records
    with pytest.raises(Unauthorized, match="was not drawn"):
        writer.change([Change(f"{drafts_path(ORDERS)}/0~a~b~c", draft)])
    known, version = chain(store)
    known = chains.open_for_append(known, "w")
    with pytest.raises(Unauthorized, match="was not drawn"):
        writer.change(
            [
                Change(
                    chain_path(ORDERS),
                    put_chain(chains.reserve(known, known.epoch, nexts[0])),
                    version,
                )
            ]
        )


def test_a_segment_claims_no_more_bytes_than_its_ledger_has(store: MetadataStore) -> None:
    """INV-W3: `retention_bytes` would delete all that is older."""
    mine = ledger(store, "shop", ORDERS, last=9)
    length = store.read_ledger(mine).metadata.length
    known, version = chain(store)

    def of_size(size_bytes: int) -> Change:
        contents = chains.Contents(5, 0, 5, 1, 2, DLSN(1, 9, 0), -1, size_bytes)
        return Change(
            chain_path(ORDERS),
            put_chain(chains.attach(known, ((mine, contents),), "k", 0, 1)),
            version,
        )

    writer = of(store, *WRITER).records
    with pytest.raises(Unauthorized, match="needs the operation truncate"):
        writer.change([of_size(1 << 60)])
    writer.change([of_size(length)])


# --- what readers may create ----------------------------------------------------------------------------------------

CURSOR = put_record(CursorRecord(CursorState()))
MOVED = put_record(CursorRecord(CursorState(serial=1)))


def cursor(name: str, stream: str = ORDERS) -> str:
    return f"{cursors_path(stream)}/{name}"


@pytest.mark.parametrize("operations", [("read",), OPERATIONS])
def test_a_stream_takes_so_many_cursors_and_no_more(
    store: MetadataStore, operations: tuple[str, ...]
) -> None:
    """INV-B1: by what the store has, whatever the client counts. Those that are there go on."""
    store.records.change(
        [Change(cursor(f"c{number}"), CURSOR) for number in range(CURSORS_MAX - 1)]
    )
    reader = of(store, *operations).records
    (version,) = reader.change([Change(cursor("mine"), CURSOR)])
    for value, there in ((MOVED, "1,000"), (CURSOR, "1,001")):
        with pytest.raises(
            QuotaExceeded, match=f"shop/orders has {there} cursors.*delete cursors that nobody uses"
        ):
            reader.change([Change(cursor("another"), CURSOR)])
        (version,) = reader.change([Change(cursor("mine"), value, version)])
        if there == "1,000":
            store.records.change([Change(cursor("overshot"), CURSOR)])
    reader.change([Change(cursor("another", PAYMENTS), CURSOR)])
    reader.change(
        [
            Change(cursor(name), None, version_of(store, cursor(name)))
            for name in ("mine", "overshot")
        ]
    )
    reader.change([Change(cursor("another"), CURSOR)])


def test_one_request_creates_one_cursor_of_a_stream(store: MetadataStore) -> None:
    """Each request that is under way at the bound may get beyond it: by one, and not by thousands."""
    reader = of(store, "read").records
    with pytest.raises(Unauthorized, match="one cursor of a stream at most"):
        reader.change([Change(cursor(name), CURSOR) for name in "ab"])
    reader.change([Change(cursor("a"), CURSOR), Change(cursor("a", PAYMENTS), CURSOR)])


def test_there_is_no_cursor_without_its_stream(store: MetadataStore) -> None:
    """Ids of streams that never were have no end, and a stream is deleted only once nothing is below it."""
    reader = of(store, "read").records
    where = stream_path(ORDERS)
    (version,) = reader.change([Change(cursor("old"), CURSOR)])
    gone = put(StreamRecord(SHOP, "orders", deleting=True))
    store.records.change([Change(where, gone, version_of(store, where))])
    for stream in ("0cff", ORDERS):
        with pytest.raises(Unauthorized, match=f"there is no stream {stream}"):
            reader.change([Change(cursor("new", stream), CURSOR)])
    reader.change([Change(cursor("old"), MOVED, version)])


def test_nothing_is_counted_of_a_namespace_that_is_not_there(store: MetadataStore) -> None:
    """Ids of namespaces that never were have no end, either."""
    count = Change(usage_path("ffff"), put(UsageRecord()))
    for operations in (("read",), OPERATIONS):
        with pytest.raises(Unauthorized, match="begins as it is created"):
            of(store, *operations).records.change([count])


# --- what takes long ------------------------------------------------------------------------------------------------


def test_what_nobody_waits_for_any_more_ends(store: MetadataStore) -> None:
    tree = NamespaceTree(store.records)
    late = Access(principal("read"), tree, end_s=time.monotonic() - 1)
    subjects = tuple(f"={chain_path(one)}" for one in (ORDERS, PAYMENTS))
    with pytest.raises(MetadataUnavailable, match="took too long"):
        read_states(store, late, messages.ReadStates(1000, subjects))


def test_many_records_are_read_by_few_calls_of_the_store(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was one for each 32 of them, which is a round trip to ZooKeeper."""
    paths = tuple(f"{cursors_path(ORDERS)}/c{number}" for number in range(300))
    store.records.change([Change(path, b"1") for path in paths])
    assert isinstance(store.records, SqliteRecords)
    calls, file, queries = DirectCalls(store, principal("read")), store.records._file, list[str]()
    query_of = file.rows

    def counted(query: str, *values: Any) -> list[Any]:
        queries.append(query)
        return query_of(query, *values)

    monkeypatch.setattr(file, "rows", counted)
    found = calls.call(messages.ReadRecords(1000, paths), list[messages.RecordRow | None])
    assert len(found) == len(paths) and None not in found
    states_of = calls.call(
        messages.ReadStates(1000, tuple(f"={path}" for path in paths)), list[str]
    )
    assert len(states_of) == len(paths)
    assert len(queries) == 4, "the sizes and the data, for each request"


def test_states_are_the_same_one_by_one_and_together(store: MetadataStore) -> None:
    """Many more than one call of the store reads, in any order, some of them twice, some that others may see only."""
    made = [
        ledger(store, namespace, stream, last=9)
        for namespace, stream in (("shop", ORDERS), ("bank", PAYMENTS))
    ]
    store.records.change(
        [Change(f"{cursors_path(ORDERS)}/c{number}", b"1") for number in range(40)]
    )
    subjects: list[int | str | None] = [None, *made, 10**9]
    subjects += [f"={chain_path(one)}" for one in (ORDERS, PAYMENTS, "00ff")]
    subjects += [f"={cursors_path(ORDERS)}/c{number}" for number in range(50)]
    folders = [
        cursors_path(ORDERS),
        cursors_path(PAYMENTS),
        entry_path(ROOT_ID, "shop").rpartition("/")[0],
    ]
    subjects += [f"/{folder}" for folder in folders]
    random.Random(5).shuffle(subjects)
    client = principal("read", namespaces=("shop",))
    calls = DirectCalls(store, client)
    together = calls.call(messages.ReadStates(1000, (*subjects, *subjects[:9])), list[str])
    one_by_one = [calls.call(messages.ReadStates(1000, (one,)), list[str])[0] for one in subjects]
    assert together == [*one_by_one, *one_by_one[:9]]
    by_subject = dict(zip(subjects, one_by_one, strict=True))
    assert by_subject[made[1]] == by_subject[f"={chain_path(PAYMENTS)}"] == messages.FORBIDDEN
    assert by_subject[10**9] == by_subject[f"={cursors_path(ORDERS)}/c45"] == messages.ABSENT
    assert messages.FORBIDDEN not in (by_subject[made[0]], by_subject[f"={chain_path(ORDERS)}"])


def test_a_state_is_short_and_is_read_once_however_often_it_is_wanted(store: MetadataStore) -> None:
    calls = DirectCalls(store, principal("read"))
    names = [f"{'c' * 200}{number}" for number in range(500)]
    store.records.change([Change(f"{cursors_path(ORDERS)}/{name}", b"1") for name in names])
    subject = f"/{cursors_path(ORDERS)}"
    began_s = time.process_time()
    found = calls.call(messages.ReadStates(1000, (subject,) * messages.KEYS_MAX), list[str])
    assert time.process_time() - began_s < 1.0
    assert len(found) == messages.KEYS_MAX and len(set(found)) == 1 and len(found[0]) <= 64
    store.records.change([Change(f"{cursors_path(ORDERS)}/another", b"1")])
    assert calls.call(messages.ReadStates(1000, (subject,)), list[str]) != found[:1]


def test_a_mark_that_nests_without_end_is_the_clients_mistake(store: MetadataStore) -> None:
    calls = DirectCalls(store, principal("add"))
    with pytest.raises(ConfigError, match="is none"):
        calls.call(messages.UpdateMark(1000, 5, b"[" * 100_000, b"[]"), bytes)


@pytest.mark.parametrize(
    "request_",
    [
        messages.ReadStates(1000, (f"={'a' * 2_000_000}",)),
        messages.ReadStates(1000, (f"?{chain_path(ORDERS)}",)),
        messages.ReadStates(1000, ("",)),
        messages.ReadStates(1000, (5,), ("s" * 101,)),
        messages.ReadStates(1000, (5, 6), ("s",)),
    ],
)
def test_what_a_waiting_request_would_keep_in_memory_is_short(
    store: MetadataStore, request_: messages.Request
) -> None:
    with pytest.raises(ConfigError):
        DirectCalls(store, principal("read")).call(request_, list[str])

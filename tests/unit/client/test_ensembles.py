"""A writer whose bookies fail takes others: what is acknowledged is where the metadata says it is (INV-E1, INV-E2)."""

from __future__ import annotations

import asyncio
import json
import logging
import random

import pytest

import fastbk
from fastbk.client import ensembles
from fastbk.errors import ConfigError, MetadataUnavailable, NotEnoughBookies
from fastbk.meta.api import BookieIdentity
from fastbk.meta.placement_record import PLACEMENT_PATH, change_rules, read_rules
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.placement.config import BookieView, PlacementConfig
from fastbk.placement.rules import PLACEMENT_KEY, ClusterRules, decode_rule
from fastbk.replication.procedure import Choose
from fastbk.wire.statuses import Status
from tests.fixtures.fake_bookie import FakeBookie
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import by_id, fake_cluster, numbers, one_ledger, read_all


def metadata_of(store: MemoryStore, ledger_id: LedgerId) -> LedgerMetadata:
    return store.read_ledger(ledger_id).metadata


def check_copies(fakes: list[FakeBookie], metadata: LedgerMetadata, ledger_id: LedgerId) -> None:
    """Every entry lies on at least Qa bookies of the fragment that the metadata names for it."""
    ends = [one.first_entry_id for one in metadata.fragments[1:]] + [metadata.last_entry_id + 1]
    for fragment, end in zip(metadata.fragments, ends, strict=True):
        for entry_id in range(fragment.first_entry_id, end):
            holders = [
                name for name in fragment.ensemble if entry_id in by_id(fakes, name).ids(ledger_id)
            ]
            assert len(holders) >= metadata.ack_quorum, f"entry {entry_id} is only on {holders}"


@pytest.mark.uvloop_too
@pytest.mark.parametrize("status", [Status.READ_ONLY, Status.IO_ERROR, Status.NO_LEDGER])
async def test_a_bookie_that_cannot_store_is_replaced_at_once(status: int) -> None:
    async with one_ledger(4) as (client, fakes, store, writer):
        await writer.append_many(numbers(0, 10))
        bad = by_id(fakes, writer.metadata.fragments[0].ensemble[1])
        bad.faults.refuse_adds = lambda *_: status
        await writer.append_many(numbers(10, 20))
        await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "a replacement")
        await writer.append_many(numbers(20, 30))
        assert bad.bookie_id not in writer.stats().ensemble
        await writer.close()
        metadata = metadata_of(store, writer.ledger_id)
        (later,) = {one.ensemble for one in metadata.fragments[1:]}
        assert bad.bookie_id not in later
        check_copies(fakes, metadata, writer.ledger_id)
        assert await read_all(client, writer.ledger_id) == numbers(0, 30)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (4, 2, 2)])
async def test_a_bookie_that_is_lost_for_good_is_replaced_and_its_share_sent_again(
    quorums: tuple[int, int, int],
) -> None:
    async with fake_cluster(6, replace_after=0.05) as (client, fakes, store):
        writer = await client.create_ledger(*quorums)
        await writer.append_many(numbers(0, 20))
        lost = by_id(fakes, writer.stats().ensemble[0])
        await lost.stop()
        futures = [writer.append_nowait(b"%d" % one) for one in range(20, 60)]
        assert await asyncio.gather(*futures) == list(range(20, 60))
        await wait_until_async(lambda: writer.stats().ensemble_changes >= 1, "a replacement")
        await writer.append(b"60")
        await writer.close()
        metadata = metadata_of(store, writer.ledger_id)
        assert lost.bookie_id not in metadata.fragments[-1].ensemble
        check_copies(fakes, metadata, writer.ledger_id)
        assert await read_all(client, writer.ledger_id) == numbers(0, 61)


async def test_without_a_spare_the_writer_goes_on_and_takes_one_that_comes() -> None:
    async with one_ledger(3, replace_after=0.05) as (_, fakes, store, writer):
        await fakes[0].stop()
        await writer.append_many([b"x"] * 10)
        assert writer.stats().ensemble_changes == 0
        spare = FakeBookie("spare")
        await spare.start()
        lease = spare.register(store)
        try:
            await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "the new one")
            assert "spare" in writer.stats().ensemble
            await writer.append_many([b"x"] * 10)
            await writer.close()
            check_copies([*fakes, spare], metadata_of(store, writer.ledger_id), writer.ledger_id)
        finally:
            lease.close()
            await spare.stop()


async def test_a_silent_bookie_is_replaced_when_an_add_waits_too_long() -> None:
    async with fake_cluster(4, bookie_timeout=0.1) as (client, fakes, store):
        writer = await client.create_ledger(ack_quorum=3)
        silent = by_id(fakes, writer.stats().ensemble[1])
        silent.faults.swallow_adds = True
        assert await asyncio.wait_for(writer.append(b"x"), 5) == 0
        assert silent.bookie_id not in writer.stats().ensemble
        await writer.close()
        assert metadata_of(store, writer.ledger_id).fragments[0].first_entry_id == 0


@pytest.mark.slow
async def test_no_change_is_made_where_none_is_allowed() -> None:
    async with one_ledger(4, ensemble_changes_max=0, append_timeout=0.5) as (
        _,
        fakes,
        store,
        writer,
    ):
        ensemble = writer.stats().ensemble
        for name in ensemble[:2]:
            by_id(fakes, name).faults.refuse_adds = lambda *_: Status.READ_ONLY
        with pytest.raises(NotEnoughBookies) as caught:
            await writer.append(b"x")
        assert caught.value.replicas[ensemble[0]] == "READ_ONLY"  # the fake publishes no reason
        with pytest.raises(NotEnoughBookies):
            await writer.close()
        assert metadata_of(store, writer.ledger_id).last_entry_id == -1


async def test_a_delayed_change_waits_until_the_ack_quorum_needs_it() -> None:
    options = {"delayed_ensemble_change": True, "replace_after": 0.05, "bookie_timeout": 0.2}
    async with one_ledger(5, **options, closes=True) as (_, fakes, _, writer):
        first, second, _ = (by_id(fakes, name) for name in writer.stats().ensemble)
        await first.stop()
        for _ in range(10):
            await writer.append(b"x")
        assert writer.stats().ensemble_changes == 0
        await second.stop()
        await asyncio.wait_for(writer.append(b"y"), 5)
        assert writer.stats().ensemble_changes == 1


async def test_metadata_that_is_away_fails_no_append_that_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with one_ledger(4, replace_after=0.05) as (_, fakes, store, writer):
        await writer.append(b"x")

        def away(*_: object, **__: object) -> None:
            raise MetadataUnavailable("the store is away")

        with monkeypatch.context() as patch:
            for name in ("read_ledger", "update_ledger", "list_bookies"):
                patch.setattr(MemoryStore, name, away)
            await by_id(fakes, writer.stats().ensemble[0]).stop()
            for _ in range(50):
                await asyncio.wait_for(writer.append(b"y"), 5)
            assert writer.stats().ensemble_changes == 0
        await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "once it is back", 20)
        await writer.close()
        check_copies(fakes, metadata_of(store, writer.ledger_id), writer.ledger_id)


async def test_a_bookie_that_had_to_be_replaced_is_kept_out_of_new_ledgers() -> None:
    async with one_ledger(4) as (client, fakes, _, writer):
        bad = by_id(fakes, writer.stats().ensemble[0])
        bad.faults.refuse_adds = lambda *_: Status.IO_ERROR
        await writer.append(b"x")
        await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "a replacement")
        await writer.close()
        for _ in range(10):
            other = await client.create_ledger()
            assert bad.bookie_id not in other.stats().ensemble
            await other.close()
        everybody = await client.create_ledger(4, 3)
        assert bad.bookie_id in everybody.stats().ensemble, "there are no others"
        for fake in fakes:
            fake.faults.refuse_adds = None
        await everybody.close()


async def test_replacements_keep_to_the_wishes_of_the_ledger() -> None:
    async with fake_cluster(6, topology={"b0": "/r1", "b1": "/r1", "b2": "/r1", "*": "/r2"}) as (
        client,
        fakes,
        store,
    ):
        wish = PlacementConfig(policy="rack", enforce=True, min_racks_per_write_quorum=2)
        writer = await client.create_ledger(3, 3, placement=wish)
        near = {"b0", "b1", "b2"}
        for _ in range(2):
            before = writer.stats()
            bad = by_id(fakes, before.ensemble[0])
            bad.faults.refuse_adds = lambda *_: Status.READ_ONLY
            await writer.append(b"x")
            await wait_until_async(
                lambda before=before: writer.stats().ensemble_changes > before.ensemble_changes,
                "a replacement",
            )
            ensemble = set(writer.stats().ensemble)
            assert ensemble & near
            assert ensemble - near
        await writer.close()
        assert metadata_of(store, writer.ledger_id).is_closed


async def test_a_ledger_stays_with_the_bookies_of_its_group_whoever_replaces_one() -> None:
    async with fake_cluster(0) as (client, _, store):
        fakes = [FakeBookie(f"b{number}") for number in range(7)]
        leases = []
        for number, fake in enumerate(fakes):
            await fake.start()
            leases.append(fake.register(store, labels="gold" if number < 5 else ""))
        try:
            gold = {fake.bookie_id for fake in fakes[:5]}
            wish = PlacementConfig(group="gold", group_is_hard=True)
            writer = await client.create_ledger(placement=wish, metadata={"mine": b"1"})
            assert set(writer.stats().ensemble) <= gold
            await writer.append(b"0")
            first = by_id(fakes, writer.stats().ensemble[0])
            first.faults.refuse_adds = lambda *_: Status.READ_ONLY
            await writer.append(b"1")
            await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "a replacement")
            await writer.append(b"2")
            assert set(writer.stats().ensemble) <= gold
            # A stranger recovers it, and has to take another bookie.
            second = by_id(fakes, writer.stats().ensemble[0])
            second.faults.refuse_adds = lambda *_: Status.READ_ONLY
            async with fastbk.connect(store) as other:
                reader = await other.open_ledger(writer.ledger_id)
                assert {name for one in reader.metadata.fragments for name in one.ensemble} <= gold
                custom = dict(reader.metadata.custom)
                stored = decode_rule(custom.pop(PLACEMENT_KEY))
                assert (stored.group, stored.group_is_hard) == ("gold", True)
                assert custom == {"mine": b"1", "fastbk.group": b"hard:gold"}
                assert len([one async for one in reader.read()]) == 3
        finally:
            for lease, fake in zip(leases, fakes, strict=True):
                lease.close()
                await fake.stop()


async def test_a_wiped_bookie_is_replaced_and_never_taken_again() -> None:
    async with one_ledger(4, replace_after=30) as (_, fakes, store, writer):
        await writer.append(b"x")
        wiped = by_id(fakes, writer.stats().ensemble[0])
        await wiped.stop()
        wiped.incarnation += 1
        wiped.ledgers.clear()
        await wiped.start()
        await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "a replacement")
        assert wiped.ids(writer.ledger_id) == []
        await writer.append(b"y")
        await writer.close()
        check_copies(
            [fake for fake in fakes if fake is not wiped] + [FakeBookie(wiped.bookie_id)],
            metadata_of(store, writer.ledger_id),
            writer.ledger_id,
        )


# --- the log ---------------------------------------------------------------------------------------------------------


def replaced(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [
        one.fields  # type: ignore[attr-defined]
        for one in caplog.records
        if getattr(one, "event", "") == "ledger.bookie_replaced"
    ]


async def test_a_writer_logs_whom_it_replaces(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fastbk")
    async with one_ledger(4) as (_, fakes, _, writer):
        await writer.append_many([b"x"] * 5)
        lost = writer.metadata.fragments[0].ensemble[1]
        by_id(fakes, lost).faults.refuse_adds = lambda *_: Status.READ_ONLY
        await writer.append(b"y")
        await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "a replacement")
        (fields,) = replaced(caplog)
        assert (fields["ledger_id"], fields["bookie"], fields["index"]) == (0, lost, 1)
        assert fields["replacement"] in writer.stats().ensemble
        assert fields["first_entry_id"] == writer.metadata.fragments[-1].first_entry_id
        assert (fields["reason"], fields["cause"]) == ("READ_ONLY", "writer")
        assert ":" in str(fields["client"])


async def test_a_recovery_logs_whom_it_replaces(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(4) as (client, fakes, store), fastbk.connect(store) as other:
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 5)
        lost = writer.metadata.fragments[0].ensemble[2]
        by_id(fakes, lost).faults.refuse_adds = lambda *_: Status.IO_ERROR
        caplog.set_level(logging.INFO, "fastbk")
        await other.open_ledger(writer.ledger_id)
        fields = next(one for one in replaced(caplog) if one["cause"] == "recovery")
        assert (fields["bookie"], fields["ledger_id"]) == (lost, writer.ledger_id)
        assert "IO_ERROR" in str(fields["reason"])


# The rule of the cluster, and that of each ledger (INV-P3, INV-P4).


PLACES = {"b0": "/r1/a", "b1": "/r1/b", "b2": "/r1/c", "b3": "/r2/d", "b4": "/r2/e"}
REGIONS = PlacementConfig(policy="region", enforce=True)


def region_of(bookie_id: str) -> str:
    return PLACES[bookie_id][:3]


@pytest.mark.parametrize("number", range(6))
async def test_a_stranger_keeps_to_the_rule_that_was_stored_with_a_ledger(number: int) -> None:
    """INV-P4: by the stranger's own wishes and the cluster's, the place may go to any rack."""
    async with fake_cluster(5) as (client, fakes, store):
        change_rules(store, lambda rules: ClusterRules(rules.rule, PLACES))
        writer = await client.create_ledger(placement=REGIONS)
        await writer.append(b"%d" % number)
        ensemble = writer.stats().ensemble
        regions = [region_of(bookie_id) for bookie_id in ensemble]
        # The one whose loss leaves one region.
        alone = next(one for one in ensemble if regions.count(region_of(one)) == 1)
        by_id(fakes, alone).faults.refuse_adds = lambda *_: Status.READ_ONLY
        async with fastbk.connect(store, placement=PlacementConfig(policy="spread")) as stranger:
            reader = await stranger.open_ledger(writer.ledger_id)
        fragment = reader.metadata.fragments[-1]
        assert alone not in fragment.ensemble, "its copy was written again elsewhere"
        assert len({region_of(one) for one in fragment.ensemble}) == 2
        assert decode_rule(reader.metadata.custom[PLACEMENT_KEY]) == REGIONS


async def test_without_a_rule_in_the_store_racks_are_kept_apart_where_they_are_known() -> None:
    racks = {"b0": "/one", "b1": "/one", "b2": "/one", "b3": "/two"}
    async with fake_cluster(4) as (client, _, store):
        change_rules(store, lambda rules: ClusterRules(rules.rule, racks))
        for _ in range(8):
            async with await client.create_ledger(2, 2) as writer:
                assert "b3" in writer.stats().ensemble
                assert not writer.metadata.custom, "the default is not stored with each ledger"


async def test_racks_and_groups_of_pulsars_node_count_for_every_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for the one that heals a ledger of an isolated namespace of Pulsar's (INV-P4)."""
    racks = {"b0": "/one", "b1": "/one", "b2": "/one", "b3": "/two", "b4": "/two"}
    groups = {"ssd": ["b0", "b1", "b3"], "hdd": ["b2", "b4"]}
    stored = {
        group: {name: {"rack": racks[name]} for name in names} for group, names in groups.items()
    }
    monkeypatch.setattr(MemoryStore, "pulsar_racks", lambda _: json.dumps(stored).encode())
    isolated = {
        "policyClass": "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy",
        "properties": {"isolationBookieGroups": "ssd"},
    }
    custom = {"EnsemblePlacementPolicyConfig": json.dumps(isolated).encode()}
    async with fake_cluster(5) as (client, fakes, _):
        for _ in range(8):
            async with await client.create_ledger(2, 2) as writer:
                assert {racks[name] for name in writer.stats().ensemble} == {"/one", "/two"}
        wish = PlacementConfig(group="ssd", group_is_hard=True)
        for number in range(4):
            writer = await client.create_ledger(2, 2, placement=wish)
            assert "b3" in writer.stats().ensemble, "the only one of the group in its rack"
            await client.edit_metadata(
                writer.ledger_id, {**dict.fromkeys(writer.metadata.custom), **custom}
            )
            await writer.append(b"%d" % number)
            by_id(fakes, "b3").faults.refuse_adds = lambda *_: Status.IO_ERROR
            reader = await client.open_ledger(writer.ledger_id)
            by_id(fakes, "b3").faults.refuse_adds = None
            found = set(reader.metadata.fragments[-1].ensemble)
            assert found == {"b0", "b1"}, "b4 would be in another rack, and is of another group"


async def test_a_calls_wish_narrows_the_clusters_rule_and_never_loosens_it() -> None:
    """INV-P3"""
    async with fake_cluster(5, topology=PLACES) as (client, _, store):
        change_rules(store, lambda _: ClusterRules(REGIONS))
        for wish in (None, PlacementConfig(), PlacementConfig(policy="rack")):
            async with await client.create_ledger(2, 2, placement=wish) as writer:
                assert len({region_of(one) for one in writer.stats().ensemble}) == 2
                assert decode_rule(writer.metadata.custom[PLACEMENT_KEY]) == REGIONS
        three = PlacementConfig(policy="region", min_regions_per_write_quorum=3)
        with pytest.raises(NotEnoughBookies):
            await client.create_ledger(3, 3, placement=three)
        with pytest.raises(NotEnoughBookies):
            await client.check_bookies(3, 3, 2, placement=three)
        with pytest.raises(ConfigError, match="enforced"):
            await client.create_ledger(3, 3, placement=PlacementConfig(policy="zone"))


async def test_a_rule_that_is_changed_counts_for_clients_that_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ensembles, "RULES_READ_INTERVAL_S", 0.0)
    async with fake_cluster(5, topology=PLACES) as (client, _, store):
        await (await client.create_ledger(3, 3)).close()
        change_rules(
            store,
            lambda _: ClusterRules(
                PlacementConfig(policy="rack", enforce=True, min_racks_per_write_quorum=6)
            ),
        )
        with pytest.raises(NotEnoughBookies):
            await client.create_ledger(6, 6)
        (found,) = store.records.read([PLACEMENT_PATH])
        assert found is not None
        store.records.change([Change(PLACEMENT_PATH, b"nobody reads this", found.version)])
        assert read_rules(store) == ClusterRules(), "named, and without effect (INV-M17)"
        await (await client.create_ledger(3, 3)).close()


async def test_without_metadata_the_rule_that_was_read_last_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ensembles, "RULES_READ_INTERVAL_S", 0.0)
    async with fake_cluster(5, topology=PLACES) as (client, fakes, store):
        change_rules(store, lambda _: ClusterRules(REGIONS))
        writer = await client.create_ledger(2, 2)

        def fails(store: object) -> ClusterRules:
            raise MetadataUnavailable("nobody answers")

        monkeypatch.setattr(ensembles, "read_rules", fails)
        bad = by_id(fakes, writer.stats().ensemble[0])
        bad.faults.refuse_adds = lambda *_: Status.READ_ONLY
        await writer.append(b"x")
        assert len({region_of(one) for one in writer.stats().ensemble}) == 2
        await writer.close()
        async with fastbk.connect(store) as other:
            with pytest.raises(MetadataUnavailable):
                await other.create_ledger(2, 2)


# Choices that keep less than a rule's minimum.


def short(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [
        one.fields  # type: ignore[attr-defined]
        for one in caplog.records
        if getattr(one, "event", "") == "ledger.placed_short"
    ]


async def test_a_new_ledger_with_less_than_its_rule_wants_is_counted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_cluster(4, topology={"b3": "/two", "*": "/one"}) as (client, fakes, store):
        await (await client.create_ledger(2, 2)).close()
        assert (client.placements_short, short(caplog)) == (0, [])
        alone = by_id(fakes, "b3")
        await alone.stop()
        writer = await client.create_ledger(2, 2)
        assert client.stats()["placements_short"] == 1
        (fields,) = short(caplog)
        assert fields["ledger_id"] == writer.ledger_id
        assert "spans 1 rack" in str(fields["reason"])
        await client.check_bookies(2, 2, 2)
        assert client.placements_short == 1, "nothing was made"
        await writer.close()
        assert store.read_ledger(writer.ledger_id).metadata.is_closed


async def test_a_client_that_never_saw_the_lost_rack_knows_it_from_the_clusters_table() -> None:
    async with fake_cluster(2) as (client, _, store):
        change_rules(
            store, lambda rules: ClusterRules(rules.rule, {"b0": "/r1", "b1": "/r1", "gone": "/r2"})
        )
        await (await client.create_ledger(2, 2)).close()
        assert client.placements_short == 0, "no bookie of that name is known"
        store.write_identity(BookieIdentity(BookieId("gone"), 1, ()), None)
        async with fastbk.connect(store) as other:
            await (await other.create_ledger(2, 2)).close()
            assert other.placements_short == 1


async def test_where_no_bookie_says_where_it_is_nothing_falls_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_cluster(3) as (client, _, _):
        await (await client.create_ledger(3, 3)).close()
        assert (client.placements_short, short(caplog)) == (0, [])


async def test_a_replacement_with_less_than_the_rule_wants_is_counted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    racks = {"b0": "/one", "b1": "/one", "b2": "/one", "b3": "/two"}
    async with fake_cluster(4, topology=racks) as (client, fakes, _):
        writer = await client.create_ledger(2, 2)
        by_id(fakes, "b3").faults.refuse_adds = lambda *_: Status.READ_ONLY
        await writer.append(b"x")
        await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "a replacement")
        assert client.placements_short == 1
        other = next(one for one in writer.stats().ensemble if one != "b3")
        by_id(fakes, other).faults.refuse_adds = lambda *_: Status.READ_ONLY
        await writer.append(b"y")
        await wait_until_async(lambda: writer.stats().ensemble_changes == 2, "another one")
        assert client.placements_short == 2
        assert len(short(caplog)) == 2
        await writer.close()


async def test_a_member_that_is_down_is_where_it_was_seen_last() -> None:
    """INV-P4: it would count as being in a rack of its own, and return to the rack of the one that came."""
    racks = {"b0": "/one", "b1": "/two", "b2": "/one", "b3": "/two", "b4": "/two"}
    rule = PlacementConfig(policy="rack", enforce=True)
    async with fake_cluster(0) as (client, _, store):
        fakes = [FakeBookie(name) for name in racks]
        leases = []
        for fake in fakes:
            await fake.start()
            leases.append(fake.register(store, location=racks[fake.bookie_id]))
        try:
            for _ in range(6):
                writer = await client.create_ledger(2, 2, placement=rule)
                stays, goes = writer.stats().ensemble
                await writer.append(b"x")
                lease = leases[[fake.bookie_id for fake in fakes].index(stays)]
                lease.close()
                by_id(fakes, goes).faults.refuse_adds = lambda *_: Status.READ_ONLY
                await writer.append(b"y")
                await wait_until_async(
                    lambda writer=writer: writer.stats().ensemble_changes == 1, "a replacement"
                )
                assert {racks[one] for one in writer.stats().ensemble} == {"/one", "/two"}
                await writer.close()
                by_id(fakes, goes).faults.refuse_adds = None
                again = by_id(fakes, stays)
                leases[fakes.index(again)] = again.register(store, location=racks[stays])
        finally:
            for lease, fake in zip(leases, fakes, strict=True):
                lease.close()
                await fake.stop()


def test_why_nobody_takes_the_place_is_the_rule_s_reason() -> None:
    """It said of each bookie that it can be used, and not what none of them can keep."""
    racks = {"b0": "/one", "b1": "/two", "b2": "/two"}
    views = [BookieView(BookieId(name), location=rack) for name, rack in racks.items()]
    action = Choose((BookieId("b0"), BookieId("b1")), frozenset({0}), frozenset({BookieId("b0")}))
    rule = PlacementConfig(policy="rack", enforce=True)
    choosing = ensembles.replacements(lambda: views, action, 2, 2, rule, random.Random(1))
    assert next(choosing) == ()
    with pytest.raises(StopIteration) as ended:
        choosing.send({})
    assert not ended.value.value.chosen
    assert "has 2 racks" in ended.value.value.shortage

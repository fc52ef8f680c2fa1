"""`fastbk cluster placement`: what it stores, what it refuses, and what it prints; on metadata in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fastbk.meta import MetadataStore, open_store
from fastbk.meta.api import BookieService, Endpoint
from fastbk.meta.placement_record import PLACEMENT_PATH, change_rules, read_rules
from fastbk.meta.records import Change
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import NAMESPACE_KEY, Fragment, LedgerMetadata
from fastbk.placement.config import PlacementConfig
from fastbk.placement.rules import DEFAULT_RULE, ClusterRules, rule_text
from tests.fixtures.cli import Cli

RACKS = {"b1": "/eu/r1", "b2": "/eu/r1", "b3": "/eu/r2"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    """The metadata of three bookies, of which nobody says where they are."""
    with closing(open_store(f"memory:{tmp_path}")) as opened:
        for name in RACKS:
            service = BookieService(BookieId(name), 1, (Endpoint("127.0.0.1", 3181),))
            opened.register_bookie(service, writable=True)
        yield opened


@pytest.fixture
def cli(store: MetadataStore, tmp_path: Path) -> Cli:
    assert store
    return Cli(f"memory:{tmp_path}")


def locate(store: MetadataStore, rule: PlacementConfig = DEFAULT_RULE) -> None:
    change_rules(store, lambda _: ClusterRules(rule, RACKS))


def make(store: MetadataStore, ledger_id: int, *ensemble: str, namespace: str = "") -> None:
    value = LedgerMetadata(
        ensemble_size=len(ensemble),
        write_quorum=2,
        ack_quorum=2,
        fragments=(Fragment(0, tuple(BookieId(one) for one in ensemble)),),
        custom={NAMESPACE_KEY: namespace.encode()} if namespace else {},
    )
    store.create_ledger(LedgerId(ledger_id), value.closed(9, 90))


def change(cli: Cli, *words: str) -> Any:
    code, answer, messages = cli.answer("cluster", "placement", "set", *words)
    assert code == 0, messages
    return answer


def refusal(cli: Cli, *words: str) -> str:
    return cli.fails("cluster", "placement", "set", *words, code=2)


# --- set ----------------------------------------------------------------------------------------------------------


def test_what_changes_is_stored_and_said(cli: Cli, store: MetadataStore) -> None:
    locate(store)
    answer = change(cli, "--enforce", "--group", "ssd", "--location", "10.1.*=/eu/r9")
    assert answer["changes"] == [
        "rule: rack, 2 racks in each write set, not enforced"
        " -> rack, 2 racks in each write set, enforced, first bookies of the group ssd",
        "location of 10.1.*: - -> /eu/r9",
    ]
    rules = read_rules(store)
    assert rules.rule == PlacementConfig(policy="rack", enforce=True, group="ssd")
    assert rules.locations == {**RACKS, "10.1.*": "/eu/r9"}
    assert change(cli, "--location", "10.1.*=", "--location", "b3=/eu/r3")["changes"] == [
        "location of 10.1.*: /eu/r9 -> -",
        "location of b3: /eu/r2 -> /eu/r3",
    ]
    assert change(cli, "--enforce")["changes"] == []
    change(cli, "--group", "none", "--no-enforce")
    assert read_rules(store).rule == DEFAULT_RULE


def test_what_an_append_waits_for_is_part_of_the_rule(cli: Cli, store: MetadataStore) -> None:
    locate(store)
    assert change(cli, "--ack-racks", "2")["changes"] == [
        "rule: rack, 2 racks in each write set, not enforced"
        " -> rack, 2 racks in each write set, not enforced, an append waits for copies in 2 racks"
    ]
    assert read_rules(store).rule == PlacementConfig(policy="rack", min_racks_per_ack_quorum=2)
    change(cli, "--policy", "region", "--regions", "2", "--ack-regions", "2", "--yes")
    assert "an append waits for copies in 2 racks and 2 regions" in rule_text(
        read_rules(store).rule
    )
    change(cli, "--policy", "spread")
    assert read_rules(store).rule == PlacementConfig()


def test_racks_that_no_append_could_reach_ask_for_consent(cli: Cli, store: MetadataStore) -> None:
    locate(store)
    said = refusal(cli, "--racks", "3", "--ack-racks", "3")
    assert "new ledgers would be refused: the minimum is 3 racks" in said


def test_reset_leaves_where_bookies_are(cli: Cli, store: MetadataStore) -> None:
    locate(store, PlacementConfig(policy="region", group="ssd"))
    change(cli, "--reset", "--racks", "1")
    rules = read_rules(store)
    assert rules.rule == PlacementConfig(policy="rack", min_racks_per_write_quorum=1)
    assert rules.locations == RACKS


def test_another_policy_forgets_what_the_former_one_counted(cli: Cli, store: MetadataStore) -> None:
    change(cli, "--policy", "region", "--racks", "3", "--regions", "1")
    change(cli, "--policy", "zone", "--zones", "4")
    assert read_rules(store).rule == PlacementConfig(
        policy="zone", min_zones_per_write_quorum=4, desired_zones_per_write_quorum=4
    )
    change(cli, "--policy", "spread")
    assert read_rules(store).rule == PlacementConfig()


def test_a_file_replaces_the_table(cli: Cli, store: MetadataStore, tmp_path: Path) -> None:
    locate(store)
    file = tmp_path / "racks.toml"
    file.write_text('"b7:3181" = "/eu/r7/"\n"*" = "/us/r1"\n')
    change(cli, "--locations", str(file), "--location", "b8=/eu/r8")
    assert read_rules(store).locations == {"b7:3181": "/eu/r7/", "*": "/us/r1", "b8": "/eu/r8"}
    change(cli, "--locations", "/dev/null")
    assert read_rules(store).locations == {}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("b1 = ", "no valid TOML"),
        ("\x00", "no valid TOML"),
        ('[b1]\nlocation = "/a"', "[b1] is a section"),
        ('b1 = "no place"', "write /region/rack"),
        ("b1 = 3", "a location is text"),
        ('"a*b" = "/r"', "the beginning of one"),
    ],
)
def test_a_file_that_is_wrong_is_refused(cli: Cli, tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "racks.toml"
    file.write_text(text)
    assert part in refusal(cli, "--locations", str(file))


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "nothing to set"),
        (("--zones", "2"), "give --policy zone"),
        (("--policy", "zone", "--racks", "2"), "give --policy rack or region"),
        (("--racks", "0"), "--racks 0: must be 1..64"),
        (("--ack-racks", "3"), "give --racks 3, too"),
        (("--ack-zones", "2"), "give --policy zone"),
        (("--policy", "zone", "--zones", "3", "--desired-zones", "2"), "--desired-zones 2"),
        (("--group-kind", "hard"), "give --group LABEL"),
        (("--group", "none", "--group-kind", "hard"), "give --group LABEL"),
        (("--group", "a b"), "label 'a b'"),
        (("--location", "b1"), "write ID=/region/rack"),
        (("--location", "=/a"), "write ID=/region/rack"),
        (("--location", "b1=nowhere"), "write /region/rack"),
        (("--location", "b1="), "no such row"),
        (("--locations", "/nowhere/racks.toml"), "No such file"),
    ],
)
def test_what_makes_no_sense_is_refused(
    cli: Cli, store: MetadataStore, words: tuple[str, ...], part: str
) -> None:
    assert part in refusal(cli, *words)
    assert read_rules(store) == ClusterRules()


def test_an_enforced_rule_that_nobody_can_keep_needs_consent(
    cli: Cli, store: MetadataStore
) -> None:
    assert "2 racks, and the bookies that take adds are in 1" in refusal(cli, "--enforce")
    assert read_rules(store) == ClusterRules()
    answer = change(cli, "--enforce", "--yes")
    (unlocated, refused) = answer["warnings"]
    assert "nobody says where any bookie is" in unlocated and "new ledgers are refused" in refused
    change(cli, "--location", "b1=/eu/r1")  # a step to what can be kept asks nothing
    change(cli, "--location", "b2=/eu/r1", "--location", "b3=/eu/r2")
    assert "no bookie of the group 'ssd'" in refusal(cli, "--group", "ssd", "--group-kind", "hard")


def test_a_dry_run_changes_nothing(cli: Cli, store: MetadataStore) -> None:
    answer = change(cli, "--location", "b1=/eu/r1", "--dry-run")
    assert answer["dry_run"] and answer["changes"] == ["location of b1: - -> /eu/r1"]
    assert read_rules(store) == ClusterRules()


def test_a_record_that_nobody_can_read_is_written_anew(cli: Cli, store: MetadataStore) -> None:
    store.records.change([Change(PLACEMENT_PATH, b"?", None)])
    (said,) = change(cli, "--policy", "rack")["changes"]
    assert "written anew" in said
    assert change(cli, "--policy", "rack")["changes"] == []


def script_of(folder: Path, text: str) -> str:
    path = folder / "racks.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_script_fills_the_table_once(cli: Cli, store: MetadataStore, tmp_path: Path) -> None:
    """Decision 169: it runs where the operator runs the command, and no record names it."""
    change_rules(store, lambda _: ClusterRules(locations={"b1": "/us/r8", "away": "/us/r9"}))
    script = script_of(tmp_path, 'for host; do echo "/eu/$host"; done')
    answer = change(cli, "--script", script, "--location", "b3=/eu/r7")
    assert answer["changes"][0] == "location of b1: /us/r8 -> /eu/127.0.0.1"
    assert read_rules(store).locations == {
        "away": "/us/r9",
        "b1": "/eu/127.0.0.1",
        "b2": "/eu/127.0.0.1",
        "b3": "/eu/r7",
    }
    (stored,) = store.records.read([PLACEMENT_PATH])
    assert stored is not None and script.encode() not in stored.value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exit 3", "it ended with code 3"),
        ("echo /a /b", "it printed 2 locations for 1 hosts"),
        ("echo nowhere", "it printed no location"),
    ],
)
def test_a_script_that_fails_changes_nothing(
    cli: Cli, store: MetadataStore, tmp_path: Path, text: str, reason: str
) -> None:
    assert reason in refusal(cli, "--script", script_of(tmp_path, text))
    assert read_rules(store) == ClusterRules()


# --- show and check -----------------------------------------------------------------------------------------------


def test_show_says_who_says_where_bookies_are(cli: Cli, store: MetadataStore) -> None:
    answer = cli.json("cluster", "placement", "show")
    assert answer["is_default"]
    assert answer["racks"] == {"/default-region/default-rack": ["b1", "b2", "b3"]}
    assert len(answer["warnings"]) == 1  # type: ignore[arg-type]
    change_rules(store, lambda _: ClusterRules(DEFAULT_RULE, {"b1": "/eu/r1"}))
    text = cli("cluster", "placement", "show")
    assert "b1      up     /eu/r1                        the cluster's table" in text
    assert "warning: nobody says where these are, so they count as one rack: b2, b3" in text


def test_show_names_pulsars_node_and_what_is_wrong_with_it(
    cli: Cli, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    racks = b'{"ssd":{"b1":{"rack":"/eu/r1"},"b2":{"rack":"no rack"}}}'
    monkeypatch.setattr(type(store), "pulsar_racks", lambda _: racks)
    code, answer, _ = cli.answer("cluster", "placement", "show")
    assert code == 0
    found = {row["bookie_id"]: (row["source"], row["labels"]) for row in answer["bookies"]}
    assert found == {"b1": ("pulsar", ["ssd"]), "b2": ("default", ["ssd"]), "b3": ("default", [])}
    assert answer["locations"] == {}, "the node is no part of the table"
    assert "Pulsar's node /bookies: 'b2' has a rack that is no location" in answer["warnings"][0]


def test_check_lists_what_is_misplaced_by_namespace(cli: Cli, store: MetadataStore) -> None:
    locate(store)
    make(store, 1, "b1", "b3")
    assert "nothing is misplaced" in cli("cluster", "placement", "check")
    make(store, 2, "b1", "b2", namespace="shop")
    make(store, 3, "b2", "b1")
    text = cli("cluster", "placement", "check", code=1)
    assert "problem: 2 ledgers, 2 fragments otherwise than wanted, not enforced:" in text
    assert "  without a namespace:\n    ledger 3 from entry 0: the write set b2, b1 spans" in text
    assert "  namespace shop:\n    ledger 2 from entry 0: the write set b1, b2 spans" in text
    assert "and 1 more" in cli("cluster", "placement", "check", "--limit", "1", code=1)
    change(cli, "--enforce")
    assert "fragments against an enforced rule" in cli("cluster", "placement", "check", code=1)
    assert "must be" in cli.fails("cluster", "placement", "check", "--limit", "0", code=2)


def test_explain_names_the_reason(cli: Cli, store: MetadataStore) -> None:
    locate(store)
    make(store, 2, "b1", "b2", namespace="shop")
    text = cli("cluster", "placement", "check", "--explain", "2", code=1)
    assert "rule: rack, 2 racks in each write set, not enforced; it is the cluster's" in text
    assert "problem: the write set b1, b2 spans 1 rack (/eu/r1), the minimum is 2" in text
    assert "b3 (/eu/r2): it could take the place of b1 or b2: that leaves no fault" in text
    cli.fails("cluster", "placement", "check", "--explain", "77", code=1)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (PlacementConfig(), "spread"),
        (
            PlacementConfig(policy="region", enforce=True, min_regions_per_write_quorum=1),
            "region, 2 racks and 1 region in each write set, enforced",
        ),
        (
            PlacementConfig(policy="zone", group="ssd", group_is_hard=True),
            "zone, 2 zones in each write set, 3 where possible, not enforced, only bookies of the group ssd",
        ),
    ],
)
def test_rules_in_words(rule: PlacementConfig, text: str) -> None:
    assert rule_text(rule) == text

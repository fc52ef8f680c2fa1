"""Alerts have runbooks, dashboards are what Grafana's schema says, and neither uses a name that nobody counts.

tests/integration/test_monitoring.py scrapes real services and asks a real Prometheus.
"""

from __future__ import annotations

import json
import re
import shlex
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from fastbk.cli.completion import whole_parser
from fastbk.observe.names import ADOPT_REASONS, NAMES
from tests.fixtures.monitoring import DASHBOARDS, FOLDER, alerts, metrics_in, metrics_used, queries
from tests.style.test_docs import headings
from tests.style.tree import ROOT

ROLES = ("worker", "journal", "index", "gc")
RUNBOOK_LINES = range(5, 21)


def test_every_alert_has_a_runbook_a_severity_and_a_test() -> None:
    tests = "".join(one.read_text() for one in (FOLDER / "prometheus").glob("rules_*test.yml"))
    page = (ROOT / "docs" / "alerts.md").read_text()
    anchors = headings(ROOT / "docs" / "alerts.md")
    assert len(alerts()) > 10
    for name, rule in alerts().items():
        assert (
            f"runbook_url: docs/alerts.md#{name.lower()}\n" in rule and name.lower() in anchors
        ), name
        assert re.search(r"severity: (critical|warning)}", rule), name
        assert "summary: " in rule and "description: " in rule, name
        assert f'alertname="{name}", alertstate="firing"' in tests, f"{name}: rules_test.yml"
        text = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        assert text.count("\n") in RUNBOOK_LINES and "```" in text, name
    written = re.findall(r"^## (Fastbk\w+)$", page, re.MULTILINE)
    assert written == list(alerts()), "runbooks in the order of the rules, and none without a rule"


def test_commands_of_runbooks_exist(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    commands = re.findall(r"(?:^|`)(fastbk [a-z][^`\n]*)", page, re.MULTILINE)
    assert len(commands) > 20
    parser = whole_parser()
    for command in commands:
        try:
            parser.parse_args(shlex.split(command, comments=True)[1:])
        except SystemExit:
            pytest.fail(f"{command}: {capsys.readouterr().err}")


def test_names_of_a_bookies_processes_are_counted() -> None:
    """Others need real services: test_monitoring of the integration tests."""
    counted = {name.metric for name in NAMES if name.is_own}
    unknown = {
        metric: where
        for metric, where in metrics_used().items()
        if metric.startswith(tuple(f"fastbk_{role}_" for role in ROLES))
        and metric not in counted
        and re.sub(r"_(bucket|sum|count)$", "", metric) not in counted
    }
    assert unknown == {}


@pytest.fixture(params=DASHBOARDS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    path: Path = request.param
    found: dict[str, Any] = json.loads(path.read_text())
    assert found["uid"] == f"fastbk-{path.stem}"
    return found


def lost(before: Any, after: Any, at: str = "") -> list[str]:
    """Return where `after` lacks something of `before`, or has another value."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            one
            for key in before
            for one in lost(before[key], after.get(key, "nothing"), f"{at}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            one
            for index, (old, new) in enumerate(zip(before, after, strict=True))
            for one in lost(old, new, f"{at}/{index}")
        ]
    return [] if before == after else [f"{at}: {before!r} became {after!r}"]


def test_a_dashboard_is_what_the_schema_of_grafana_has(dashboard: dict[str, Any]) -> None:
    """Grafana's own types take every key and value: what their schema does not have would be lost."""
    register_default_plugins()
    read = Dashboard.from_json(dashboard)
    assert lost(dashboard, json.loads(json.dumps(read, cls=JSONEncoder))) == []


@pytest.mark.parametrize(
    "harm",
    [
        lambda board: board["panels"][0].update(titel="x"),
        lambda board: board["panels"][0]["targets"][0].update(query="x"),
        lambda board: board["panels"][-1]["fieldConfig"]["defaults"]["custom"].update(
            lineColour="x"
        ),
        lambda board: board["panels"][-1]["options"].update(legend={"position": "bottom"}),
    ],
)
def test_what_the_schema_does_not_have_is_found(harm: Any) -> None:
    register_default_plugins()
    board = json.loads(DASHBOARDS[0].read_text())
    harm(board)
    assert lost(board, json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder)))


def test_panels_have_places_units_and_texts(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({one["id"] for one in panels}) == len(panels) > 5
    for one in panels:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert one["title"] and one["description"].endswith(".") and one["targets"]
        assert one["fieldConfig"]["defaults"]["unit"]
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert is_beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_the_bookies_dashboard_shows_adoption_and_the_gauge_in_words() -> None:
    board = json.loads((FOLDER / "grafana" / "bookie.json").read_text())
    panels = {one["title"]: one for one in board["panels"]}

    def metrics_of(title: str) -> set[str]:
        return metrics_in(" ".join(one["expr"] for one in panels[title]["targets"]))

    assert metrics_of("Bytes a flush adopted and copied") == {
        "fastbk_index_entry_bytes_total",
        "fastbk_index_adopted_bytes_total",
        "fastbk_index_flush_copied_bytes_total",
    }
    assert metrics_of("Journal files") == {
        "fastbk_index_journal_log_bytes",
        "fastbk_journal_free_bytes",
    }
    assert metrics_of("Why journal files do not adopt") == {"fastbk_journal_adopt_reason"}
    (mapping,) = panels["Why journal files do not adopt"]["fieldConfig"]["defaults"]["mappings"]
    words = {int(value): one["text"] for value, one in mapping["options"].items()}
    assert words == {0: "it adopts"} | dict(enumerate(ADOPT_REASONS[1:], 1))
    (text,) = (one.text for one in NAMES if one.metric == "fastbk_journal_adopt_reason")
    assert all(f" {value} {word}" in text for value, word in words.items() if value)


def test_queries_use_the_variables_that_the_dashboard_has(dashboard: dict[str, Any]) -> None:
    there = {one["name"] for one in dashboard["templating"]["list"]} | {"__rate_interval"}
    text = "\n".join(queries(dashboard).values())
    used = set(re.findall(r"\$(\w+)", text))
    assert used - there == set()
    assert there - {"datasource", "__rate_interval"} - used == set()

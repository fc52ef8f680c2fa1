"""A dashboard's JSON for Grafana 11 and later, from its panels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SCHEMA_VERSION = 39
"""Grafana 11.0; later versions convert it."""
COLUMNS = 24
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Query:
    """An expression, and the name of each of its series."""

    expression: str
    legend: str = "{{instance}}"


@dataclass(frozen=True)
class Panel:
    """One picture. `kind`: stat, timeseries or table. `alarm_above`: from there on it is red."""

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    values: tuple[str, ...] = ()
    alarm_above: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """A file. `variables`: names that its queries use, with the queries that list their values."""

    name: str
    title: str
    text: str
    panels: list[Panel]
    variables: dict[str, str]


def json_of(one: Dashboard) -> str:
    """Return the text of the file."""
    whole = {
        "uid": f"fastbk-{one.name}",
        "title": one.title,
        "description": one.text,
        "tags": ["fastbk"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "graphTooltip": 1,
        "links": [_link()],
        "templating": {
            "list": [_data_source(), *(_variable(*each) for each in one.variables.items())]
        },
        "annotations": {},
        "panels": list(_placed(one.panels)),
    }
    return json.dumps(whole, indent=1) + "\n"


def _link() -> dict[str, Any]:
    return {
        "title": "fastbk", "type": "dashboards", "icon": "external link", "tooltip": "", "tags": ["fastbk"],
        "asDropdown": True, "targetBlank": False, "includeVars": True, "keepTime": True,
    }  # fmt: skip


def _data_source() -> dict[str, Any]:
    return {
        "name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus", "hide": 0,
        "skipUrlSync": False,
    }  # fmt: skip


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "datasource": DATA_SOURCE, "hide": 0, "skipUrlSync": False,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1,
        "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _placed(panels: list[Panel]) -> Iterator[dict[str, Any]]:
    """Yield the panels, from left to right and from top to bottom."""
    left = top = height = 0
    for number, one in enumerate(panels, 1):
        if left + one.width > COLUMNS or (height and one.height != height):
            left, top = 0, top + height
        height = one.height
        place = {"x": left, "y": top, "w": one.width, "h": one.height}
        yield _panel(one, number, place)
        left += one.width


def _panel(one: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    is_stat = one.kind == "stat"
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATA_SOURCE,
            "expr": query.expression,
            "legendFormat": query.legend,
            "range": not is_stat,
            "instant": is_stat,
        }
        for index, query in enumerate(one.queries)
    ]
    return {
        "id": number,
        "type": one.kind,
        "title": one.title,
        "description": one.text,
        "datasource": DATA_SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": _defaults(one), "overrides": []},
        "options": _stat_options() if is_stat else _series_options(),
    }


def _defaults(one: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"unit": one.unit}
    if one.kind == "timeseries":
        found |= {
            "min": 0,
            "custom": {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 5,
                "showPoints": "never",
            },
        }
    if one.values:
        texts = {
            str(value): {"text": text, "index": value} for value, text in enumerate(one.values)
        }
        found["mappings"] = [{"type": "value", "options": texts}]
    if one.alarm_above is not None:
        steps = [{"value": None, "color": "green"}, {"value": one.alarm_above, "color": "red"}]
        found["thresholds"] = {"mode": "absolute", "steps": steps}
    return found


def _stat_options() -> dict[str, Any]:
    return {
        "graphMode": "none", "colorMode": "value", "justifyMode": "auto", "textMode": "value",
        "orientation": "auto", "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
    }  # fmt: skip


def _series_options() -> dict[str, Any]:
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }

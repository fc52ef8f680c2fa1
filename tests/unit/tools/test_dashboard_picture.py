"""What `./dev pictures dashboards` draws: each panel of a dashboard, from its own queries, with Grafana's units."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from PIL import Image

from tests.fixtures.monitoring import DASHBOARDS
from tools.dashboard_picture import DPI, WIDTH_INCHES, draw, number_text

SIZE_BYTES_MAX = 150_000


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_picture_runs_each_query_of_the_dashboard(path: Path, tmp_path: Path) -> None:
    queries: list[str] = []

    def fetch(expression: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        queries.append(expression)
        labels = {"instance": f"bookie-{len(queries) % 3}:8000", "le": "3600"}
        values = [math.nan, *(math.sin(at / 9) + len(queries) for at in range(60))]
        return (
            []
            if len(queries) % 5 == 0
            else [(labels, [(1e9 + at, value) for at, value in enumerate(values)])]
        )

    draw(path, fetch, tmp_path / "one.png", "a test")
    wanted = [
        target["expr"]
        for panel in json.loads(path.read_text())["panels"]
        for target in panel["targets"]
    ]
    assert queries == wanted
    with Image.open(tmp_path / "one.png") as image:
        assert image.width == WIDTH_INCHES * DPI
        assert len(image.convert("RGB").getcolors(256) or ()) > 8, "lines have colours"
    assert (tmp_path / "one.png").stat().st_size < SIZE_BYTES_MAX


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0305, "s", "30.5 ms"),
        (0.000043, "s", "43 µs"),
        (1.5, "s", "1.5 s"),
        (180.0, "s", "3 min"),
        (1536.0, "bytes", "1.5 KiB"),
        (100.0, "bytes", "100 B"),
        (2.5e6, "Bps", "2.5 MB/s"),
        (12_000.0, "ops", "12 k/s"),
        (0.25, "percentunit", "25 %"),
        (3.0, "none", "3"),
        (0.0, "bytes", "0"),
    ],
)
def test_numbers_have_their_units(value: float, unit: str, text: str) -> None:
    assert number_text(value, unit) == text

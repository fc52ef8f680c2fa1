"""`./dev bench openloop` with tiny settings: every part of it runs, and the report is whole."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools import bench_openloop
from tools.part import write


@pytest.mark.long
@pytest.mark.slow
def test_a_whole_run_has_rates_works_and_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "openloop.json"
    settings = {
        "ROUNDS": "1", "SECONDS_EACH": "0.1", "MIB": "64", "WORKS": "all of it", "KNEE": "20000", "OUT": str(out),
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(bench_openloop, "SETTLE_S", 0.0)
    write("unused", bench_openloop.main())
    found = json.loads(out.read_text())
    assert list(map(int, found["knee"]["rates"])) == sorted(map(int, found["knee"]["rates"]))
    for (rounds,) in (*found["knee"]["rates"].values(), *found["work"]["works"].values()):
        assert rounds["samples"] > 0
        assert rounds["p50_us"] <= rounds["p99_us"] <= rounds["p999_us"] <= rounds["max_us"]
        assert rounds["bookie_us"] > 0
        assert rounds["memory_mb"] > 0
        assert rounds["slices"] >= 1
    nothing, everything = (found["work"]["works"][name][0] for name in ("nothing", "all of it"))
    assert everything["compacted_mb"] > 0
    assert nothing["flushes"] == 0
    assert nothing["ran"] == 1
    assert found["work"]["rate_per_s"] == 6_000
    text = capfd.readouterr().out
    assert "Latency against load" in text
    page = out.with_suffix(".html").read_text()
    for start in page.split("<svg")[1:]:
        ElementTree.fromstring(f"<svg{start.split('</svg>')[0]}</svg>")
    assert page.count("<svg") == 2

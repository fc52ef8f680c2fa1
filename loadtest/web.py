"""The exact figures in locust's web interface: a tab of its own, and a page with charts at /exact."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from loadtest.report import page

REFRESH_S = 2
KEY = "exact"
COLUMNS = {
    "name": "Request",
    "count": "# Requests",
    "failures": "# Fails",
    "p50_us": "p50 (µs)",
    "p90_us": "p90 (µs)",
    "p99_us": "p99 (µs)",
    "p999_us": "p99.9 (µs)",
    "max_us": "Max (µs)",
}


def extend(web_ui: Any, results: Callable[[], dict[str, Any]]) -> None:
    """Add the tab and the page to locust's web interface."""
    structure = [{"key": key, "title": title} for key, title in COLUMNS.items()]
    web_ui.template_args |= {
        "extended_tabs": [{"title": "Exact figures", "key": KEY}],
        "extended_tables": [{"key": KEY, "structure": structure}],
        "extended_csv_files": [{"href": "/exact", "title": "Exact figures, charts and faults"}],
    }
    web_ui.app.add_url_rule("/exact", "exact", lambda: page(results(), refresh_s=REFRESH_S))

    @web_ui.app.after_request
    def add_rows(response: Any) -> Any:
        from flask import request

        if request.path == "/stats/requests":
            rows = [{"name": kind, **result} for kind, result in results()["requests"].items()]
            whole = {**response.json, "extended_stats": [{"key": KEY, "data": rows}]}
            response.set_data(json.dumps(whole))
        return response

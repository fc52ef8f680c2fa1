"""A run of `./dev bench` as one HTML file with charts that needs nothing else."""

from __future__ import annotations

from html import escape

from tools.benchmark.run import COLUMNS, Figures, Run, median
from tools.benchmark.targets import rows_of_targets
from tools.benchmark.terminal import ratios_of, rows_of

STYLE = """:root{color-scheme:light dark;--text:#1a1a1a;--dim:#5c6166;--line:#dcdfe3;--bar:#b9c4d2;
--this:#2f6fd0;--met:#2e7d32;--missed:#b3261e}
@media(prefers-color-scheme:dark){:root{--text:#e6e6e6;--dim:#a2a8ae;--line:#34383d;--bar:#4a5563;
--this:#6ea0ee;--met:#7bc67f;--missed:#f2857d}body{background:#16181b}}
body{font:15px/1.5 system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem;color:var(--text)}
h2{font-size:1.1rem;margin:2.5rem 0 .4rem;border-top:1px solid var(--line);padding-top:1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.87rem}
th,td{padding:.2rem .9rem .2rem 0;text-align:right;white-space:nowrap}
th{font-weight:600;color:var(--dim)}th:first-child,td:first-child{text-align:left}
p{margin:.3rem 0;color:var(--dim);font-size:.87rem}.scroll{overflow-x:auto}
.charts{display:flex;flex-wrap:wrap;gap:0 2rem}svg{max-width:100%}
text{font:12px system-ui,sans-serif;fill:var(--text)}text.title{font-weight:600;fill:var(--dim)}
rect{fill:var(--bar)}rect.this{fill:var(--this)}
ul.contents{columns:2 22rem;padding-left:1.1rem;font-size:.87rem}
a{color:var(--this);text-decoration:none}
td.met{color:var(--met)}td.missed{color:var(--missed)}.targets td,.targets th{text-align:left}"""
CHARTED = (
    "per_s",
    "p50_us",
    "tail_p50_us",
    "reads_per_s",
    "first_write_s",
    "create_p50_us",
    "recover_p50_us",
    "bookie_us",
)
LABEL_WIDTH, BAR_WIDTH, VALUE_WIDTH, BAR_HEIGHT = 165, 260, 75, 21


def chart(systems: dict[str, list[Figures]], name: str) -> str:
    """Return bars of one figure, a system each, as SVG; nothing where fewer than two have it."""
    values = {
        system: found
        for system, rounds in systems.items()
        if (found := median(rounds, name)) is not None
    }
    if len(values) < 2:
        return ""
    title, how = COLUMNS[name]
    first = next(iter(systems))
    most = max(values.values()) or 1.0
    parts = [f'<text class="title" x="0" y="14">{escape(title)}</text>']
    for at, (system, value) in enumerate(values.items()):
        y, width = 22 + at * BAR_HEIGHT, BAR_WIDTH * value / most
        kind = ' class="this"' if system == first else ""
        parts.append(
            f'<text x="0" y="{y + 12}">{escape(system)}</text>'
            f'<rect{kind} x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="15"/>'
            f'<text x="{LABEL_WIDTH + 6 + width:.1f}" y="{y + 12}">{value:{how}}</text>'
        )
    width, height = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH, 26 + len(values) * BAR_HEIGHT
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img"'
        f' aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def html_table(rows: list[list[str]], kind: str = "") -> str:
    """Return a table; the first row has the titles."""
    head, *body = (
        "".join(cell_of(cell, "th" if number == 0 else "td") for cell in row)
        for number, row in enumerate(rows)
    )
    return (
        f'<div class="scroll"><table class="{kind}"><tr>{head}</tr>'
        f"{''.join(f'<tr>{row}</tr>' for row in body)}</table></div>"
    )


def cell_of(text: str, tag: str) -> str:
    """Return a cell; verdicts have a colour."""
    kind = f' class="{text}"' if text in ("met", "missed") else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"


def section(number: int, case: str, systems: dict[str, list[Figures]]) -> str:
    """Return a case: charts, figures, ratios."""
    charts = "".join(chart(systems, name) for name in CHARTED)
    return (
        f'<h2 id="case-{number}">{escape(case)}</h2><div class="charts">{charts}</div>{html_table(rows_of(systems))}'
        + "".join(f"<p>{escape(line)}</p>" for line in ratios_of(systems))
    )


def page(run: Run) -> str:
    """Return the report."""
    rounds = max(
        (len(one) for systems in run.cases.values() for one in systems.values()), default=0
    )
    said = (
        f"{run.machine}; {run.date}, commit {run.commit}; up to {rounds} rounds of {run.seconds_each:g} s, all"
        " systems in turn. Medians, with the least and the most in brackets (of ten rounds and more: the middle"
        " half); ratios are medians over the pairs of a round. Processor time is an entry's; memory is the bookie's"
        " proportional set."
    )
    contents = "".join(
        f'<li><a href="#case-{number}">{escape(case)}</a></li>'
        for number, case in enumerate(run.cases)
    )
    sections = "".join(section(number, *item) for number, item in enumerate(run.cases.items()))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>fastbk: dev bench</title>'
        f"<style>{STYLE}</style><h1>./dev bench</h1><p>{escape(said)}</p>"
        f"<h2>Targets</h2>{html_table(rows_of_targets(run), 'targets')}"
        f'<h2>Cases</h2><ul class="contents">{contents}</ul>{sections}</html>\n'
    )

"""What a person looks at: the packages by section as lines of text, and with the largest packages as a chart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fastbk.units import format_count, format_size

SECTIONS_SHOWN = 12
LARGEST_SHOWN = 12
KIB = 1024


def by_size(sections: Mapping[str, tuple[int, int, int]]) -> list[tuple[str, int, int, int]]:
    """Return (section, packages, KiB, files), the largest first, what is behind the first ones as one."""
    rows = [(name, *counts) for name, counts in sections.items()]
    found = sorted(rows, key=lambda one: (-one[2], one[0]))
    if len(found) <= SECTIONS_SHOWN:
        return found
    head, tail = found[: SECTIONS_SHOWN - 1], found[SECTIONS_SHOWN - 1 :]
    others = f"{len(tail)} others"
    return [
        *head,
        (others, sum(o[1] for o in tail), sum(o[2] for o in tail), sum(o[3] for o in tail)),
    ]


def lines_of(sections: Mapping[str, tuple[int, int, int]]) -> Iterator[str]:
    """Yield the table's lines."""
    yield f"  {'SECTION':<16} {'PACKAGES':>8} {'INSTALLED':>11} {'FILES':>9}"
    for name, packages, kib, files in by_size(sections):
        yield f"  {name:<16} {packages:>8,} {format_size(kib * KIB):>11} {files:>9,}"


def draw(
    path: Path,
    sections: Mapping[str, tuple[int, int, int]],
    largest: Sequence[tuple[str, str, int]],
) -> None:
    """Draw sections and the largest packages, (name, summary, KiB), by installed size into a PNG."""
    from fastbk.spark.charts import bars, bars_inches, sheet

    rows = by_size(sections)
    total_kib = max(1, sum(one[2] for one in rows))
    first, count = rows[0], sum(one[1] for one in rows)
    page = sheet(
        f"Section “{first[0]}” takes {first[2] / total_kib:.0%} of what is installed here",
        f"{format_count(count, 'Debian package')} on this machine, {format_size(total_kib * KIB)} installed,"
        f" {sum(one[3] for one in rows):,} files",
        heights=(bars_inches(len(rows)), bars_inches(len(largest))),
    )
    of_sections = {f"{name} ({packages:,})": float(kib * KIB) for name, packages, kib, _ in rows}
    bars(page.panels[0], "Installed size by section (packages)", of_sections, unit="B")
    of_packages = {name: float(kib * KIB) for name, _, kib in largest}
    bars(page.panels[1], "The largest packages by installed size", of_packages, unit="B", colour=4)
    page.save(path)

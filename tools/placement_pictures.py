"""Pictures of a write set's copies over racks and regions, for `docs/placement.md`: what is left when a place is lost.

What a panel says of its entry and of appends is reckoned from its copies. Colours follow the reader's scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

STYLE = """
text{font:13px system-ui,sans-serif;fill:#1a1a1a}
.title{font-weight:600;font-size:14px}.dim{fill:#5c6166;font-size:12px}
.page{fill:#fff}.region{fill:#f3f5f7;stroke:#c3c8ce}.rack{fill:#fff;stroke:#9aa1a9}
.lost{fill:#fbeae8;stroke:#b3261e;stroke-dasharray:5 3}
.acknowledged{fill:#2f6fd0;stroke:#2f6fd0}.late{fill:none;stroke:#2f6fd0;stroke-width:2;stroke-dasharray:3 2}
.idle{fill:none;stroke:#9aa1a9;stroke-width:2}
.cross{stroke:#b3261e;stroke-width:2.5}.good{fill:#2e7d32}.bad{fill:#b3261e}
@media(prefers-color-scheme:dark){
text{fill:#e6e6e6}.dim{fill:#a2a8ae}
.page{fill:#0d1117}.region{fill:#1f2327;stroke:#4a5056}.rack{fill:#16181b;stroke:#6b737b}
.lost{fill:#3a1f1d;stroke:#f2857d}
.acknowledged{fill:#6ea0ee;stroke:#6ea0ee}.late{stroke:#6ea0ee}
.cross{stroke:#f2857d}.good{fill:#7bc67f}.bad{fill:#f2857d}}
"""
BOOKIE, RACK_GAP, REGION_GAP, PANEL_GAP = 34, 10, 14, 34
TITLE_HEIGHT, LABEL_HEIGHT, LINE = 26, 20, 18
NAME_WIDTH = 7
"""Of a character of a label, about."""


@dataclass(frozen=True)
class Rack:
    """A rack, and the copies of one entry in it: `A` is acknowledged, `w` is on its way."""

    name: str
    copies: str
    is_lost: bool = False

    @property
    def width(self) -> int:
        """How wide it is drawn."""
        return max(len(self.copies) * BOOKIE, len(self.name) * NAME_WIDTH) + 14


@dataclass(frozen=True)
class Region:
    """A region; without a name it is not drawn."""

    name: str
    racks: tuple[Rack, ...]
    is_lost: bool = False

    @property
    def inset(self) -> int:
        """Room around its racks."""
        return REGION_GAP if self.name else 0

    @property
    def width(self) -> int:
        """How wide it is drawn."""
        racks = sum(rack.width for rack in self.racks) + RACK_GAP * (len(self.racks) - 1)
        return racks + 2 * self.inset


@dataclass(frozen=True)
class Panel:
    """One setting at its worst moment."""

    title: str
    ack_quorum: int
    regions: tuple[Region, ...]

    @property
    def left(self) -> str:
        """The copies that are not lost."""
        return "".join(
            rack.copies
            for region in self.regions
            for rack in region.racks
            if not (region.is_lost or rack.is_lost)
        )

    @property
    def is_safe(self) -> bool:
        """Whether the acknowledged entry is left."""
        return "A" in self.left

    @property
    def goes_on(self) -> bool:
        """Whether appends go on without other bookies."""
        return len(self.left) >= self.ack_quorum

    def verdicts(self) -> list[tuple[str, str]]:
        """Return lines with their classes."""
        entry = (
            ("good", "the acknowledged entry is safe")
            if self.is_safe
            else ("bad", "the acknowledged entry is lost")
        )
        appends = (
            ("good", "appends go on")
            if self.goes_on
            else ("bad", "appends stop, or take other bookies")
        )
        return [entry, appends]

    @property
    def width(self) -> int:
        """How wide it is drawn."""
        regions = sum(region.width for region in self.regions) + RACK_GAP * (len(self.regions) - 1)
        texts = [self.title, *(text for _, text in self.verdicts())]
        return max(regions, *(len(text) * NAME_WIDTH for text in texts))


def in_racks(title: str, ack_quorum: int, copies: str, lost: int = 1) -> Panel:
    """Return a panel of racks, of which the one of that number is lost."""
    racks = tuple(
        Rack(f"rack {number}", held, number == lost)
        for number, held in enumerate(copies.split(), 1)
    )
    return Panel(title, ack_quorum, (Region("", racks),))


def in_regions(title: str, ack_quorum: int, copies: str, lost: int = 1) -> Panel:
    """Return a panel of regions, `/` between their racks."""
    regions = tuple(
        Region(
            f"region {number}",
            tuple(
                Rack(f"rack {name}", part)
                for name, part in zip("abc", held.split("/"), strict=False)
            ),
            number == lost,
        )
        for number, held in enumerate(copies.split(), 1)
    )
    return Panel(title, ack_quorum, regions)


RACKS = (
    in_racks("3 / 3 / 2, two racks", 2, "AA w"),
    in_racks("3 / 3 / 3, two racks", 3, "AA A"),
    in_racks("3 / 3 / 2, three racks", 2, "A A w"),
    in_racks("5 / 5 / 3, four racks", 3, "AA A w w"),
)
REGIONS = (
    in_regions("3 / 3 / 2, two regions", 2, "A/A w"),
    in_regions("4 / 4 / 3, two regions, even shares", 3, "A/A A/w"),
    in_regions("3 / 3 / 2, three regions", 2, "A A w"),
    in_regions("5 / 5 / 3, three regions, even shares", 3, "A/A A/w w"),
)


def _racks(region: Region, x: float, y: float, height: int) -> list[str]:
    parts: list[str] = []
    for rack in region.racks:
        kind = "rack lost" if rack.is_lost else "rack"
        parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{rack.width}" height="{height}" rx="5"/>'
            f'<text class="dim" x="{x + 7:g}" y="{y + 15:g}">{escape(rack.name)}</text>'
        )
        for index, copy in enumerate(rack.copies):
            centre_x, centre_y = x + 7 + BOOKIE * (index + 0.5), y + LABEL_HEIGHT + BOOKIE / 2
            kind = "acknowledged" if copy == "A" else "late"
            parts.append(f'<circle class="{kind}" cx="{centre_x:g}" cy="{centre_y:g}" r="11"/>')
            if rack.is_lost or region.is_lost:
                low_x, high_x = centre_x - 13, centre_x + 13
                low_y, high_y = centre_y - 13, centre_y + 13
                parts.append(
                    f'<path class="cross" d="M{low_x:g} {low_y:g}L{high_x:g} {high_y:g}'
                    f'M{low_x:g} {high_y:g}L{high_x:g} {low_y:g}"/>'
                )
        x += rack.width + RACK_GAP
    return parts


def _panel(panel: Panel, x: float, y: float) -> list[str]:
    parts = [f'<text class="title" x="{x:g}" y="{y + 14:g}">{escape(panel.title)}</text>']
    y += TITLE_HEIGHT
    rack_height = LABEL_HEIGHT + BOOKIE + 6
    height = _height_of(panel.regions)
    left = x
    for region in panel.regions:
        if region.name:
            kind = "region lost" if region.is_lost else "region"
            parts.append(
                f'<rect class="{kind}" x="{left:g}" y="{y:g}" width="{region.width}" height="{height}" rx="8"/>'
                f'<text x="{left + region.inset:g}" y="{y + 17:g}">{escape(region.name)}</text>'
            )
        top = y + (LABEL_HEIGHT + 4 if region.name else 0)
        parts += _racks(region, left + region.inset, top, rack_height)
        left += region.width + RACK_GAP
    y += height + 8
    for number, (kind, text) in enumerate(panel.verdicts()):
        parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y + LINE * number + 12:g}">{escape(text)}</text>'
        )
    return parts


def _height_of(regions: Sequence[Region]) -> int:
    rack_height = LABEL_HEIGHT + BOOKIE + 6
    return rack_height + (
        LABEL_HEIGHT + 4 + REGION_GAP if any(region.name for region in regions) else 0
    )


def picture(panels: Sequence[Panel], about: str, columns: int = 2) -> str:
    """Return panels as one SVG."""
    parts: list[str] = []
    column_widths = [
        max(panel.width for panel in panels[column::columns]) for column in range(columns)
    ]
    row_height = TITLE_HEIGHT + _height_of(panels[0].regions) + 8 + 2 * LINE + PANEL_GAP
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        x = 10 + sum(column_widths[:column]) + PANEL_GAP * column
        parts += _panel(panel, x, 10 + row * row_height)
    y = 10 + row_height * -(-len(panels) // columns) - 6
    parts += [
        f'<circle class="acknowledged" cx="21" cy="{y}" r="9"/>',
        f'<text class="dim" x="36" y="{y + 4}">acknowledged copy</text>',
        f'<circle class="late" cx="181" cy="{y}" r="9"/>',
        f'<text class="dim" x="196" y="{y + 4}">copy on its way</text>',
        f'<path class="cross" d="M321 {y - 9}L339 {y + 9}M321 {y + 9}L339 {y - 9}"/>',
        f'<text class="dim" x="346" y="{y + 4}">lost</text>',
    ]
    width = 20 + sum(column_widths) + PANEL_GAP * (columns - 1)
    return _svg(width, y + 20, about, parts)


def drawn() -> dict[str, str]:
    """Return the pictures by the names of their files."""
    return {
        "placement-racks.svg": picture(
            RACKS, "Copies of an entry over racks, one of which is lost"
        ),
        "placement-regions.svg": picture(
            REGIONS, "Copies of an entry over regions, one of which is lost"
        ),
        "placement-ring.svg": ring_picture(),
    }


def placement(folder: Path) -> None:
    """`placement-*.svg`."""
    for name, svg in drawn().items():
        (folder / name).write_text(svg)
        print(f"{folder / name}: {len(svg):,} bytes")


# --- the ring ----------------------------------------------------------------------------------------------------


RINGS = (
    ("in turns: each write set spans three racks", "abcabc"),
    ("side by side: a write set spans two racks", "aabbcc"),
)
WRITE_QUORUM = 3


def ring_picture() -> str:
    """Return two ensembles of six bookies in three racks, with the write set of one entry."""
    parts: list[str] = []
    step, y = 58, 10
    for title, racks in RINGS:
        parts.append(f'<text class="title" x="10" y="{y + 14}">{escape(title)}</text>')
        y += TITLE_HEIGHT
        parts.append(
            f'<rect class="region" x="10" y="{y}" width="{step * WRITE_QUORUM}" height="66" rx="8"/>'
        )
        for index, rack in enumerate(racks):
            x, is_written = 10 + step * index + step / 2, index < WRITE_QUORUM
            kind = "acknowledged" if is_written else "idle"
            parts.append(
                f'<circle class="{kind}" cx="{x:g}" cy="{y + 24}" r="11"/>'
                f'<text class="dim" x="{x - 16:g}" y="{y + 55}">rack {rack}</text>'
            )
        held = len(set(racks[:WRITE_QUORUM]))
        kind = "good" if held == WRITE_QUORUM else "bad"
        y += 66 + 18
        text = f"entry 0 is in {held} racks; entry 1 begins at the next bookie, and so on around the ring"
        parts.append(f'<text class="{kind}" x="10" y="{y}">{escape(text)}</text>')
        y += 28
    return _svg(600, y, "Ensembles of six bookies in three racks, with Qw = 3", parts)


def _svg(width: int, height: int, about: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img"><title>{escape(about)}</title>'
        f'<style>{STYLE}</style>\n<rect class="page" width="{width}" height="{height}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )

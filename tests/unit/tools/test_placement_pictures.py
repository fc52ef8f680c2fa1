"""The pictures of docs/placement.md are those that the tool draws, and say what the page's rules say."""

from __future__ import annotations

import pytest

from tools import ROOT
from tools.placement_pictures import RACKS, REGIONS, Panel, drawn


def test_the_pages_have_the_pictures_that_are_drawn() -> None:
    page = (ROOT / "docs" / "placement.md").read_text()
    for name, svg in drawn().items():
        assert (ROOT / "docs" / "pictures" / name).read_text() == svg, (
            "run ./dev pictures placement"
        )
        assert f"(pictures/{name})" in page


@pytest.mark.parametrize("panel", [*RACKS, *REGIONS], ids=lambda panel: panel.title)
def test_a_panel_is_its_setting_at_its_worst_moment(panel: Panel) -> None:
    held = ["".join(rack.copies for rack in region.racks) for region in panel.regions]
    if len(held) == 1:
        held = [rack.copies for rack in panel.regions[0].racks]
    _, write_quorum, ack_quorum = (int(word) for word in panel.title.partition(",")[0].split("/"))
    assert sum(map(len, held)) == write_quorum
    assert ack_quorum == panel.ack_quorum == sum(map(str.count, held, "A" * len(held)))
    assert len(held[0]) == max(map(len, held)), "the place with the most copies is lost"
    assert panel.is_safe == (ack_quorum > len(held[0]))
    assert panel.goes_on == (write_quorum - len(held[0]) >= ack_quorum)

"""Settings that make sense, and give something up that somebody may not want to give up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.doctor.report import Finding, ok, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.doctor.report import Check
    from fastbk.server.configuration.process_config import BookieConfig


class Choices:
    """What one configuration chose."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config

    def checks(self) -> Iterator[Check]:
        """Yield all looks at choices."""
        yield "durability", self.durability
        yield "deletions", self.deletions

    def durability(self) -> Finding:
        """Whether an acknowledged entry survives a power cut here (INV-J1)."""
        if self._config.journal.sync == "never":
            return warn(
                "durability",
                "[journal] sync = never: what was acknowledged may be gone after a power cut",
                'sync = "always", unless this is a test or the data can be made again',
            )
        return ok("durability", "acknowledged after the sync")

    def deletions(self) -> Finding:
        """Whether a wrong metadata store could have everything deleted."""
        share = self._config.gc.delete_ratio_max
        if share >= 1.0:
            return warn(
                "deletions",
                "[gc] delete_ratio_max = 1.0: with an empty metadata store all ledgers here would be deleted",
                "take it out again; `fastbk bookie gc run --force` allows it once",
            )
        return ok("deletions", f"at most {share:.0%} of the ledgers in one cycle")

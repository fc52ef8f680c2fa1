"""What placement works on: what is wanted of an ensemble, where bookies are, what is known of each, and chance.

Plain and frozen, so that the same question with the same seed has the same answer, in the simulator too.

A location is `/region/rack`, or `/rack` alone; for the zone policy `/zone/upgrade-domain`. What people write is
checked here (ConfigError); what comes from the network or a script and is wrong counts as not said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol, get_args

import msgspec

from fastbk.errors import ConfigError
from fastbk.model.ids import BookieId
from fastbk.model.quorum import ENSEMBLE_SIZE_MAX

Policy = Literal["spread", "rack", "region", "zone"]

DEFAULT_LOCATION = "/default-region/default-rack"
"""Where a bookie counts as being when nobody said where it is: all such bookies share one rack."""

SEARCH_STEPS = 4_000

ACK_MINIMUM_POLICIES: Mapping[str, tuple[Policy, ...]] = {
    "racks": ("rack", "region"),
    "regions": ("region",),
    "zones": ("zone",),
}
"""The domains that acknowledgements can be counted in, and the policies that know them."""


class Chance(Protocol):
    """Where choices come from: `random.Random` is one. Everything placement draws comes through this."""

    def random(self) -> float:
        """Return a number of [0, 1)."""


class BookieView(msgspec.Struct, frozen=True):
    """What is known of one bookie at the moment of a choice."""

    bookie_id: BookieId
    writable: bool = True
    """False: it takes no normal adds, so it is never chosen."""
    quarantined: bool = False
    """True: it failed lately; it is chosen only when there are too few others."""
    free_bytes: int | None = None
    """Free space of its ledger directories; None: not known."""
    location: str = DEFAULT_LOCATION
    """Its place in the network: `/region/rack` or `/rack`; for zones `/zone/upgrade-domain`."""
    labels: frozenset[str] = frozenset()
    """The groups it belongs to."""
    is_local: bool = False
    """Whether it runs on this client's host."""
    reads_only_reason: str = ""
    """Why it is not writable, if it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """What is wanted of every ensemble. Minimums count domains in each write set; above Qw they mean Qw."""

    policy: Policy = "spread"
    """`spread`: any distinct bookies. `rack`: write sets span racks. `region`: write sets span regions and racks,
    regions have even shares. `zone`: write sets span zones; within a zone, upgrade domains."""
    enforce: bool = False
    """True: a choice that breaks a minimum is refused. False: minimums are kept as far as possible."""
    min_racks_per_write_quorum: int = 2
    """Minimum for `rack` and `region`; 1..64."""
    min_regions_per_write_quorum: int = 2
    """Minimum for `region`; 1..64."""
    min_zones_per_write_quorum: int = 2
    """Minimum for `zone`; 1..64."""
    desired_zones_per_write_quorum: int = 3
    """Target for `zone`, never enforced; at least the minimum, at most 64."""
    min_racks_per_ack_quorum: int = 1
    """An append is acknowledged only when its copies span so many racks, with `rack` and `region`. No choice breaks it,
    enforced or not. At most the minimum of the write quorum."""
    min_regions_per_ack_quorum: int = 1
    """So many regions, with `region`."""
    min_zones_per_ack_quorum: int = 1
    """So many zones, with `zone`."""
    weighted: bool = False
    """True: the chance of a bookie is proportional to its free space."""
    weight_multiple_max: float = 3.0
    """No bookie weighs more than so many times the median; 1..1000. A new, empty bookie is not flooded."""
    local_first: bool = False
    """True: index 0 is this host's bookie when it is writable, not quarantined and of the group."""
    group: str | None = None
    """Only or first bookies with this label."""
    group_is_hard: bool = False
    """True: others are never taken. False: they are taken when the group has too few."""
    search_steps_max: int = SEARCH_STEPS
    """Placements looked at for one choice, at least 64: bounds its time whatever the topology (INV-P2)."""

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ConfigError(
                f"placement policy {self.policy!r}: must be one of {', '.join(get_args(Policy))}"
            )
        for name in (
            "min_racks_per_write_quorum",
            "min_regions_per_write_quorum",
            "min_zones_per_write_quorum",
            "desired_zones_per_write_quorum",
            *(f"min_{domains}_per_ack_quorum" for domains in ACK_MINIMUM_POLICIES),
        ):
            if not 1 <= getattr(self, name) <= ENSEMBLE_SIZE_MAX:
                raise ConfigError(f"{name}={getattr(self, name)}: must be 1..{ENSEMBLE_SIZE_MAX}")
        self._check_ack_minimums()
        if self.desired_zones_per_write_quorum < self.min_zones_per_write_quorum:
            raise ConfigError(
                f"desired_zones_per_write_quorum={self.desired_zones_per_write_quorum}: must be at"
                f" least min_zones_per_write_quorum={self.min_zones_per_write_quorum}"
            )
        if not 1 <= self.weight_multiple_max <= 1000:
            raise ConfigError(f"weight_multiple_max={self.weight_multiple_max}: must be 1..1000")
        if self.search_steps_max < ENSEMBLE_SIZE_MAX:
            raise ConfigError(
                f"search_steps_max={self.search_steps_max}: must be at least {ENSEMBLE_SIZE_MAX}"
            )
        if self.group is not None and (not self.group.strip() or "," in self.group):
            raise ConfigError(f"placement group {self.group!r}: a label, without commas")
        if self.group is None and self.group_is_hard:
            raise ConfigError("group_is_hard without a group: name the group or leave it out")

    def _check_ack_minimums(self) -> None:
        for domains, policies in ACK_MINIMUM_POLICIES.items():
            name, of_writes = f"min_{domains}_per_ack_quorum", f"min_{domains}_per_write_quorum"
            wanted, spanned = getattr(self, name), getattr(self, of_writes)
            if wanted > 1 and self.policy not in policies:
                raise ConfigError(
                    f"{name}={wanted}: policy {self.policy!r} counts no {domains}: use {' or '.join(policies)}"
                )
            if wanted > spanned:
                raise ConfigError(
                    f"{name}={wanted} is more than {of_writes}={spanned}: where a write set spans only {spanned}"
                    f" {domains}, an append would wait for ever: raise {of_writes} to {wanted}"
                )


LOCATION_CHARACTERS_MAX = 255
LABELS_MAX = 64
_LOCATION = re.compile(r"(?:/[A-Za-z0-9_.:\-]+){1,8}/?")
_LABEL = re.compile(r"[A-Za-z0-9_.:\-]{1,63}")


def valid_location(text: str) -> str | None:
    """Return `text` as a location without a slash at its end, None if it is none."""
    stripped = text.strip()
    if len(stripped) > LOCATION_CHARACTERS_MAX or not _LOCATION.fullmatch(stripped):
        return None
    return stripped.rstrip("/")


def check_location(text: str) -> str:
    """Return `text` as a location without a slash at its end; ConfigError if it is none."""
    location = valid_location(text)
    if location is None:
        raise ConfigError(
            f"location {text!r}: write /region/rack or /rack, of letters, digits and the characters _ . : -"
        )
    return location


class Distance(IntEnum):
    """How far a bookie is from a client. Nearer ones, which are lower, are read from first."""

    HOST = 0
    RACK = 1
    REGION = 2
    UNKNOWN = 3
    """Nobody says where the bookie is, or where the client is. It may be near, so it goes before those that are not."""
    OTHER = 4
    """It is in another region."""

    @property
    def label(self) -> str:
        """Its name in metrics."""
        return self.name.lower()


def distance_of(here: str, there: str, *, is_same_host: bool = False) -> Distance:
    """Return how far it is between two locations, of a client and of a bookie; "" or the default: nobody says.

    Where both are known, they count for more than the host: they differ on one machine only where somebody wants that.
    """
    if not here or not there or DEFAULT_LOCATION in (here, there):
        return Distance.HOST if is_same_host else Distance.UNKNOWN
    if here == there:
        return Distance.HOST if is_same_host else Distance.RACK
    return Distance.REGION if _region_of(here) == _region_of(there) else Distance.OTHER


def _region_of(location: str) -> str:
    """Return a location's first name; a single name is a rack, of the same region as all such racks."""
    _, first, *others = location.split("/")
    return first if others else ""


def valid_labels(text: str) -> frozenset[str]:
    """Return the labels of a list with commas; those that are none are left out, at most 64 are kept."""
    names = [name.strip() for name in text.split(",")]
    return frozenset([name for name in names if _LABEL.fullmatch(name)][:LABELS_MAX])


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """Return `labels`, each once and in order; ConfigError if one is none or there are more than 64."""
    wrong = [label for label in labels if not _LABEL.fullmatch(label)]
    if wrong:
        raise ConfigError(
            f"label {wrong[0]!r}: 1 to 63 letters, digits and the characters _ . : - are allowed"
        )
    if len(labels) > LABELS_MAX:
        raise ConfigError(f"{len(labels)} labels: at most {LABELS_MAX} are allowed")
    return tuple(sorted(set(labels)))


class Topology(msgspec.Struct, frozen=True):
    """The table of a configuration: bookie id, host, or the beginning of one (`10.1.*`) -> location.

    A bookie's id goes before its host, both before beginnings, and of these the longest wins.
    """

    exact: Mapping[str, str] = msgspec.field(default_factory=dict)
    beginnings: tuple[tuple[str, str], ...] = ()
    """The longest first."""

    @classmethod
    def of(cls, table: Mapping[str, str]) -> Topology:
        """Return the topology of a table as a TOML file has it. ConfigError names the key that is wrong."""
        exact: dict[str, str] = {}
        beginnings: dict[str, str] = {}
        for key, value in table.items():
            if not isinstance(value, str):
                raise ConfigError(f"topology: {key!r} = {value!r}: a location is text")
            name, star, rest = key.partition("*")
            if rest or not key.strip():
                raise ConfigError(
                    f"topology: {key!r}: write a bookie id, a host, or the beginning of one and a * at its end"
                )
            try:
                (beginnings if star else exact)[name] = check_location(value)
            except ConfigError as error:
                raise ConfigError(f"topology: {key!r}: {error.message}") from error
        by_length = sorted(beginnings.items(), key=lambda one: (-len(one[0]), one[0]))
        return cls(exact, tuple(by_length))

    def location_of(self, bookie_id: BookieId, host: str = "") -> str | None:
        """Return where that bookie is, None if the table does not say."""
        for name in (bookie_id, host):
            if name in self.exact:
                return self.exact[name]
        for beginning, location in self.beginnings:
            if bookie_id.startswith(beginning) or host.startswith(beginning):
                return location
        return None

    def location_of_client(self, host: str) -> str | None:
        """Return where a client's host is. The row `*` does not say: it is about all other bookies."""
        if host in self.exact:
            return self.exact[host]
        for beginning, location in self.beginnings:
            if beginning and host.startswith(beginning):
                return location
        return None


def locations_printed(output: str, hosts: Sequence[str]) -> dict[str, str]:
    """Return where `hosts` are, from what a topology script printed for them: one location each, in order.

    ValueError with a sentence if the number is another; a location that is none is left out.
    """
    printed = output.split()
    if len(printed) != len(hosts):
        raise ValueError(f"it printed {len(printed)} locations for {len(hosts)} hosts")
    found = ((host, valid_location(text)) for host, text in zip(hosts, printed, strict=True))
    return {host: location for host, location in found if location is not None}

"""What holds for a namespace's streams: kept in metadata, inherited, and changed from the next segment on.

A policy has a value for everything; a patch names only what differs from the namespace above. Durations are
seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from fastbk.errors import ConfigError, PolicyInvalid
from fastbk.formats import LEVEL_FIRST, PLACEMENT_POLICY, level_of
from fastbk.model.entry import DigestType
from fastbk.model.quorum import check_quorums
from fastbk.placement.config import PlacementConfig, Policy
from fastbk.placement.rules import narrowed
from fastbk.replication.ack_domains import custom_of_new

VERSION = 1
"""Of what PLACEMENT_FIELDS name: versions of fastbk before format level 4 read no policy that names one."""
Compression = Literal["none", "lz4", "zstd"]
Digest = Literal["crc32c", "crc32", "hmac", "dummy"]
"""`none` is accepted for `dummy` where a policy is set."""
HOUR_S = 3600.0
MIB = 1024 * 1024
GROUP_CHARACTERS_MAX = 255


class StreamPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of a stream's policy."""

    ensemble: int = 3
    """Bookies that a segment is spread over."""
    write_quorum: int = 3
    """Copies of each entry."""
    ack_quorum: int = 2
    """Copies that are durable before an append is acknowledged."""
    allow_missing_bookies: bool = True
    """Whether a segment may begin while bookies are missing, as long as the ack quorum answers: with fewer bookies, at
    least `write_quorum`, then with some that are read-only or away and owe their copies (docs/quorums.md)."""
    bookie_group: str = ""
    """Bookies with this label come first for segments and ledgers; others are taken where these are too few, or where
    an enforced minimum needs them. Empty: any bookies."""
    bookie_group_is_hard: bool = False
    """Whether bookies without that label are never taken, however few have it: what they cannot hold waits."""
    placement: Policy = "spread"
    """Which domains each write set spans: `rack`, `region` or `zone` (fastbk/placement/README.md). It narrows the
    cluster's rule. `spread`: that rule alone."""
    placement_enforced: bool = False
    """Whether no segment begins where a minimum cannot be kept, and no bookie is replaced so that one is broken."""
    racks_min: int = 2
    """Racks that a write set spans with the placements `rack` and `region`."""
    regions_min: int = 2
    """Regions that it spans with `region`."""
    zones_min: int = 2
    """Zones that it spans with `zone`."""
    ack_racks_min: int = 1
    """Racks that the copies of an append span when it is acknowledged, with `rack` and `region`."""
    ack_regions_min: int = 1
    """Regions that they span, with `region`."""
    ack_zones_min: int = 1
    """Zones that they span, with `zone`."""
    digest: Digest = "crc32c"
    compression: Compression = "none"
    roll_age_s: float = 2 * HOUR_S
    """A segment ends in the last tenth of this age, or when it is so large; whichever comes first. 0: not by age."""
    roll_bytes: int = 256 * MIB
    """0: not by size."""
    retention_age_s: float = 0.0
    """Older records may go unless a cursor holds them. 0: no limit."""
    retention_bytes: int = 0
    """What is beyond so many bytes may go unless a cursor holds it. 0: no limit."""
    hard_age_s: float = 0.0
    """Older records go although a cursor holds them. 0: no limit."""
    hard_bytes: int = 0
    hold_for_cursors: bool = True
    """Whether durable cursors hold records that are beyond the limits of retention."""
    streams_max: int = 0
    """Streams in this namespace and those below it; 0: no limit. For a stream it means nothing."""
    bytes_max: int = 0
    """Maximum bytes of data in the ended segments of these streams, one copy; 0: no limit. For a stream it means
    nothing.
    """

    def placement_for(self, client: PlacementConfig) -> PlacementConfig:
        """Return what is wanted of a segment's bookies: this, which a client's own wishes narrow (INV-P3).

        Raises ConfigError where nothing can keep to both.
        """
        return narrowed(_placement_of(self), client)

    def rule(self) -> PlacementConfig:
        """Return this as a rule of placement."""
        return _placement_of(self)

    def digest_type(self) -> DigestType:
        """Return the digest as ledgers take it."""
        return DigestType.of(self.digest)


class PolicyPatch(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What a namespace or stream says itself; None is inherited. The fields are those of `StreamPolicy`."""

    ensemble: int | None = None
    write_quorum: int | None = None
    ack_quorum: int | None = None
    allow_missing_bookies: bool | None = None
    bookie_group: Annotated[str, msgspec.Meta(max_length=GROUP_CHARACTERS_MAX)] | None = None
    bookie_group_is_hard: bool | None = None
    placement: Policy | None = None
    placement_enforced: bool | None = None
    racks_min: int | None = None
    regions_min: int | None = None
    zones_min: int | None = None
    ack_racks_min: int | None = None
    ack_regions_min: int | None = None
    ack_zones_min: int | None = None
    digest: Digest | None = None
    compression: Compression | None = None
    roll_age_s: float | None = None
    roll_bytes: int | None = None
    retention_age_s: float | None = None
    retention_bytes: int | None = None
    hard_age_s: float | None = None
    hard_bytes: int | None = None
    hold_for_cursors: bool | None = None
    streams_max: int | None = None
    bytes_max: int | None = None

    def __post_init__(self) -> None:
        if str(self.digest) == "none":
            msgspec.structs.force_setattr(self, "digest", "dummy")

    def changed(self, patch: PolicyPatch) -> PolicyPatch:
        """Return this patch with what `patch` names put over it."""
        return msgspec.structs.replace(self, **named(patch))

    def without(self, fields: Iterable[str]) -> PolicyPatch:
        """Return this patch with these fields inherited again. Raises PolicyInvalid for a name that is none."""
        found = list(fields)
        for name in found:
            if name not in self.__struct_fields__:
                raise PolicyInvalid(
                    f"a policy has no field {name!r}: {', '.join(self.__struct_fields__)}"
                )
        return msgspec.structs.replace(self, **dict.fromkeys(found))


PLACEMENT_FIELDS = frozenset(
    {
        "ack_racks_min",
        "ack_regions_min",
        "ack_zones_min",
        "bookie_group_is_hard",
        "placement",
        "placement_enforced",
        "racks_min",
        "regions_min",
        "zones_min",
    }
)
"""Fields that a cluster's policies have from format level 4 on."""


def level_needed(patch: PolicyPatch) -> int:
    """Return the format level that a cluster with this policy has at least (INV-U1)."""
    return level_of(PLACEMENT_POLICY) if PLACEMENT_FIELDS & named(patch).keys() else LEVEL_FIRST


def checked_patch(patch: PolicyPatch | None) -> PolicyPatch:
    """Return a patch that was given, or an empty one. Raises PolicyInvalid for what is none, and for a wrong type."""
    if patch is None:
        return PolicyPatch()
    if not isinstance(patch, PolicyPatch):
        raise PolicyInvalid(
            f"policy: write PolicyPatch(compression='lz4', ...), not {type(patch).__name__}"
        )
    try:
        return msgspec.convert(named(patch), PolicyPatch)
    except msgspec.ValidationError as error:
        raise PolicyInvalid(f"policy: {error}") from error


DEFAULT_POLICY = StreamPolicy()


def named(patch: PolicyPatch) -> dict[str, object]:
    """Return what a patch names."""
    return {
        name: value for name, value in msgspec.structs.asdict(patch).items() if value is not None
    }


def effective(patches: Iterable[PolicyPatch], base: StreamPolicy = DEFAULT_POLICY) -> StreamPolicy:
    """Return `base` with the patches put over it, the outermost namespace's first. Raises PolicyInvalid."""
    for patch in patches:
        base = msgspec.structs.replace(base, **named(patch))
    check(base)
    return base


def check(policy: StreamPolicy) -> None:
    """Raise PolicyInvalid for a value of the wrong type or out of its range."""
    try:
        msgspec.convert(msgspec.structs.asdict(policy), StreamPolicy)
    except msgspec.ValidationError as error:
        raise PolicyInvalid(f"policy: {error}") from error
    try:
        custom_of_new(_placement_of(policy), policy.write_quorum, {})
        check_quorums(policy.ensemble, policy.write_quorum, policy.ack_quorum)
    except ConfigError as error:
        raise PolicyInvalid(str(error)) from error
    for name in ("roll_age_s", "retention_age_s", "hard_age_s"):
        if not 0 <= getattr(policy, name) <= 1e9:
            raise PolicyInvalid(f"{name} must be from 0 (no limit) to 1e9 seconds")
    for name in ("roll_bytes", "retention_bytes", "hard_bytes", "streams_max", "bytes_max"):
        if not 0 <= getattr(policy, name) < 1 << 60:
            raise PolicyInvalid(f"{name} must be from 0 (no limit) to 2^60")
    if policy.roll_age_s == 0 and policy.roll_bytes == 0:
        raise PolicyInvalid(
            "a segment must end some time: set roll_age_s, roll_bytes or both above 0"
        )
    for soft, hard in (("retention_age_s", "hard_age_s"), ("retention_bytes", "hard_bytes")):
        if 0 < getattr(policy, hard) < getattr(policy, soft):
            raise PolicyInvalid(
                f"{hard} must not be less than {soft}: it is what goes although a cursor holds it"
            )


def _placement_of(policy: StreamPolicy) -> PlacementConfig:
    """Return the rule in a policy. Raises ConfigError."""
    return PlacementConfig(
        policy=policy.placement,
        enforce=policy.placement_enforced,
        min_racks_per_write_quorum=policy.racks_min,
        min_regions_per_write_quorum=policy.regions_min,
        min_zones_per_write_quorum=policy.zones_min,
        min_racks_per_ack_quorum=policy.ack_racks_min,
        min_regions_per_ack_quorum=policy.ack_regions_min,
        min_zones_per_ack_quorum=policy.ack_zones_min,
        desired_zones_per_write_quorum=max(
            policy.zones_min, PlacementConfig().desired_zones_per_write_quorum
        ),
        group=policy.bookie_group or None,
        group_is_hard=policy.bookie_group_is_hard and bool(policy.bookie_group),
    )

"""What one client may do by a gateway: its rights, and the namespaces that it is limited to. Blocking reads only."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from fastbk.client.placement_judge import read_judge
from fastbk.errors import (
    ConfigError,
    MetadataUnavailable,
    StorageError,
    StreamNotFound,
    Unauthorized,
)
from fastbk.gateway.record_names import OF_COORDINATION, OF_PATTERNS, OF_SERVICES, Kind, RecordName
from fastbk.gateway.rules import READ, WRITE, Need
from fastbk.meta.format_level import LEVEL_PATH
from fastbk.meta.placement_record import PLACEMENT_PATH, read_rules
from fastbk.meta.records import check_path
from fastbk.meta.rollback import HOLD_PATH
from fastbk.security.rights import Principal, names_of
from fastbk.stream.chain import PageRef, Segment, get_page
from fastbk.stream.chain_store import page_path
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    EntryRecord,
    NamespaceRecord,
    StreamRecord,
    get,
)
from fastbk.stream.paths import (
    check_name,
    decode,
    entry_path,
    namespace_path,
    producers_path,
    stream_path,
)
from fastbk.stream.policy import effective

if TYPE_CHECKING:
    from fastbk.client.placement_judge import PlacementJudge
    from fastbk.meta.api import MetadataStore
    from fastbk.meta.records import RecordStore
    from fastbk.model.ids import BookieId
    from fastbk.model.ledger import LedgerMetadata
    from fastbk.placement.config import PlacementConfig
    from fastbk.placement.rules import ClusterRules
    from fastbk.stream.policy import StreamPolicy

KEPT_S = 5.0
"""A namespace that is renamed has its old name for so long."""
KEPT_MAX = 20_000
LEVELS_MAX = 1000
KNOWN_S, KNOWN_AGAIN_S = 5.0, 1.0
"""What is known of placement is that old at most; before something is refused, no older than the second."""
JUDGES_KEPT_S = 30.0
K = TypeVar("K")
V = TypeVar("V")
_GLOBS = "*?["


class NamespaceTree:
    """What a gateway knows of its cluster: the paths and policies of namespaces, and where bookies are, for seconds.

    Threads may share it. Blocking; errors are those of the store.
    """

    def __init__(self, records: RecordStore, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._clock_s = clock_s
        self._namespaces: dict[str, tuple[float, NamespaceRecord]] = {}
        self._streams: dict[str, str] = {}
        self._ids: dict[tuple[str, str], tuple[float, EntryRecord | None]] = {}
        self._rules: tuple[float, ClusterRules] | None = None
        self._judging = threading.Lock()
        self._judges_kept: list[tuple[float, PlacementJudge]] = []

    def levels(self, namespace_id: str) -> tuple[tuple[str, NamespaceRecord], ...]:
        """Return a namespace and all above it, from the root down, by id. Raises StreamNotFound."""
        found: list[tuple[str, NamespaceRecord]] = []
        at = namespace_id
        while len(found) < LEVELS_MAX:
            record = self._namespace(at)
            found.append((at, record))
            if at == ROOT_ID:
                return tuple(reversed(found))
            at = record.parent
        raise StorageError(f"namespace {namespace_id} lies in itself: its record is damaged")

    def path(self, namespace_id: str) -> str:
        """Return a namespace's path, "" for the root. Raises StreamNotFound."""
        return "/".join(record.name for _, record in self.levels(namespace_id)[1:])

    def namespace_of(self, stream_id: str) -> str:
        """Return the id of a stream's namespace, which never changes. Raises StreamNotFound."""
        known = self._streams.get(stream_id)
        if known is None:
            where = stream_path(stream_id)
            (raw,) = self._records.read([where])
            if raw is None:
                raise StreamNotFound(f"there is no stream {stream_id}")
            known = get(StreamRecord, raw.value, where).namespace
            _keep(self._streams, stream_id, known)
        return known

    def namespace_at(self, path: str) -> str | None:
        """Return the id of the namespace at a path; None: there is none, as a ledger may name any."""
        names = path.split("/")
        if len(names) > LEVELS_MAX:
            return None
        owner = ROOT_ID
        for name in names:
            try:
                where = entry_path(owner, check_name(name))
            except ConfigError:
                return None
            known, now_s = self._ids.get((owner, name)), self._clock_s()
            if known is None or now_s - known[0] >= KEPT_S:
                (raw,) = self._records.read([where])
                known = (now_s, None if raw is None else get(EntryRecord, raw.value, where))
                _keep(self._ids, (owner, name), known)
            entry = known[1]
            if entry is None or entry.kind != "namespace":
                return None
            owner = entry.id
        return owner

    def policy_of_namespace(self, namespace_id: str) -> StreamPolicy:
        """Return what holds for a namespace. Raises StreamNotFound, PolicyInvalid, StorageError."""
        return effective(record.policy for _, record in self.levels(namespace_id))

    def policy_of_stream(self, stream_id: str) -> StreamPolicy | None:
        """Return what holds for a stream; None: there is none. Raises PolicyInvalid, StorageError."""
        try:
            where = check_path(stream_path(stream_id))
        except ConfigError:
            return None
        (raw,) = self._records.read([where])
        if raw is None:
            return None
        record = get(StreamRecord, raw.value, where)
        try:
            levels = self.levels(record.namespace)
        except StreamNotFound:
            return None
        return effective([*(level.policy for _, level in levels), record.policy])

    def cluster_rule(self, store: MetadataStore, age_s_max: float) -> PlacementConfig:
        """Return the cluster's rule of placement, as it was at most so long ago."""
        now_s = self._clock_s()
        known = self._rules
        if known is None or now_s - known[0] > age_s_max:
            known = self._rules = (now_s, read_rules(store))
        return known[1].rule

    def enforced_faults(
        self,
        store: MetadataStore,
        ensemble: tuple[BookieId, ...],
        write_quorum: int,
        rule: PlacementConfig,
    ) -> tuple[str, ...]:
        """Return how an ensemble breaks what its rule enforces, as far as metadata says where bookies are.

        It breaks nothing if it did not a moment ago: clients choose by what they have read up to ten seconds before.
        """
        with self._judging:  # it keeps verdicts, and is not made for threads
            for age_s_max in (KNOWN_S, KNOWN_AGAIN_S):
                reasons: tuple[str, ...] = ()
                for judge in self._judges(store, age_s_max):
                    reasons = judge.judge(ensemble, write_quorum, rule).enforced
                    if not reasons:
                        return ()
        return reasons

    def _judges(self, store: MetadataStore, age_s_max: float) -> list[PlacementJudge]:
        now_s = self._clock_s()
        if not self._judges_kept or now_s - self._judges_kept[0][0] > age_s_max:
            self._judges_kept = [(now_s, read_judge(store)), *self._judges_kept[:1]]
        return [judge for read_s, judge in self._judges_kept if now_s - read_s <= JUDGES_KEPT_S]

    def page(self, stream_id: str, page: PageRef) -> tuple[Segment, ...]:
        """Return the rows of a page of a chain. Raises StorageError."""
        (raw,) = self._records.read([page_path(stream_id, page)])
        if raw is None:
            raise StorageError(f"stream {stream_id}: page {page.page} of its chain is not there")
        return get_page(raw.value)

    def has_producers_page(self, stream_id: str, name: str) -> bool:
        """Return whether there is a page of a stream's table of producers."""
        (raw,) = self._records.read([f"{producers_path(stream_id)}/{name}"])
        return raw is not None

    def _namespace(self, namespace_id: str) -> NamespaceRecord:
        known = self._namespaces.get(namespace_id)
        now_s = self._clock_s()
        if known is not None and now_s - known[0] < KEPT_S:
            return known[1]
        where = namespace_path(namespace_id)
        (raw,) = self._records.read([where])
        if raw is None and namespace_id != ROOT_ID:
            raise StreamNotFound(f"there is no namespace {namespace_id}")
        record = NamespaceRecord() if raw is None else get(NamespaceRecord, raw.value, where)
        _keep(self._namespaces, namespace_id, (now_s, record))
        return record


def is_above(patterns: Sequence[str], path: str) -> bool:
    """Return whether a namespace that one of these patterns matches may lie below this path.

    A pattern is exact up to its first wildcard; what it may match behind that is not worked out.
    """
    for pattern in patterns:
        exact = next(
            (pattern[:index] for index, one in enumerate(pattern) if one in _GLOBS), pattern
        )
        if (
            not path
            or exact.startswith(f"{path}/")
            or (exact != pattern and f"{path}/".startswith(exact))
        ):
            return True
    return False


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    if len(kept) >= KEPT_MAX:
        kept.clear()
    kept[key] = value


PATTERNS_SHOWN = 5
"""Of a token's namespaces, in a refusal."""


class Access:
    """One client's, for one request. What it checks raises Unauthorized."""

    def __init__(self, principal: Principal, tree: NamespaceTree, end_s: float = math.inf) -> None:
        """`end_s`: when nobody waits for the answer any more, by the monotonic clock."""
        self.principal = principal
        self._tree = tree
        self._end_s = end_s

    def check_time(self) -> None:
        """Raise MetadataUnavailable where nobody waits any more: what takes many calls of the store ends then."""
        if time.monotonic() > self._end_s:
            raise MetadataUnavailable(
                "the request took too long: send one for less", outcome="not_written"
            )

    @property
    def is_limited(self) -> bool:
        """Whether it may only work in some namespaces."""
        return self.principal.namespaces is not None

    @property
    def sees_passwords(self) -> bool:
        """Whether it is shown ledgers' passwords: who may write needs them, who may only read does not."""
        return bool(self.principal.rights & WRITE)

    def has(self, need: Need) -> bool:
        """Return whether it has one of the rights."""
        return bool(self.principal.rights & need.rights)

    def check(self, need: Need, what: str) -> None:
        """Refuse a client that has none of the rights."""
        if not self.has(need):
            allowed = names_of(need.rights)
            raise Unauthorized(
                f"{self.principal.name} may not {need.operation} {what}: that needs the operation {allowed}"
            )

    def check_all(self, needs: Iterable[Need], what: str) -> None:
        """Refuse a client that lacks one of these."""
        for need in needs:
            self.check(need, what)

    def allows_namespace(self, path: str) -> bool:
        """Return whether it may work in a namespace, by path."""
        return self.principal.is_allowed(path)

    def check_namespace(self, path: str, what: str) -> None:
        """Refuse a client that may not work in a namespace, by path."""
        if not self.allows_namespace(path):
            # Ids can be guessed; the names of others' namespaces shall not be learned by that.
            where = "another namespace" if path else "no namespace"
            raise Unauthorized(
                f"{self.principal.name} may not work with {what}, which is of {where}: {self._limit}"
            )

    def check_ledger(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Refuse a client that may not work with a ledger."""
        self.check_namespace(metadata.namespace, f"ledger {ledger_id}")

    def check_reading(self, path: str, name: RecordName) -> None:
        """Refuse a client that may not read a record, or what lies below a path."""
        if path in (HOLD_PATH, LEVEL_PATH, PLACEMENT_PATH):
            return  # everybody has to stop then, or to know what may be written, and where
        if name.kind in OF_SERVICES:
            return  # who may only add finds there whom to send records to
        self.check(Need(READ, "read"), f"record {path}")
        if self.is_limited and not self._may_read(name):
            raise Unauthorized(f"{self.principal.name} may not read {name.label}: {self._limit}")

    @property
    def _limit(self) -> str:
        patterns = self.principal.namespaces or ()
        more = (
            f" and {len(patterns) - PATTERNS_SHOWN} more" if len(patterns) > PATTERNS_SHOWN else ""
        )
        return f"its token is limited to namespaces ({', '.join(patterns[:PATTERNS_SHOWN])}{more})"

    def _may_read(self, name: RecordName) -> bool:
        if name.is_of_stream:
            try:
                namespace_id = self._tree.namespace_of(name.owner)
            except StreamNotFound:
                return True  # there is nothing
            return self.allows_namespace(self._path(namespace_id))
        if not name.is_of_namespace:
            return name.kind is Kind.MARK  # it names bookies and ids of entries, and no entry
        path = self._path(name.owner)
        if name.kind is Kind.ENTRY:
            return self.sees_name(path, name.name)
        if name.kind in OF_PATTERNS | OF_COORDINATION:
            return self.allows_namespace(
                path
            )  # it tells of all streams of the namespace, or has its data
        return self.is_on_the_way(path)

    def sees_name(self, namespace: str, name: str) -> bool:
        """Return whether it may know what a name in a namespace, by path, stands for."""
        below = f"{namespace}/{name}" if namespace else name
        return self.allows_namespace(namespace) or self.is_on_the_way(below)

    def visible_names(self, owner: str, names: list[str]) -> list[str]:
        """Return the names in a namespace, as paths have them, that it may know of."""
        if not self.is_limited:
            return names
        path = self._path(owner)
        return [name for name in names if self.sees_name(path, decode(name))]

    def is_on_the_way(self, path: str) -> bool:
        """Return whether a namespace is one that it may work in, or lies above one."""
        patterns = self.principal.namespaces
        return patterns is None or self.allows_namespace(path) or is_above(patterns, path)

    def _path(self, namespace_id: str) -> str:
        try:
            return self._tree.path(namespace_id)
        except StreamNotFound:
            return "\0"  # there is no such namespace: no pattern matches it

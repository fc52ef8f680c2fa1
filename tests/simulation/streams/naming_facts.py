"""What must hold of the tree of namespaces and streams after each single change, and what a call may do and say.

Names are followed past all code of streams but the codecs: from one effect to the next the records tell what came,
what went and what is called otherwise, and the effect says whose call it was.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from fastbk.errors import Error, NamespaceNotEmpty, QuotaExceeded, StreamExists, StreamNotFound
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    EntryRecord,
    NamespaceRecord,
    StreamRecord,
    Tree,
    UsageRecord,
    get,
)
from fastbk.stream.paths import (
    chain_path,
    decode,
    entry_path,
    namespace_path,
    stream_path,
    usage_path,
)
from tests.fixtures.fake_ledgers import Cluster
from tests.simulation.streams.facts import demand
from tests.simulation.streams.naming_tree import (
    Call,
    Named,
    Names,
    Step,
    below,
    is_full,
    kind_at,
    may_do,
    prefixes,
    steps_between,
    stood,
)


class NamesJudge:
    """Follows the records of the tree from effect to effect (INV-S12)."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[str, int] = {}
        self._gone: set[str] = set()
        self._changes: dict[str, int] = {}
        self._read: dict[str, tuple[int, object]] = {}
        self.moments: list[Names] = [self._tree()]

    @property
    def now(self) -> Names:
        return self.moments[-1]

    def step(self, call: Call | None) -> None:
        """Something has changed, by `call` (None: by nobody who may change names)."""
        values = self._cluster.records.values
        versions = {
            path: held.version
            for path, held in values.items()
            if path.startswith(("namespaces/", "usage/")) or path.count("/") == 2
        }
        if versions == self._seen:
            return
        self._seen = versions
        before, after = self.now, self._tree()
        steps = steps_between(before, after)
        self._check_usage(after, steps)
        for step in steps:
            one_id = step.after.id
            demand(one_id not in self._gone, f"S12: the id of {step.path} is used again")
            if step.what == "deleted":
                self._gone.add(one_id)
            demand(call is not None, f"S12: {step.path} was {step.what} by nobody")
            assert call is not None
            demand(
                may_do(call, step, [*self.moments[call.began :], after]),
                f"S12: `{call}` has {step.what} {step.path}",
            )
        if call is not None and steps:
            call.did += steps
            self._check_quota(before, after, steps)
        self.moments.append(after)

    # --- the records --------------------------------------------------------------------------------------------

    def _tree(self) -> Names:
        values = self._cluster.records.values
        by_id = {ROOT_ID: Named("namespace", ROOT_ID, "", "", self._namespace(ROOT_ID).policy)}
        waiting, children = [ROOT_ID], self._entries()
        while waiting:
            above = waiting.pop()
            for name, entry in children.pop(above, {}).items():
                demand(entry.id not in by_id, f"S12: {name} has two names")
                where = entry_path(above, name)
                demand(where in values, f"S12: {name} stands where no name is looked for")
                if entry.kind == "namespace":
                    record = self._namespace(entry.id)
                    demand((record.parent, record.name) == (above, name), f"S12: names of {name}")
                    by_id[entry.id] = Named("namespace", entry.id, above, name, record.policy)
                    waiting.append(entry.id)
                else:
                    stream = self._stream(entry.id)
                    said = (stream.namespace, stream.name, stream.deleting)
                    demand(said == (above, name, False), f"S12: {name} stands for {said}")
                    demand(chain_path(entry.id) in values, f"S12: {name} has no chain")
                    by_id[entry.id] = Named("stream", entry.id, above, name, stream.policy)
        demand(not children, f"S12: names below {list(children)}, which is no namespace")
        self._check_nameless(by_id)
        streams: Counter[str] = Counter()
        for one in by_id.values():
            above = one.above if one.kind == "stream" else ""
            while above:
                streams[above] += 1
                above = by_id[above].above
        tree = Names(by_id, {}, dict(streams))
        tree.by_path = {tree.path_of(one_id): one for one_id, one in by_id.items()}
        return tree

    def _entries(self) -> dict[str, dict[str, EntryRecord]]:
        found: dict[str, dict[str, EntryRecord]] = {}
        for path in self._cluster.records.values:
            folder, *rest = path.split("/")
            if folder == "namespaces" and len(rest) == 4:
                entry = self._get(EntryRecord, path)
                assert entry is not None
                found.setdefault(rest[1], {})[decode(rest[3])] = entry
        return found

    def _check_nameless(self, by_id: dict[str, Named]) -> None:
        for path in self._cluster.records.values:
            folder, *rest = path.split("/")
            if len(rest) != 2:
                continue
            one_id = rest[1]
            if folder in ("namespaces", "usage"):
                demand(one_id in by_id, f"S12: {path} is there, and its namespace has no name")
            if folder == "streams":
                is_named = one_id in by_id
                demand(
                    self._stream(one_id).deleting != is_named, f"S12: stream {one_id} has no name"
                )

    def _get(self, kind: type[Tree], where: str) -> Tree | None:
        """Return a record; each version of one is decoded once."""
        held = self._cluster.records.values.get(where)
        if held is None:
            return None
        known = self._read.get(where)
        if known is None or known[0] != held.version:
            known = self._read[where] = (held.version, get(kind, held.value, where))
        return cast("Tree", known[1])

    def _namespace(self, one_id: str) -> NamespaceRecord:
        found = self._get(NamespaceRecord, namespace_path(one_id))
        demand(found is not None or one_id == ROOT_ID, f"S12: namespace {one_id} has no record")
        return found or NamespaceRecord()

    def _stream(self, one_id: str) -> StreamRecord:
        found = self._get(StreamRecord, stream_path(one_id))
        demand(found is not None, f"S12: stream {one_id} has a name, and no record")
        assert found is not None
        return found

    def _check_usage(self, tree: Names, steps: list[Step]) -> None:
        names = Counter(one.above for one in tree.by_id.values())
        touched = {one.above for step in steps for one in (step.before, step.after)}
        for one_id, one in tree.by_id.items():
            if one.kind == "stream":
                continue
            usage = self._get(UsageRecord, usage_path(one_id)) or UsageRecord()
            there = (tree.streams.get(one_id, 0), names[one_id])
            demand(
                (usage.streams, usage.names) == there,
                f"S12: {tree.path_of(one_id)} counts {usage.streams, usage.names}, there are {there}",
            )
            before = self._changes.get(one_id, -1)
            demand(
                usage.changes > before or (one_id not in touched and usage.changes == before),
                f"S12: a change in {tree.path_of(one_id)} is not counted, so nobody is told",
            )
            self._changes[one_id] = usage.changes

    def _check_quota(self, before: Names, after: Names, steps: list[Step]) -> None:
        for one_id, count in after.streams.items():
            most = after.by_id[one_id].policy.streams_max or 0
            has_grown = count > before.streams.get(one_id, 0)
            demand(
                not (most and has_grown and count > most),
                f"S12: {after.path_of(one_id)} has {count} streams of {most}",
            )

    # --- what calls say -----------------------------------------------------------------------------------------

    def returned(self, call: Call, error: Error | None) -> None:
        """A call has returned, or raised: check that there was a moment in which that was right."""
        moments = self.moments[call.began :]
        if error is None:
            self._succeeded(call, moments)
            return
        wanted = [below(call.path, name) for name in call.names]
        if call.verb == "rename":
            wanted = [below(call.path.rpartition("/")[0], call.names[0])]
        is_final = isinstance(error, StreamExists | StreamNotFound | NamespaceNotEmpty)
        if is_final and not call.is_unsure and call.verb not in ("create", "unmake"):
            demand(not call.did, f"`{call}` was refused ({error}), and has done something")
        ours = {step.after.id for step in call.did}
        if isinstance(error, StreamExists):
            wanted = wanted if call.verb != "create" else prefixes(call.path)
            wanted = wanted[1:] if call.verb == "rename stream" else wanted
            taken = [
                moment.by_path[path].id not in ours
                for moment in moments
                for path in wanted
                if path in moment.by_path
            ]
            demand(any(taken), f"`{call}`: {error}, and nothing had that name")
        elif isinstance(error, StreamNotFound):
            is_of_streams = call.verb in ("drop", "rename stream", "set stream")
            needed = wanted[: 1 if call.verb == "rename stream" else None] if is_of_streams else []
            spaces = [call.path] if call.verb != "create" else prefixes(call.path)[:-1]
            missing = any(
                any(kind_at(moment, path) != "namespace" for path in spaces)
                or any(kind_at(moment, path) != "stream" for path in needed)
                for moment in moments
            )
            is_replaced = len({one.id for m in moments if (one := m.by_path.get(call.path))}) > 1
            demand(missing or is_replaced, f"`{call}`: {error}, and it was there all the time")
        elif isinstance(error, NamespaceNotEmpty):
            demand(
                any(
                    any(path.startswith(f"{call.path}/") for path in moment.by_path)
                    for moment in moments
                ),
                f"`{call}`: {error}, and nothing was in it",
            )
        elif isinstance(error, QuotaExceeded):
            demand(
                any(is_full(moment, call) for moment in moments), f"`{call}`: {error}, and it may"
            )

    def _succeeded(self, call: Call, moments: list[Names]) -> None:
        created = {step.after.name for step in call.did if step.what == "created"}
        match call.verb:
            case "create":
                there = any(kind_at(moment, call.path) == "namespace" for moment in moments)
                is_made = (call.is_tolerant and there) or call.path.rpartition("/")[2] in created
                demand(is_made, f"`{call}` succeeded, and made nothing")
            case "streams":
                for name in call.names:
                    path = below(call.path, name)
                    there = any(kind_at(moment, path) == "stream" for moment in moments)
                    is_made = (call.is_tolerant and there) or name in created
                    demand(is_made, f"`{call}` succeeded, and made no {path}")
            case "drop":
                for name in call.names:
                    self._is_gone(call, below(call.path, name), moments)
            case "unmake":
                self._is_gone(call, call.path, moments)
            case "rename" | "rename stream":
                old = call.path if call.verb == "rename" else below(call.path, call.names[0])
                is_other = old.rpartition("/")[2] != call.names[-1]
                demand(
                    bool(call.did) or call.is_unsure or not is_other,
                    f"`{call}` succeeded, and renamed nothing",
                )
            case "set" | "set stream":
                path = below(call.path, *call.names)
                ids = stood(moments, path)
                held = [m.by_id[one].policy for m in moments for one in ids if one in m.by_id]
                is_set = any(policy.changed(call.patch) == policy for policy in held)
                demand(is_set, f"`{call}` succeeded, and its policy never held")

    def _is_gone(self, call: Call, path: str, moments: list[Names]) -> None:
        kind = "namespace" if call.verb == "unmake" else "stream"
        had = {one.id for m in moments if (one := m.by_path.get(path)) and one.kind == kind}
        demand(
            bool(had) or call.is_tolerant, f"`{call}` succeeded, and there was no {path} to delete"
        )
        was_missing = any(kind_at(moment, path) != kind for moment in moments)
        may_be_there = not had or (call.verb == "drop" and call.is_tolerant and was_missing)
        demand(
            may_be_there or bool(had - self.now.by_id.keys()),
            f"`{call}` succeeded, and what was {path} is there",
        )
        name, spaces = path.rpartition("/")[2], stood(moments, path.rpartition("/")[0])
        ours = [s for s in call.did if s.what == "deleted" and s.before.above in spaces]
        ours = [s for s in ours if (s.before.name, s.before.kind) == (name, kind)]
        demand(len(ours) <= 1, f"`{call}` deleted {path} more than once")

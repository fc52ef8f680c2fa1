"""Names of namespaces and streams at one moment, what may happen between two, and by whose call. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from fastbk.stream.namespace.tree import NO_PATCH, ROOT_ID, Kind
from fastbk.stream.policy import PolicyPatch
from tests.simulation.streams.facts import demand

Verb = Literal[
    "create", "streams", "drop", "rename", "rename stream", "unmake", "set", "set stream"
]


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for."""

    kind: Kind
    id: str
    above: str
    name: str
    policy: PolicyPatch


@dataclass(frozen=True, slots=True)
class Step:
    """What one effect did to one thing."""

    what: Literal["created", "deleted", "renamed", "policy"]
    before: Named
    after: Named
    path: str
    """Where it was, or is: before the effect, and after it if it was created."""
    line: tuple[str, ...]
    """Ids of the namespaces that it was, or is, in: from its own up to the root."""


@dataclass(slots=True)
class Names:
    """All names at one moment."""

    by_id: dict[str, Named]
    by_path: dict[str, Named]
    streams: dict[str, int]
    """By namespace: the streams in it and below it."""

    def path_of(self, one_id: str) -> str:
        """Return where something is; the root is at ""."""
        names: list[str] = []
        while one_id != ROOT_ID:
            names.append(self.by_id[one_id].name)
            one_id = self.by_id[one_id].above
        return "/".join(reversed(names))

    def line_of(self, one_id: str) -> tuple[str, ...]:
        """Return the ids of the namespaces that something is in, from its own up to the root."""
        found: list[str] = []
        while one_id != ROOT_ID:
            one_id = self.by_id[one_id].above
            found.append(one_id)
        return tuple(found)

    def levels(self, path: str) -> list[Named]:
        """Return the namespaces from the root down to `path`, as far as they are there."""
        parts = path.split("/") if path else []
        found = [self.by_path.get("/".join(parts[: at + 1])) for at in range(len(parts))]
        return [self.by_id[ROOT_ID], *(one for one in found if one and one.kind == "namespace")]


@dataclass(eq=False, slots=True)
class Call:
    verb: Verb
    path: str
    names: tuple[str, ...] = ()
    """Of streams, or the new name."""
    is_tolerant: bool = False
    """`exist_ok`, `missing_ok`, `recursive`."""
    patch: PolicyPatch = NO_PATCH
    began: int = 0
    did: list[Step] = field(default_factory=list)
    is_unsure: bool = False
    """An answer to a change of its was lost."""

    def __str__(self) -> str:
        return f"{self.verb} {self.path} {','.join(self.names)}{' tolerant' if self.is_tolerant else ''}"


def below(path: str, *names: str) -> str:
    """Return a path with these names behind it."""
    return "/".join([*([path] if path else []), *names])


def prefixes(path: str) -> list[str]:
    """Return the paths of all that lies on the way, the last one itself."""
    parts = path.split("/")
    return ["/".join(parts[: at + 1]) for at in range(len(parts))]


def kind_at(tree: Names, path: str) -> str:
    """Return what a path stands for; "": nothing."""
    found = tree.by_path.get(path)
    return "" if found is None else found.kind


def is_full(tree: Names, call: Call) -> bool:
    """Return whether a namespace on the way may not have the streams that the call creates."""
    return any(
        0 < (level.policy.streams_max or 0) < tree.streams.get(level.id, 0) + len(call.names)
        for level in tree.levels(call.path)
    )


def steps_between(before: Names, after: Names) -> list[Step]:
    """Return what has happened between two moments."""
    found: list[Step] = []
    for one_id, one in before.by_id.items():
        other = after.by_id.get(one_id)
        path, line = before.path_of(one_id), before.line_of(one_id)
        if other is None:
            found.append(Step("deleted", one, one, path, line))
            continue
        demand(other.above == one.above, f"S12: {path} has moved")
        if other.name != one.name:
            found.append(Step("renamed", one, other, path, line))
        if other.policy != one.policy:
            found.append(Step("policy", one, other, path, line))
    created = [one for one_id, one in after.by_id.items() if one_id not in before.by_id]
    return found + [
        Step("created", one, one, after.path_of(one.id), after.line_of(one.id)) for one in created
    ]


def stood(moments: Sequence[Names], path: str) -> set[str]:
    """Return the ids of all that a path stood for: what is above may be renamed while a call goes on."""
    return {moment.by_path[path].id for moment in moments if path in moment.by_path}


def may_do(call: Call, step: Step, moments: Sequence[Names]) -> bool:
    """Return whether it is of the call's kind, and done to what the call named in one of the moments since it began."""
    spaces, is_stream = stood(moments, call.path), step.after.kind == "stream"
    is_named = is_stream and step.before.above in spaces and step.before.name in call.names
    is_itself = step.after.id in spaces
    match call.verb:
        case "create":
            made = (
                path.rpartition("/")
                for path in prefixes(call.path)
                if step.after.above in stood(moments, path.rpartition("/")[0])
            )
            is_on_the_way = any(name == step.after.name for *_, name in made)
            return step.what == "created" and not is_stream and is_on_the_way
        case "streams":
            return step.what == "created" and is_named
        case "drop":
            return step.what == "deleted" and is_named
        case "unmake":
            is_inside = call.is_tolerant and not spaces.isdisjoint(step.line)
            return step.what == "deleted" and (is_inside or is_itself)
        case "rename":
            return step.what == "renamed" and is_itself and step.after.name == call.names[0]
        case "rename stream":
            is_it = is_named and step.before.name == call.names[0]
            return step.what == "renamed" and is_it and step.after.name == call.names[1]
        case "set":
            return step.what == "policy" and is_itself
        case _:  # a handle stands for the stream that had the name
            had = stood(moments, below(call.path, call.names[0]))
            return step.what == "policy" and step.after.id in had

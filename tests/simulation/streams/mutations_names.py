"""Faults that are planted under namespaces, each with a seed whose world of names finds it."""

from __future__ import annotations

from tests.simulation.planting import Mutation, fault

CHANGES = "fastbk.stream.namespace.tree"
BULK = "fastbk.stream.namespace.namespace"
NAMESPACE = "fastbk.stream.namespace.namespace:Namespace"
EVENTS = "fastbk.stream.namespace.listing"


MUTATIONS: tuple[Mutation, ...] = (
    fault(
        "gone-so-it-was-us",
        "a deletion whose attempt failed takes a name that is missing for its own work",
        (f"{BULK}:unname", "for name in await _renamed(catalog, gone, seen):", "for name in ():"),
        seed=59,
    ),
    fault(
        "renamed-so-it-was-us",
        "a renaming takes another name, which somebody else gave, for its own work",
        (f"{NAMESPACE}.rename_stream", "if tries.may_have_done_it:", "if True:"),
        seed=10,
    ),
    fault(
        "all-or-nothing",
        "a namespace is not deleted when a stream in it is renamed meanwhile",
        (
            f"{BULK}:_empty",
            "unname(catalog, path, some, missing_ok=True)",
            "unname(catalog, path, some)",
        ),
        seed=14,
    ),
    fault(
        "not-counted-above",
        "a stream that comes or goes is counted in its own namespace alone",
        (
            f"{CHANGES}:touched",
            "for level in place.levels[:-1]] if streams else []",
            "for level in place.levels[:-1]] if streams > 0 else []",
        ),
        seed=2,
    ),
    fault(
        "full-and-one-more",
        "the quota of the namespace itself is not looked at",
        (
            f"{CHANGES}:check_quota",
            "for index, level in enumerate(place.levels):",
            "for index, level in enumerate(place.levels[:-1]):",
        ),
        seed=0,
    ),
    fault(
        "policy-in-silence",
        "a new policy is not counted as a change, and who watches is not told",
        (f"{CHANGES}:stream_policy_set", "*touched(place),", ""),
        seed=3,
    ),
    fault(
        "watched-too-late",
        "what changes while a watcher looks is passed by",
        (
            f"{EVENTS}:watched_changes",
            "if not watched.is_gone:\n                await changed.wait()",
            "if not watched.is_gone:\n                changed.clear()\n                await changed.wait()",
        ),
        seed=145,
    ),
    fault(
        "half-a-renaming",
        "a stream's record keeps the name that it had",
        (f"{CHANGES}:stream_renamed", "put(replace(record.value, name=new))", "put(record.value)"),
    ),
)

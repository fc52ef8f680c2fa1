"""No module imports itself by way of others: not when it is loaded, and elsewhere only where it is listed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.style.tree import asked_once, walk

AT_LOAD, IN_FUNCTIONS, FOR_TYPES = "when loaded", "in functions", "for types"

# Cycles by imports inside functions or below TYPE_CHECKING. These lists may only shrink.
BY_FUNCTIONS = [
    {"fastbk.meta.uri", "fastbk.meta.zookeeper.store"},
    {"fastbk.stream.namespace.namespace", "fastbk.stream.stream"},
]
BY_TYPES = [
    {"fastbk.client.add_pipe", "fastbk.client.explicit_lac_sender"},
    {"fastbk.meta.api", "fastbk.meta.records", "fastbk.meta.replica_marks"},
    {
        "fastbk.stream.writer.engine",
        "fastbk.stream.writer.segment_lifecycle",
        "fastbk.stream.writer.traced_appends",
    },
]

Graph = dict[str, dict[str, set[str]]]


def imports_by_time(tree: ast.Module) -> list[tuple[str, str]]:
    """Return (dotted name, when it is imported) of everything that a module imports."""
    found = []
    pending: list[tuple[ast.AST, str]] = [(tree, AT_LOAD)]
    while pending:
        node, when = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            when = IN_FUNCTIONS
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            when = FOR_TYPES
        found += [(name, when) for name in names_of(node)]
        # No statement is in an expression, and those are nine nodes of ten.
        children = ast.iter_child_nodes(node)
        pending += [(child, when) for child in children if not isinstance(child, ast.expr)]
    return found


imports_in = asked_once(imports_by_time, "fastbk")


def graph_of(imports: dict[str, list[tuple[str, str]]]) -> Graph:
    """Return module -> the modules it imports -> when it does, of modules by dotted name."""
    graph: Graph = {}
    for module, names in imports.items():
        edges: dict[str, set[str]] = {}
        for name, when in names:
            target = name
            while target and target not in imports:
                target = target.rpartition(".")[0]
            if target and target != module:
                edges.setdefault(target, set()).add(when)
        graph[module] = edges
    return graph


def names_of(node: ast.AST) -> list[str]:
    """Return the dotted names that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def cycles_of(graph: Graph, kinds: set[str]) -> list[set[str]]:
    """Return the sets of modules that reach each other by imports of these kinds."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        pending = [start]
        while pending:
            edges = graph[pending.pop()]
            new = {name for name, when in edges.items() if when & kinds} - seen
            seen |= new
            pending += new
        return seen

    closure = {module: reached(module) for module in graph}
    cycles: list[set[str]] = []
    for module, seen in closure.items():
        if module in seen and not any(module in cycle for cycle in cycles):
            cycles.append({other for other in seen if module in closure[other]})
    return cycles


@pytest.fixture(scope="module")
def graph() -> Graph:
    imports = {}
    for relative, path in walk((".py",), "fastbk"):
        name = ".".join(Path(relative).with_suffix("").parts).removesuffix(".__init__")
        imports[name] = imports_in(path)
    return graph_of(imports)


@pytest.mark.parametrize(
    ("kinds", "listed"),
    [
        ({AT_LOAD}, []),
        ({AT_LOAD, IN_FUNCTIONS}, BY_FUNCTIONS),
        ({AT_LOAD, IN_FUNCTIONS, FOR_TYPES}, BY_FUNCTIONS + BY_TYPES),
    ],
)
def test_no_cycle_but_those_listed(graph: Graph, kinds: set[str], listed: list[set[str]]) -> None:
    cycles = cycles_of(graph, kinds)
    new = [sorted(cycle) for cycle in cycles if not any(cycle <= one for one in listed)]
    assert not new, "break these cycles of imports"
    gone = [sorted(one) for one in listed if not any(cycle <= one for cycle in cycles)]
    assert not gone, "these cycles are broken: take them off the list"


def test_each_kind_of_cycle_is_found() -> None:
    late = "def f():\n    import b\n"
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from b import x\n"
    for text, kind in (("import b\n", AT_LOAD), (late, IN_FUNCTIONS), (typed, FOR_TYPES)):
        sources = {"a": text, "b": "import c\n", "c": "from a import x\n"}
        graph = graph_of({name: imports_by_time(ast.parse(one)) for name, one in sources.items()})
        assert cycles_of(graph, {AT_LOAD, kind}) == [{"a", "b", "c"}]
        assert kind == AT_LOAD or cycles_of(graph, {AT_LOAD}) == []

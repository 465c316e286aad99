"""Static measures of the package: class names, drivers of the engine's loop, and import cycles."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.structure.sources import PACKAGE, Source, imported


def names_defined_twice(sources: Iterable[Source]) -> dict[str, int]:
    """Class names of several definitions, and how many they have."""
    found: defaultdict[str, int] = defaultdict(int)
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name] += 1
    return {name: count for name, count in sorted(found.items()) if count > 1}


def loop_drivers(sources: Iterable[Source]) -> list[str]:
    """Places that drive an engine by hand: calls of ``….engine.step()``."""
    return [
        f"{source.name}:{node.lineno}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        and ast.unparse(node.func.value).endswith("engine")
    ]


def import_cycles(sources: Iterable[Source]) -> list[list[str]]:
    """Modules that import each other, lazy and typing imports included (Tarjan's strongly connected components)."""
    known = {f"{PACKAGE}.{source.module}" for source in sources if source.module}
    arrows = {f"{PACKAGE}.{source.module}": set(_targets(source, known)) for source in sources if source.module}
    return [sorted(group) for group in _components(arrows) if len(group) > 1]


def _targets(source: Source, known: set[str]) -> Iterator[str]:
    for name in imported(source):
        target = name if name in known else name.rpartition(".")[0]
        if target in known and target != f"{PACKAGE}.{source.module}":
            yield target


def _components(arrows: dict[str, set[str]]) -> list[list[str]]:
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in arrows.get(node, ()):
            if target not in order:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == order[node]:
            start = stack.index(node)
            found.append(stack[start:])
            del stack[start:]

    sys.setrecursionlimit(10_000)
    for node in arrows:
        if node not in order:
            visit(node)
    return found

"""Static measures of the package: class names, drivers of the engine's loop, import cycles, and backends by name."""

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


def backend_users(sources: Iterable[Source], backends: Iterable[str]) -> list[str]:
    """Files outside ``backends`` that name a module or a class of one, given as MODULE:CLASS; ``doctor``, which shows
    the processor's kernels, excepted."""
    modules = {".".join(each.split(".")[:3]) for each in backends}
    classes = {each.partition(":")[2] for each in backends}
    return [
        source.name
        for source in sources
        if not source.module.startswith("backends.")
        and source.module != "cli.doctor"
        and any(_names(word, modules, classes) for word in (*imported(source), *_words(source)))
    ]


def _names(word: str, modules: set[str], classes: set[str]) -> bool:
    return word in classes or any(f"{word}.".startswith(f"{module}.") for module in modules)


def _words(source: Source) -> Iterator[str]:
    """Names, members and strings."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.replace(":", " ").split()


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

"""The package's source files as syntax trees: imports, attributes and functions, wherever they stand."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "twofold"


@dataclass(frozen=True, slots=True)
class Source:
    """A file. ``module`` is its dotted name under twofold, "" for the facade itself."""

    path: Path
    module: str
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


@cache
def package_sources() -> tuple[Source, ...]:
    """Every file of the package."""
    return tuple(_load(path) for path in sorted((ROOT / PACKAGE).rglob("*.py")))


def python_files(*folders: str) -> Iterator[Path]:
    """Python files in those folders of the repository; a folder that does not exist has none."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def imported(source: Source) -> Iterator[str]:
    """Dotted names of imported modules and members, lazy ones and those for type checking included."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.name}:{node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def attributes(source: Source) -> Iterator[str]:
    """Dotted uses of members, such as ``os.environ``, and members imported by name."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
    yield from imported(source)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from its ``def`` to its end."""
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def _load(path: Path) -> Source:
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    module = ".".join(parts).removesuffix(".__init__") if len(parts) > 1 else ""
    return Source(path, module, ast.parse(path.read_text(encoding="utf-8"), str(path)))

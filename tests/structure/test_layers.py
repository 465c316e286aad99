"""Imports point one way: a package imports from rows above its own, and only some may touch certain modules."""

from __future__ import annotations

import sys

import pytest

from tests.structure.sources import PACKAGE, Source, attributes, imported, package_sources

ROWS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("host", "formats", "text", "draw", "load"),
    ("kernels",),
    ("ops",),
    ("models", "kv", "sampling", "grammar"),
    ("sched", "speculate", "backends"),
    ("engine",),
    ("cost", "observe", "dialects"),
    ("batch", "phases"),
    ("serve", "bench"),
    ("cli",),
)

THIRD_PARTY: dict[str, frozenset[str]] = {
    "formats": frozenset({"numpy", "huggingface_hub", "httpx2"}),
    "text": frozenset({"numpy", "tokenizers", "jinja2"}),
    "load": frozenset({"numpy", "orjson"}),
    "kernels": frozenset({"numpy", "llvmlite"}),
    "ops": frozenset({"numpy"}),
    "models": frozenset({"numpy"}),
    "sampling": frozenset({"numpy"}),
    "backends": frozenset({"numpy"}),
    "grammar": frozenset({"numpy", "llguidance", "msgspec"}),
    "engine": frozenset({"numpy", "structlog"}),
    "cost": frozenset({"genai_prices", "numpy", "orjson"}),
    "observe": frozenset({"rich", "structlog", "prometheus_client", "opentelemetry"}),
    "dialects": frozenset({"orjson"}),
    "batch": frozenset({"orjson"}),
    "serve": frozenset({"h11", "msgspec", "orjson", "python_multipart", "starlette", "uvicorn"}),
    "phases": frozenset({"numpy", "orjson", "rich"}),
    "bench": frozenset({"msgspec", "numpy", "orjson", "rich", "tokenizers"}),
    "cli": frozenset({"cyclopts", "orjson", "prompt_toolkit", "rich"}),
}
"""What a package may import that neither Python nor Twofold brings; a package that is not listed, nothing."""

EXCLUSIVE: dict[str, frozenset[str]] = {
    "os.environ": frozenset({"host"}),
    "os.environb": frozenset({"host"}),
    "os.getenv": frozenset({"host"}),
    "os.putenv": frozenset({"host"}),
    "socket": frozenset({"formats", "grammar", "serve", "bench"}),
    "ssl": frozenset({"formats", "serve", "bench"}),
    "http": frozenset({"formats", "serve", "bench"}),
    "urllib.request": frozenset({"formats", "serve", "bench"}),
    "subprocess": frozenset({"formats", "text", "grammar", "serve", "bench"}),
    "pickle": frozenset(),
    "marshal": frozenset(),
    "shelve": frozenset(),
}
"""Modules and members of the standard library, and the only packages that may use them."""

ONLY: dict[str, frozenset[str]] = {"bench": frozenset({"core", "host", "formats", "text", "draw", "load"})}
"""Packages that import fewer than the rows above: what measures servers knows no engine, and no server."""

SOURCES = package_sources()
ROW_OF = {package: index for index, row in enumerate(ROWS) for package in row}

each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)


def covers(name: str, used: str) -> bool:
    """Whether using ``used`` is using ``name`` or something inside it."""
    return used == name or used.startswith(name + ".")


def test_every_package_has_a_row() -> None:
    assert {source.package for source in SOURCES} - {""} <= set(ROW_OF)


@each_source
def test_imports_point_upwards(source: Source) -> None:
    if not source.package:
        return  # the facade names what users import; nothing of the package imports it
    for name in imported(source):
        if not covers(PACKAGE, name):
            continue
        target = name.split(".")[1]
        assert target in ROW_OF, f"{source.name} imports {name}: not a package"
        allowed = target == source.package or ROW_OF[target] < ROW_OF[source.package]
        assert allowed, f"{source.name} imports {name}: {target} is not in a row above {source.package}"
        known = ONLY.get(source.package, {target}) | {source.package}
        assert target in known, f"{source.name} imports {name}: {source.package} may not"


@each_source
def test_third_party_modules_stay_in_their_packages(source: Source) -> None:
    ours = sys.stdlib_module_names | {PACKAGE} | THIRD_PARTY.get(source.package, frozenset())
    strangers = {name for name in imported(source) if name.split(".")[0] not in ours}
    assert not strangers, f"{source.name} imports {strangers}, which {source.package} may not"


@each_source
def test_exclusive_modules_stay_in_their_packages(source: Source) -> None:
    used = set(attributes(source))
    for name, owners in EXCLUSIVE.items():
        misused = source.package not in owners and any(covers(name, each) for each in used)
        assert not misused, f"{source.name} uses {name}, which is for {sorted(owners) or 'nobody'}"

"""Imports point one way: a room imports from rows before its own, and only some rooms may use certain modules."""

from __future__ import annotations

import sys

import pytest

from tests.structure.sources import PACKAGE, Source, attributes, imported, package_sources

ROWS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("host", "formats", "text", "bench.draw", "bench.load"),
    ("models",),
    ("backends.cpu.kernels", "backends.sampling", "engine.kv", "engine.grammar", "engine.draft"),
    ("backends",),
    ("engine.scheduler",),
    ("engine", "fleet.routing"),
    ("api", "observe"),
    ("api.batch", "planner", "web"),
    ("fleet",),
    ("bench", "bench.phases", "server"),
    ("cli",),
)
"""Rooms by their folder, those that import least first. A room inside another one has a place of its own."""

THIRD_PARTY: dict[str, frozenset[str]] = {
    "host": frozenset({"numpy"}),
    "formats": frozenset({"blake3", "numpy", "huggingface_hub", "httpx2"}),
    "text": frozenset({"numpy", "tokenizers", "jinja2"}),
    "models": frozenset({"numpy"}),
    "backends": frozenset({"msgspec", "numpy"}),
    "backends.cpu.kernels": frozenset({"numpy", "llvmlite"}),
    "backends.sampling": frozenset({"numpy"}),
    "engine": frozenset({"numpy", "structlog"}),
    "engine.kv": frozenset({"blake3"}),
    "engine.grammar": frozenset({"numpy", "llguidance", "msgspec"}),
    "api": frozenset({"msgspec", "orjson"}),
    "api.batch": frozenset({"msgspec", "orjson"}),
    "observe": frozenset({"rich", "structlog", "prometheus_client", "opentelemetry"}),
    "planner": frozenset({"genai_prices", "msgspec", "numpy", "orjson"}),
    "bench": frozenset({"msgspec", "numpy", "orjson", "rich", "tokenizers"}),
    "bench.load": frozenset({"numpy", "orjson"}),
    "bench.phases": frozenset({"numpy", "orjson", "rich"}),
    "fleet": frozenset({"blake3", "cryptography", "msgspec"}),
    "server": frozenset({"h11", "msgspec", "orjson", "python_multipart", "starlette", "uvicorn"}),
    "cli": frozenset({"cyclopts", "msgspec", "orjson", "prompt_toolkit", "rich"}),
}
"""What a room may import that neither Python nor Twofold brings; a room that is not listed, nothing."""

EXCLUSIVE: dict[str, frozenset[str]] = {
    "os.environ": frozenset({"host"}),
    "os.environb": frozenset({"host"}),
    "os.getenv": frozenset({"host"}),
    "os.putenv": frozenset({"host"}),
    "socket": frozenset({"formats", "engine.grammar", "fleet", "server", "bench"}),
    "ssl": frozenset({"formats", "fleet", "server", "bench"}),
    "http": frozenset({"formats", "server", "bench"}),
    "urllib.request": frozenset({"formats", "server", "bench"}),
    "subprocess": frozenset({"core", "formats", "text", "backends.cpu", "engine.grammar", "server", "bench"}),
    "pickle": frozenset(),
    "marshal": frozenset(),
    "shelve": frozenset(),
}
"""Modules and members of the standard library, and the only rooms that may use them."""

ONLY: dict[str, frozenset[str]] = {
    "bench": frozenset({"core", "host", "formats", "text", "bench.draw", "bench.load"}),
    "engine": frozenset(
        {"core", "host", "formats", "text", "models", "backends", "backends.sampling"}
        | {"engine.kv", "engine.grammar", "engine.draft", "engine.scheduler"}
    ),
}
"""Rooms that import fewer than the rows before: what measures servers knows no engine and no server, and the engine
knows no traffic and no charts."""

SOURCES = package_sources()
ROW_OF = {room: index for index, row in enumerate(ROWS) for room in row}

each_source = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)


def covers(name: str, used: str) -> bool:
    """Whether using ``used`` is using ``name`` or something inside it."""
    return used == name or used.startswith(name + ".")


def room_of(module: str) -> str:
    """The innermost room that a dotted name under twofold lies in."""
    parts = module.split(".")
    return next((room for end in range(len(parts), 0, -1) if (room := ".".join(parts[:end])) in ROW_OF), "")


def test_every_package_has_a_row() -> None:
    assert [source.name for source in SOURCES if source.module and not room_of(source.module)] == []


@each_source
def test_imports_point_upwards(source: Source) -> None:
    room = room_of(source.module)
    if not room:
        return  # the facade names what users import; nothing of the package imports it
    for name in imported(source):
        if not covers(PACKAGE, name):
            continue
        target = room_of(name.removeprefix(PACKAGE + "."))
        assert target, f"{source.name} imports {name}: not a room"
        allowed = target == room or ROW_OF[target] < ROW_OF[room]
        assert allowed, f"{source.name} imports {name}: {target} is not in a row before {room}"
        known = ONLY.get(room, {target}) | {room}
        assert target in known, f"{source.name} imports {name}: {room} may not"


@each_source
def test_third_party_modules_stay_in_their_rooms(source: Source) -> None:
    room = room_of(source.module)
    ours = sys.stdlib_module_names | {PACKAGE} | THIRD_PARTY.get(room, frozenset())
    strangers = {name for name in imported(source) if name.split(".")[0] not in ours}
    assert not strangers, f"{source.name} imports {strangers}, which {room} may not"


@each_source
def test_exclusive_modules_stay_in_their_rooms(source: Source) -> None:
    used = set(attributes(source))
    for name, owners in EXCLUSIVE.items():
        inside = any(covers(owner, source.module) for owner in owners)
        misused = not inside and any(covers(name, each) for each in used)
        assert not misused, f"{source.name} uses {name}, which is for {sorted(owners) or 'no room'}"

"""A node takes numbers and choices from a hub, and no path or name that would mean something on its own machine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.conftest import ENGINE
from twofold.core.errors import ParameterError, TwofoldError
from twofold.engine.config import EngineKeywords, EngineOptions
from twofold.engine.kv.names import BlockKeys
from twofold.fleet.joining import FleetAddress
from twofold.fleet.messages import LENGTH, Codec, FromNode, Hello, LoadModel, Unloadable
from twofold.fleet.node import HUB_OPTIONS, UNUSED_OPTIONS, NodeSettings, _engine_options, serve_hubs
from twofold.fleet.reading import ModelReading

NODE = NodeSettings(hubs=(), model="m", path=Path("/models/own.gguf"), name="n", options={"threads": 1})
DRAFT = {"method": "draft_model", "model": "/etc/passwd", "num_speculative_tokens": 3}


def test_every_option_of_an_engine_is_sorted() -> None:
    """A new option must be put into one of these sets, so that it is asked who may set it."""
    known, own = set(EngineKeywords.__annotations__), {"isa", "kv_store", "backend_options"}
    assert known == HUB_OPTIONS | UNUSED_OPTIONS | own
    assert not HUB_OPTIONS & (UNUSED_OPTIONS | own)


@pytest.mark.parametrize("name", ["kv_store", "isa", "backend_options", "nonsense", "model"])
def test_other_options_of_a_hub_are_refused_by_name(name: str) -> None:
    with pytest.raises(ParameterError, match=f"The server sets {name}"):
        _engine_options({"seed": 1, name: "/etc/passwd"}, NODE)


def test_numbers_and_choices_of_a_hub_are_taken() -> None:
    asked = {"seed": 3, "kv_cache_dtype": "f16", "threads": 64, "isa": None, "chat_template": "/etc/passwd"}
    assert _engine_options(asked, NODE) == {"seed": 3, "kv_cache_dtype": "f16", "threads": 1}


def test_a_draft_model_is_a_file_that_the_node_has_named() -> None:
    with pytest.raises(ParameterError, match="this node has none"):
        _engine_options({"speculative_config": DRAFT}, NODE)
    own = NodeSettings(hubs=(), model="m", path=NODE.path, name="n", draft=Path("/models/draft.gguf"))
    made = EngineOptions(**_engine_options({"speculative_config": DRAFT}, own)).speculation
    assert (made.model, made.num_speculative_tokens) == ("/models/draft.gguf", 3)
    suffix = {"speculative_config": {"method": "suffix"}}
    assert _engine_options(suffix, own) == suffix


@pytest.mark.parametrize(
    "options",
    [
        {"kv_store": "PLANTED"},
        {"speculative_config": {"model": "/etc/passwd"}},
        {"speculative_config": {"model": "hf.co/nobody/nothing/x.gguf"}},
        {"isa": "../../x"},
        {"seed": "/etc/passwd"},
    ],
)
def test_a_hub_gets_an_error_and_no_file(
    reading: ModelReading, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node refuses such options with an error, starts no process and changes no file."""
    monkeypatch.setattr("twofold.fleet.node_worker.start_worker", lambda *_: pytest.fail("a process was started"))
    options = {name: str(tmp_path / "planted") if value == "PLANTED" else value for name, value in options.items()}
    codec, heard = Codec(Hello | FromNode), list[Any]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keys = BlockKeys(b"s" * 32, b"i" * 32)
        writer.write(codec.frame(LoadModel("/etc/passwd", {**ENGINE, **options}, False, keys)))
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                heard.append(codec.message(await reader.readexactly(length)))
        writer.close()

    async def join() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            address = FleetAddress("127.0.0.1", port)
            with pytest.raises(TwofoldError):
                await serve_hubs(NodeSettings(hubs=(address,), model="tiny", path=reading.path, name="n"))
            async with asyncio.timeout(60):
                while len(heard) < 2:
                    await asyncio.sleep(0.01)

    asyncio.run(join())
    assert isinstance(heard[1], Unloadable)
    assert "root" not in str(heard[1].error)
    assert list(tmp_path.iterdir()) == []

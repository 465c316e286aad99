"""Two servers over tiny models, and common clients: OpenAI's, Anthropic's and Ollama's own.

``server`` is open, with a model that thinks and one that fills in the middle beside one that does neither; ``guarded``
has keys and room for one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import anthropic
import openai
import pytest

from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions
from twofold.server.edge.keys import add_key
from twofold.server.edge.quotas import Quota

TINY: Final = "tiny"
THINKER: Final = "thinker"
CODER: Final = "coder"
LONG: Final = TinyOptions("llama", vocab=300, context=2048, tied=False, seed=2)
"""With this seed the random model writes JSON with little white space."""
THINKS: Final = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>\n{% endif %}"
    "{% endif %}"
)
"""A chat template that opens the thinking section, unless thinking is disabled."""
INFILL: Final = tuple(
    (f"tokenizer.ggml.fim_{part}_token_id", 290 + place) for place, part in enumerate(("pre", "suf", "mid"))
)
"""Tokens for filling in the middle."""
SLOW: Final = TinyOptions("llama", vocab=300, context=8192, layers=8, hidden=256, heads=4, kv_heads=4, head_dim=64)
"""A model that is slow enough to be interrupted."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server with keys: their texts by their rights."""

    live: LiveServer
    keys: dict[str, str]

    def openai(self, key: str = "free", **options: Any) -> Any:
        return _openai(self.live, **{"api_key": self.keys.get(key, key)} | options)

    def anthropic(self, key: str = "free", **options: Any) -> Any:
        return _anthropic(self.live, **{"api_key": self.keys.get(key, key)} | options)


@pytest.fixture(scope="session")
def server(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    plain, thinks = tiny_gguf(LONG), tiny_gguf(replace(LONG, extra=(("tokenizer.chat_template", THINKS),)))
    coder = tiny_gguf(replace(LONG, extra=INFILL))
    models = (f"{TINY}={plain.path}", f"{THINKER}={thinks.path}", f"{CODER}={coder.path}")
    with live_server(tmp_path_factory.mktemp("open"), *models, "--threads", "1") as live:
        yield live


@pytest.fixture(scope="session")
def guarded(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    file, now = folder / "keys.toml", datetime.now(UTC)
    keys = {
        "free": add_key(file, "free", now=now)[1],
        "other": add_key(file, "other", now=now)[1],
        "modest": add_key(file, "modest", now=now, tiers=("default",))[1],
        "counted": add_key(file, "counted", now=now, quota=Quota(requests_per_minute=1))[1],
        "hasty": add_key(file, "hasty", now=now, quota=Quota(requests_per_minute=30))[1],
    }
    models = (f"{TINY}={tiny_gguf(SLOW).path}",)
    room = ("--threads", "1", "--max-num-seqs", "1", "--max-num-queued-reqs", "1")
    with live_server(folder, *models, *room, "--api-keys", str(file)) as live:
        yield Guarded(live, keys)


@pytest.fixture
def client(server: LiveServer) -> Iterator[Any]:
    """OpenAI's client, which validates every reply strictly against its types."""
    with _openai(server) as client:
        yield client


@pytest.fixture
def lenient(server: LiveServer) -> Iterator[Any]:
    """OpenAI's client as it is by default, for replies that its own types do not have: base64 where it says a list of
    numbers, and nulls of streamed completions that OpenAI sends too."""
    with _openai(server, _strict_response_validation=False) as client:
        yield client


@pytest.fixture
def claude(server: LiveServer) -> Iterator[Any]:
    """Anthropic's client, as strict."""
    with _anthropic(server) as client:
        yield client


def async_openai(server: LiveServer, **options: Any) -> Any:
    return openai.AsyncOpenAI(**_options(server, "/v1") | options)


def async_anthropic(server: LiveServer, **options: Any) -> Any:
    return anthropic.AsyncAnthropic(**_options(server, "") | options)


def _openai(server: LiveServer, **options: Any) -> Any:
    return openai.OpenAI(**_options(server, "/v1") | options)


def _anthropic(server: LiveServer, **options: Any) -> Any:
    return anthropic.Anthropic(**_options(server, "") | options)


def _options(server: LiveServer, path: str) -> dict[str, Any]:
    return {
        "api_key": "none",
        "base_url": server.url + path,
        "max_retries": 0,
        "timeout": 120.0,
        "_strict_response_validation": True,
    }

"""One live server over a tiny model, shared by all tests that do not disturb it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions

TINY: Final = TinyOptions("llama", vocab=300, context=512)
THINKS: Final = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
)


@pytest.fixture(scope="session")
def tiny(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> TinyModel:
    return tiny_gguf(TINY)


@pytest.fixture(scope="session")
def server(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that calls the tiny model ``tiny``."""
    folder = tmp_path_factory.mktemp("server")
    with live_server(folder, f"tiny={tiny.path}", "--threads", "1") as live:
        yield live

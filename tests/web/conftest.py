"""One Chromium and one server over a tiny model, shared by all tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions
from tests.web.browser import Outside, Watch, fresh, launched, outside, tabs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browser tests are the last: Playwright's event loop stays in the main thread, where asyncio.run then fails."""
    items.sort(key=lambda item: item.get_closest_marker("browser") is not None)


@pytest.fixture(scope="session")
def tiny(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> TinyModel:
    return tiny_gguf(TinyOptions("llama", vocab=300, context=2048))


@pytest.fixture(scope="session")
def server(
    tiny: TinyModel, tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server of two tiny models, ``tiny`` and ``other``."""
    other = tiny_gguf(TinyOptions("llama", vocab=300, context=512, seed=1))
    folder = tmp_path_factory.mktemp("web")
    with live_server(folder, f"tiny={tiny.path}", f"other={other.path}", "--threads", "1") as live:
        yield live


@pytest.fixture(scope="session")
def keyed(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that wants the key ``secret``."""
    folder = tmp_path_factory.mktemp("keyed")
    with live_server(folder, f"tiny={tiny.path}", "--threads", "1", "--api-key", "secret") as live:
        yield live


@pytest.fixture(scope="session")
def elsewhere() -> Iterator[Outside]:
    """What the browser asks of other hosts: nothing, in all tests together."""
    with outside() as proxy:
        yield proxy
        assert proxy.asked == []


@pytest.fixture(scope="session")
def browser(elsewhere: Outside) -> Iterator[Browser]:
    with launched(elsewhere) as chromium:
        yield chromium


@pytest.fixture(scope="session")
def tab(browser: Browser) -> Iterator[Page]:
    """A tab that tests use one after another: a new one for each would take as long as most of them."""
    with tabs(browser) as opened:
        yield opened


@pytest.fixture
def watch(tab: Page, server: LiveServer) -> Iterator[tuple[Page, Watch]]:
    """A page of the server, not yet opened, with what it may not do; both are checked at the end of the test."""
    with fresh(tab, server.url) as seen:
        yield tab, seen


@pytest.fixture
def page(watch: tuple[Page, Watch], server: LiveServer) -> Page:
    """The opened page. The test fails if it reports an error, violates its policy, or asks another origin."""
    watch[0].goto(server.url)
    return watch[0]

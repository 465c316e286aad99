"""A hidden tab, a browser that keeps nothing, files dropped anywhere, a lost stream, a new key: nothing is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel
from tests.web.browser import Watch, load_views, watched
from tests.web.stage import ABOUT, BUSY, CHAT, LIVE, Stage, chunk, progress, refusal, through, unfinished
from tests.web.test_chat import settle
from tests.web.test_engine import requests
from tests.web.test_states import RESULT

pytestmark = pytest.mark.browser

HIDE: Final = """(hidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
DRAWS: Final = """() => {
    window.draws = 0;
    const count = (name) => {
        const draw = CanvasRenderingContext2D.prototype[name];
        CanvasRenderingContext2D.prototype[name] = function (...given) { draws += 1; return draw.apply(this, given); };
    };
    ["clearRect", "fillRect", "fill", "stroke", "fillText"].forEach(count);
    const all = { subtree: true, childList: true, attributes: true, characterData: true };
    new MutationObserver((list) => draws += list.length).observe(document.querySelector("#view"), all);
}"""
DRAWN: Final = """() => new Promise((done) => {
    const look = () => draws > 0 ? done() : requestAnimationFrame(look);
    look();
})"""
FRAMES: Final = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
REFUSES: Final = """for (const name of ["indexedDB", "localStorage", "sessionStorage"]) {
    Object.defineProperty(window, name, { get: () => { throw new DOMException("no", "SecurityError"); } });
}"""
FULL: Final = """IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); };
Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); };"""
DROP: Final = """([place, name, text]) => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([text], name));
    const event = (kind) => new DragEvent(kind, { bubbles: true, cancelable: true, dataTransfer });
    return ["dragover", "drop"].map((kind) => !document.querySelector(place).dispatchEvent(event(kind)));
}"""
"""Drops a file; tells of both events whether the browser will open the file itself (false) or leave it to the page."""


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def answered(page: Page) -> None:
    expect(page.locator(".answer").last.get_by_role("button", name="Copy", exact=True)).to_be_visible()


def drop(page: Page, place: str, name: str, text: str) -> None:
    expect(page.locator(place).first).to_be_visible()
    assert page.evaluate(DROP, [place, name, text]) == [True, True]


def test_a_hidden_tab_asks_for_nothing_and_draws_nothing(page: Page, server: LiveServer) -> None:
    page.goto(f"{server.url}/#/engine")
    for thread in requests(server):
        thread.join()
    said = page.locator(".said")
    expect(said).to_contain_text(re.compile("decode rows?"))
    page.evaluate(DRAWS)
    page.evaluate(DRAWN)  # the time axis moves
    with page.expect_event("requestfailed", lambda each: LIVE in each.url):
        page.evaluate(HIDE, True)
    page.evaluate(FRAMES)
    before = said.inner_text()
    page.evaluate("draws = 0")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for thread in requests(server):
        thread.join()
    page.wait_for_timeout(600)  # six beats of the axis
    assert (page.evaluate("draws"), asked) == (0, [])
    page.evaluate(HIDE, False)
    expect(said).not_to_have_text(before)
    assert len([url for url in asked if LIVE in url]) == 1
    assert page.evaluate("draws") > 0


@pytest.mark.parametrize("view", ["chat", "compare", "explore", "bench"])
def test_a_hidden_view_asks_for_nothing_and_draws_nothing(page: Page, server: LiveServer, view: str) -> None:
    page.goto(f"{server.url}/#/{view}?hardware=h100&model=llama-3-8b")
    shown = page.get_by_role("img", name="Roofline") if view == "explore" else page.locator("main")
    expect(shown).to_be_visible()
    load_views(page)
    page.evaluate(HIDE, True)
    page.evaluate(DRAWS)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(200)
    assert (page.evaluate("draws"), asked) == (0, [])


def test_an_answer_in_a_hidden_tab_is_drawn_when_it_is_seen(page: Page) -> None:
    pieces = "".join(chunk({"content": f"{number} "}) for number in range(400))
    with unfinished(pieces) as answering:
        page.route(f"**{CHAT}", through(answering))
        page.evaluate(HIDE, True)
        with page.expect_request(f"**{CHAT}"):
            say(page, "Hello")
        page.evaluate(FRAMES)
        page.evaluate(DRAWS)
        page.wait_for_timeout(300)
        assert page.evaluate("draws") == 0
        page.evaluate(HIDE, False)
        expect(page.locator(".answer .text")).to_contain_text("398 399")


def test_a_browser_that_keeps_nothing_chats(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.url) as (page, _):
        page.add_init_script(REFUSES)
        page.goto(server.url)
        expect(page.get_by_role("alert").get_by_text("This browser does not keep conversations.")).to_be_visible()
        page.get_by_role("button", name="Dark or light").click()
        say(page, "Hello")
        answered(page)


def test_a_full_store_is_said_and_loses_nothing_that_is_shown(browser: Browser, server: LiveServer) -> None:
    message = {"id": "m", "parent": "", "role": "user", "content": "An old apple", "created": 1.0}
    talk = {
        "id": "t",
        "title": "Old",
        "created": 1.0,
        "system": "",
        "settings": {},
        "messages": [message],
        "chosen": {},
        "updated": 1.0,
    }
    with watched(browser, server.url) as (page, _):
        page.add_init_script(FULL)
        page.goto(server.url)
        full = page.get_by_role("alert").get_by_text("The browser's store is full")
        settle(page, max_tokens="24")  # a longer answer may not fit the context beside a second message
        say(page, "Hello")
        answered(page)
        expect(full).to_be_visible()
        page.get_by_label("Message", exact=True).fill("Half a sentence")
        side = page.get_by_role("complementary", name="Conversations")
        text = json.dumps({"schema": "twofold.chat/1", "conversations": [talk]})
        side.locator("input[type=file]").set_input_files(
            {"name": "a.json", "mimeType": "application/json", "buffer": text.encode()}
        )
        expect(side.get_by_role("button", name="Old")).to_be_visible()
        expect(full).to_be_visible()
        expect(page.locator(".ask")).to_contain_text("Hello")
        expect(page.get_by_label("Message", exact=True)).to_have_value("Half a sentence")


def test_files_may_be_dropped(page: Page, server: LiveServer) -> None:
    page.get_by_label("Message", exact=True).fill("Half a sentence")
    drop(page, ".composer", "a.txt", "alpha")
    expect(page.get_by_role("button", name="Remove a.txt")).to_be_visible()
    drop(page, "header", "b.txt", "beta")  # where nothing takes it: the page stays
    expect(page.get_by_label("Message", exact=True)).to_have_value("Half a sentence")
    page.goto(f"{server.url}/#/bench")
    drop(page, "main.bench", "run.json", RESULT.decode())
    expect(page.get_by_role("img", name="Requests")).to_be_visible()
    drop(page, "main.bench", "other.json", "{}")
    expect(page.get_by_role("alert")).to_contain_text("other.json")
    page.goto(f"{server.url}/#/engine")
    drop(page, "main.engine", "c.txt", "gamma")


def test_a_lost_live_stream_greys_and_comes_back(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect("ERR_FAILED")
    stage = Stage(page, server, "")
    stage.state = "offline"
    page.goto(f"{server.url}/#/engine")
    expect(page.locator(".engine .fault")).to_contain_text("The server does not answer.")
    expect(page.locator("main.engine")).to_have_class("engine old")
    stage.state = "empty"
    expect(page.locator(".engine .fault")).to_be_hidden()
    expect(page.locator("main.engine")).to_have_class("engine")


def test_a_refusal_says_when_the_next_try_is(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect("status of (429|503)")
    page.route(f"**{ABOUT}", refusal(503, "The server is starting.", **{"retry-after": "1"}))
    page.goto(server.url)
    trouble = page.locator(".bar + .fault")
    expect(trouble).to_have_text(re.compile(r"The server is starting. The next try is at \d+:\d\d:\d\d"))
    page.unroute_all()
    expect(trouble).to_be_hidden()
    expect(page.locator(".bar select")).to_have_value("tiny")
    page.route(f"**{LIVE}*", refusal(429, BUSY, **{"retry-after": "60"}))
    page.goto(f"{server.url}/#/engine")
    expect(page.locator(".engine .fault")).to_have_text(re.compile(rf"{BUSY} The next try is at \d+:\d\d:\d\d"))


def test_a_request_in_the_queue_says_its_place_and_then_how_far_it_is(page: Page) -> None:
    prefill = {"state": "prefill", "cached": 1024, "done": 1120, "of": 1312, "first_token_ms": 430.0}
    for told, says in (
        ({"state": "queued", "ahead": 3}, "Waiting: 3 before this one"),
        (prefill, "prefill 85% · 1,312 tokens · first token in ≈ 380 ms"),
    ):
        with unfinished(progress(told, 50.0)) as answering:
            page.route(f"**{CHAT}", through(answering))
            say(page, "Hello")
            expect(page.locator(".answer .state").last).to_have_text(re.compile(rf"^{re.escape(says)}( · \d+ s)?$"))
            page.keyboard.press("Escape")
            page.unroute_all()


def test_a_restarted_server_and_a_model_that_cannot_be_loaded(
    browser: Browser, tiny: TinyModel, tmp_path: Path
) -> None:
    """The server is killed in the middle of an answer and started again: the answer goes on, nothing typed is lost."""
    (tmp_path / "bad.gguf").write_bytes(tiny.path.read_bytes()[:-1000])
    models = [f"tiny={tiny.path}", f"bad={tmp_path / 'bad.gguf'}", "--threads", "1"]
    with live_server(tmp_path, *models) as first, watched(browser, first.url) as (page, seen):
        seen.expect("status of 4(00|22)|ERR_")  # 400: after the whole answer, no message fits the context
        page.goto(first.url)
        page.locator(".bar select").select_option("bad")
        say(page, "Hello")
        expect(page.locator(".answer .fault")).to_contain_text("download it again")
        page.goto(f"{first.url}/#/engine")
        expect(page.locator(".engine .fault")).to_contain_text("The model could not be loaded. bad.gguf: ")
        page.locator(".bar select").select_option("tiny")
        page.goto(f"{first.url}/#/chat")
        say(page, "Tell a long story")
        expect(page.locator(".answer .text").last).not_to_be_empty()
        page.get_by_label("Message", exact=True).fill("Half a sentence")
        first.process.kill()
        expect(page.locator(".answer .fault").last).to_contain_text("cut before the answer was complete")
        expect(page.locator(".bar + .fault")).to_contain_text("The server does not answer.")
        said = page.locator(".answer .text").last.inner_text()
        with live_server(tmp_path, *models, port=int(first.url.rsplit(":", 1)[1])):
            page.locator(".answer").last.get_by_role("button", name="Continue").click()
            answered(page)
            assert page.locator(".answer .text").last.inner_text().startswith(said[:20])
            expect(page.locator(".bar + .fault")).to_be_hidden()
            expect(page.get_by_label("Message", exact=True)).to_have_value("Half a sentence")


def test_a_view_of_a_server_of_another_version_says_what_to_do(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect("404")
    page.route("**/engine.js*", refusal(404, "No such file."))
    page.goto(server.url)
    page.get_by_label("Message", exact=True).fill("Half a sentence")
    page.goto(f"{server.url}/#/engine")
    fault = page.get_by_role("alert")
    expect(fault).to_contain_text("Engine cannot be shown")
    box = fault.bounding_box()
    assert box is not None
    assert box["height"] < 200
    page.unroute_all()
    fault.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("img", name="Rows of the steps")).to_be_visible()
    page.goto(f"{server.url}/#/chat")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Half a sentence")


VIEW_SCRIPTS: Final = {"compare.js", "engine.js", "explore.js", "bench.js", "shared.js"}


def test_views_are_there_before_they_are_opened(watch: tuple[Page, Watch], server: LiveServer) -> None:
    """Their scripts are fetched while the page is idle, so a server that is gone takes no view with it."""
    page, seen = watch
    seen.expect("ERR_FAILED")
    asked: set[str] = set()
    page.on("requestfinished", lambda request: asked.add(request.url.rpartition("/")[2]))
    page.goto(server.url)
    for _ in range(600):
        if asked >= VIEW_SCRIPTS:
            break
        page.wait_for_timeout(100)
    assert asked >= VIEW_SCRIPTS
    page.route("**/*", lambda route: route.abort())
    for view in ("Compare", "Engine", "Explore", "Bench"):
        page.get_by_role("link", name=view).first.click()
        expect(page.get_by_role("heading", name=view, level=1)).to_be_attached()
        expect(page.get_by_text("cannot be shown")).to_have_count(0)


def test_a_view_whose_script_failed_comes_with_the_server(watch: tuple[Page, Watch], server: LiveServer) -> None:
    """Without a reload or a click, and from another address, as a browser may keep a module that failed."""
    page, seen = watch
    seen.expect("ERR_FAILED")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
    page.route("**/engine.js*", lambda route: route.abort())
    page.goto(server.url)
    expect(page.locator(".bar select")).to_have_value("tiny")
    page.route(f"**{ABOUT}", lambda route: route.abort())
    page.get_by_role("link", name="Engine").first.click()
    expect(page.get_by_text("Engine cannot be shown")).to_be_visible()
    expect(page.locator(".bar + .fault")).to_contain_text("The server does not answer.")
    page.unroute_all()
    expect(page.get_by_role("img", name="Rows of the steps")).to_be_visible()
    expect(page.get_by_text("Engine cannot be shown")).to_have_count(0)
    assert len({name for name in asked if name.startswith("engine.js")}) > 1


def test_the_state_of_the_model_is_followed(page: Page, server: LiveServer) -> None:
    about = server.get(ABOUT).json()
    states = ["loading", "loading", "ready"]

    def answer(route: Route) -> None:
        about["models"][0]["state"] = states.pop(0) if len(states) > 1 else states[0]
        route.fulfill(json=about)

    page.route(f"**{ABOUT}", answer)
    page.reload()
    option = page.locator(".bar option").first
    expect(option).to_have_text("tiny (is loading)")
    expect(page.locator(".guess")).to_have_text("tiny is loading.")
    expect(option).to_have_text("tiny")
    expect(page.locator(".guess")).to_have_text("")


def test_the_live_view_goes_on_with_a_new_key(browser: Browser, keyed: LiveServer) -> None:
    with watched(browser, keyed.url) as (page, seen):
        seen.expect("401")
        page.goto(keyed.url)
        dialog = page.get_by_role("dialog", name="API key")

        def give(key: str) -> None:
            dialog.get_by_label("Key", exact=True).fill(key)
            dialog.get_by_role("button", name="Apply").click()

        give("secret")
        expect(page.locator(".bar select")).to_have_value("tiny")
        page.route(f"**{LIVE}*", refusal(401, "This key has expired."))
        page.goto(f"{keyed.url}/#/engine")
        expect(page.locator(".engine .fault")).to_contain_text("This key has expired.")
        page.unroute_all()
        page.get_by_role("button", name="Key", exact=True).click()
        give("wrong")
        expect(dialog.get_by_role("alert")).to_be_visible()
        give("secret")
        expect(page.locator(".engine .fault")).to_be_hidden()
        expect(page.get_by_role("img", name="Rows of the steps")).to_be_visible()

"""The engine view in a browser: what it draws, how it is used, and what those who cannot see it get."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.server.live import LiveServer
from tests.web.browser import Watch
from tests.web.looks import faults_of_looks
from tests.web.stage import ABOUT


def requests(server: LiveServer, count: int = 3, tokens: int = 40) -> list[threading.Thread]:
    def ask(number: int) -> None:
        message = {"role": "user", "content": f"{number} sheep jump over the fence, and then"}
        body = {"messages": [message], "max_tokens": tokens, "temperature": 1, "seed": number}
        assert server.post("/v1/chat/completions", body).status_code == 200

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    return threads


@pytest.mark.browser
def test_a_busy_engine_is_drawn_and_accessible(page: Page, server: LiveServer) -> None:
    page.goto(f"{server.url}/#/engine")
    expect(page.get_by_role("img", name="Rows of the steps")).to_be_visible()
    for thread in requests(server):
        thread.join()
    expect(page.locator(".said")).to_contain_text(re.compile("decode rows?"))
    expect(page.get_by_role("img", name="KV blocks: ")).to_be_visible()
    expect(page.get_by_role("table", name="Latencies")).to_contain_text("all, P50")
    assert faults_of_looks(page, "engine") == []
    drawn = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v)"
    for kind in ("fold", "lanes", "map", "tree"):
        assert page.locator(f"canvas.{kind}").evaluate(drawn), kind


@pytest.mark.browser
def test_a_step_is_chosen_by_keyboard_and_marked_everywhere(page: Page, server: LiveServer) -> None:
    page.goto(f"{server.url}/#/engine")
    fold = page.get_by_role("img", name="Rows of the steps")
    expect(fold).to_be_visible()
    for thread in requests(server):
        thread.join()
    expect(page.locator(".said")).to_contain_text(re.compile("decode rows?"))
    fold.press("ArrowLeft")
    last = page.locator(".said").inner_text()
    assert last.startswith("Step ")
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    fold.press("ArrowLeft")
    expect(page.locator(".said")).not_to_have_text(last)
    page.get_by_role("button", name="Step forward").click()
    expect(page.locator(".said")).to_have_text(last)
    page.get_by_role("region", name="Sequences").locator("summary").click()
    number = last.split(":")[0].removeprefix("Step ").replace(",", "")
    expect(page.get_by_role("table", name=f"Sequences in step {number}")).to_contain_text("req_")
    fold.press("Escape")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


@pytest.mark.browser
def test_the_replicas_of_a_fleet_are_listed_and_followed(page: Page, server: LiveServer) -> None:
    about = server.get(ABOUT).json()
    fleet = about["models"][0]["fleet"]
    (own,) = fleet["replicas"]
    node = {**own, "number": 1, "node": "attic", "pid": None, "state": "silent", "requests": 3, "step_s": 0.0123}
    failed = {**own, "number": 2, "pid": None, "state": "failed", "error": "The process crashed.", "restarts": 5}
    fleet["replicas"] = [own, node]
    page.route(f"**{ABOUT}", lambda route: route.fulfill(json=about))
    page.goto(f"{server.url}/#/engine")
    table = page.get_by_role("table", name="Replicas")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(table.get_by_role("row", name="0 process")).to_contain_text("ready")
    expect(table.get_by_role("row", name="1 attic silent")).to_contain_text("12.3 ms")
    fleet["replicas"].append(failed)
    expect(table).to_contain_text("failed: The process crashed.")
    page.locator("[aria-label=Replicas]").scroll_into_view_if_needed()
    assert faults_of_looks(page, "replicas") == []
    page.get_by_role("link", name="Chat").first.click()
    fleet["replicas"] = [own]
    page.get_by_role("link", name="Engine").first.click()
    expect(page.get_by_role("img", name="Rows of the steps")).to_be_visible()
    expect(table).not_to_be_visible()


@pytest.mark.browser
def test_a_recording_is_saved_and_replayed(watch: tuple[Page, Watch], server: LiveServer, tmp_path: Path) -> None:
    page, _ = watch
    page.goto(f"{server.url}/#/engine")
    page.get_by_role("button", name="Record", exact=True).click()
    for thread in requests(server, 2):
        thread.join()
    expect(page.get_by_role("table", name="Latencies")).to_contain_text("all, P50")
    page.wait_for_timeout(300)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save the recording").click()
    file = tmp_path / "recorded.jsonl"
    saved.value.save_as(file)
    events: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
    assert events[0]["event"] == "hello"
    numbers = [number for event in events for number in event["data"].get("steps", {}).get("n", ())]
    assert numbers == sorted(set(numbers))
    page.locator("input[type=file]").set_input_files(file)
    expect(page.get_by_text("The recording has ended.")).not_to_have_class("fault")
    expect(page.locator(".said")).to_contain_text(f"Step {numbers[-1]:,}")
    page.locator("input[type=file]").set_input_files({"name": "a.jsonl", "mimeType": "text/plain", "buffer": b"{}"})
    expect(page.get_by_text("Line 1 is no event of a live stream.")).to_be_visible()
    page.get_by_role("button", name="Back to the server").click()
    expect(page.get_by_role("button", name="Record", exact=True)).to_be_visible()
    expect(page.get_by_text("Line 1 is no event of a live stream.")).to_have_count(0)  # the stream is there
    page.locator("input[type=file]").set_input_files({"name": "a.jsonl", "mimeType": "text/plain", "buffer": b"{}"})
    page.wait_for_timeout(1500)  # figures came since
    expect(page.get_by_text("Line 1 is no event of a live stream.")).to_have_class("fault")

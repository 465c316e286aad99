"""The chat in Chromium, over a real server with tiny models: what a user does, and what goes wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, FilePayload, Page, Request, Route, expect

from tests.server.live import LiveServer
from tests.web.browser import Watch, accessibility_faults, picture, watched
from tests.web.hostile import ATTACKS
from tests.web.looks import faults_of_looks
from tests.web.stage import called, chunk

pytestmark = pytest.mark.browser

SHORT: Final = {"max_tokens": 24}
CHATS: Final = "**/v1/chat/completions"


def say(page: Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_role("button", name="Send", exact=True).click()


def settle(page: Page, **fields: str) -> None:
    """Fills fields of the settings."""
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("details.group > summary").click()
    for name, value in fields.items():
        page.locator(f"#set-{name}").fill(value)
    page.get_by_role("button", name="Apply").click()


def answered(page: Page) -> None:
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.locator(".receipt").last).to_be_visible()


@pytest.fixture
def chat(page: Page) -> Page:
    """The page with answers of at most 24 tokens."""
    settle(page, max_tokens="24")
    return page


def bodies(page: Page) -> list[dict[str, Any]]:
    """The bodies of all chats that the page will ask for."""
    found: list[dict[str, Any]] = []

    def note(sent: Request) -> None:
        if sent.url.endswith("/completions"):
            found.append(json.loads(sent.post_data or ""))

    page.on("request", note)
    return found


def scripted(page: Page, *events: str, done: bool = True) -> None:
    """Lets the next chats be answered with these events."""
    body = "".join(events) + ("data: [DONE]\n\n" if done else "")
    page.route(CHATS, lambda route: route.fulfill(content_type="text/event-stream", body=body))


def test_an_answer_has_the_receipt_of_its_record(chat: Page, server: LiveServer) -> None:
    say(chat, "Hello")
    answered(chat)
    exported = json.loads(_export(chat))["conversations"][0]
    told = exported["messages"][-1]["record"]
    record = server.get(f"/v1/twofold/requests/{told['id']}").json()
    assert {name: record[name] for name in ("tokens", "prompts", "timeline")} == {
        name: told[name] for name in ("tokens", "prompts", "timeline")
    }
    facts = chat.locator(".facts")
    expect(facts).to_contain_text(f"{record['tokens']['prompt']} in → {record['tokens']['output']} out")
    prompt = record["prompts"][0]
    assert _seconds(facts.locator("dd.p").inner_text()) == pytest.approx(prompt["ttft_s"], rel=0.01)
    tpot = prompt["decode_s"] / (prompt["output_tokens"] - 1)
    assert _seconds(facts.locator("dd.d").inner_text()) == pytest.approx(tpot, rel=0.01)
    picture(chat, "chat")


def _seconds(text: str) -> float:
    found = re.match(r"([\d.]+) (µs|ms|s)", text)
    assert found, text
    return float(found[1]) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[found[2]]


def _export(page: Page) -> str:
    with page.expect_download() as download:
        page.locator(".head summary").click()
        page.locator(".head").get_by_role("button", name="Export").click()
    return Path(download.value.path()).read_text()


def test_branches_of_questions_and_answers(chat: Page) -> None:
    sent = bodies(chat)
    say(chat, "One")
    answered(chat)
    chat.get_by_role("button", name="Regenerate").click()
    expect(chat.get_by_text("2/2")).to_be_visible()
    answered(chat)
    say(chat, "Two")
    answered(chat)
    chat.get_by_role("button", name="Edit").first.click()
    chat.get_by_label("Edited message").fill("First")
    chat.locator(".edit").get_by_role("button", name="Send").click()
    answered(chat)
    expect(chat.locator(".ask")).to_have_count(1)
    assert [message["content"] for message in sent[-1]["messages"]] == ["First"]
    chat.locator(".ask").get_by_role("button", name="Previous branch").click()
    expect(chat.locator(".ask")).to_have_count(2)
    assert [message["role"] for message in sent[-2]["messages"]] == ["user", "assistant", "user"]
    chat.locator("body").press("]")
    expect(chat.locator(".ask").first).to_be_visible()


LOW: Final = """() => {
    const { scrollHeight, scrollTop, clientHeight } = document.querySelector(".scroll");
    return scrollHeight > 2 * clientHeight && scrollHeight - scrollTop - clientHeight < 2;
}"""


def test_the_end_of_an_answer_is_in_sight_until_the_user_scrolls_up(chat: Page) -> None:
    chat.set_viewport_size({"width": 1440, "height": 400})
    for text in ("One", "Two", "Three"):
        say(chat, text)
        answered(chat)
        chat.wait_for_function(LOW)
    settle(chat, max_tokens="300")
    say(chat, "Four")
    expect(chat.locator(".answer .text").last).not_to_be_empty()
    chat.locator(".scroll").hover()
    chat.mouse.wheel(0, -200)
    answered(chat)
    assert not chat.evaluate(LOW)


def test_the_list_of_chats_closes_on_small_screens(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    chats, side = page.get_by_role("button", name="Chats"), page.locator(".side")
    chats.click()
    expect(side).to_be_visible()
    page.keyboard.press("Escape")
    expect(side).to_be_hidden()
    chats.click()
    page.mouse.click(370, 300)
    expect(side).to_be_hidden()
    box = page.locator(".title").bounding_box()
    assert box is not None
    assert box["width"] > 120


def answering(reply: Any) -> Callable[[Route], None]:
    return lambda route: route.fulfill(json=reply)


def test_a_message_is_forecast_before_it_is_sent(page: Page, server: LiveServer) -> None:
    guess = page.locator(".guess")
    page.get_by_label("Message", exact=True).fill("How long will it take?")
    body = {"messages": [{"role": "user", "content": "How long will it take?"}]}
    told = server.post("/v1/twofold/estimate", body).json()
    expect(guess).to_contain_text(f"{told['prompt_tokens']} tokens")
    known = {**told, "ttft_s": 0.15, "tpot_s": 0.02, "e2e_s": 2.0, "error": 0.08, "error_of": "ttft", "ahead": 2}
    for reply, says in (
        ({**known, "ttft_s": None, "tpot_s": None, "e2e_s": None, "error": None}, "no times before the first answers"),
        (known, "2 before it · ≈ 150 ms to first token · ≈ 2 s for "),
        (known, " · ±8%"),
    ):
        page.unroute_all()
        page.route("**/v1/twofold/estimate", answering(reply))
        page.get_by_label("Message", exact=True).fill("")
        page.get_by_label("Message", exact=True).fill("How long will it take?")
        expect(guess).to_contain_text(says)


def test_stop_ends_the_answer_and_keeps_it(page: Page) -> None:
    say(page, "Hello")
    expect(page.locator(".answer .text")).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    text = page.locator(".answer .text")
    expect(text).not_to_be_empty()
    expect(page.locator(".answer")).to_contain_text("You stopped it.")
    begun, sent = text.inner_text(), bodies(page)
    settle(page, max_tokens="4")
    page.get_by_role("button", name="Continue").click()
    answered(page)
    assert sent[-1]["twofold"]["answer_token_ids"]
    assert text.inner_text().startswith(begun.rstrip())
    expect(page.locator(".answer")).to_contain_text("It ended at the maximum of tokens.")


def test_a_token_shows_alternatives_and_one_goes_on_from_there(chat: Page) -> None:
    sent = bodies(chat)
    say(chat, "Hello")
    answered(chat)
    chat.keyboard.press("Tab")
    chat.locator(".answer").get_by_role("button", name="Surprise").click()
    tokens = chat.get_by_role("group", name="Tokens of this answer")
    tokens.focus()
    for _ in range(3):
        tokens.press("ArrowRight")
    card = chat.get_by_role("group", name=re.compile("^Token "))
    expect(card).to_contain_text("in step")
    assert accessibility_faults(chat) == []
    card.locator("li button:enabled").first.click()
    expect(chat.get_by_text("2/2")).to_be_visible()
    answered(chat)
    assert len(sent[-1]["twofold"]["answer_token_ids"]) == 3
    assert sent[-1]["messages"] == sent[0]["messages"]


MARKDOWN: Final = (
    "1. One **bold** [is](http://is.com)is `x`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nlet 👪\n```\nend"
)
MARKED: Final = """() => {
    const names = ["t-a", "t-b", "t-c", "t-d", "t-e"].flatMap((name) => [...(CSS.highlights.get(name) ?? [])]);
    const text = (range) => range.startContainer.data.slice(range.startOffset, range.endOffset);
    const order = (a, b) => a.startContainer === b.startContainer ? a.startOffset - b.startOffset
        : a.startContainer.compareDocumentPosition(b.startContainer) & 4 ? -1 : 1;
    return names.sort(order).map(text);
}"""


def tokens_of(text: str, size: int) -> str:
    """Chunks of tokens of ``size`` bytes each: their text comes with the last byte of its last character."""
    data, held, chunks = text.encode(), b"", ""
    for at in range(0, len(data), size):
        part = data[at : at + size]
        held += part
        try:
            said, held = held.decode(), b""
        except UnicodeDecodeError:
            said = ""
        token = {"token": part.decode(errors="replace"), "bytes": list(part), "logprob": -at / 9, "top_logprobs": []}
        choice = {"index": 0, "delta": {"content": said}, "logprobs": {"content": [token]}, "finish_reason": None}
        chunks += f"data: {json.dumps({'choices': [choice]})}\n\n"
    return chunks + chunk({}, "stop")


def test_tokens_are_coloured_where_markdown_shows_them(page: Page) -> None:
    scripted(page, tokens_of(MARKDOWN, 3))
    say(page, "Hello")
    text, surprise = page.locator(".answer .text"), page.locator(".answer").get_by_role("button", name="Surprise")
    surprise.click()
    expect(text.locator("strong, a, td, pre, li")).to_have_count(6)
    marked = page.evaluate(MARKED)
    assert "".join(marked) == "One bold isis xab12let 👪end"
    assert marked[:4] == ["One", " ", "bol", "d"]
    link = text.locator("strong").bounding_box()
    assert link is not None
    page.mouse.click(link["x"] + link["width"] - 3, link["y"] + 8)
    expect(page.get_by_role("group", name="Token d**")).to_be_visible()
    page.mouse.click(link["x"] + link["width"] - 3, link["y"] + 8)
    expect(page.locator(".pop")).to_have_count(0)
    page.locator(".answer").get_by_role("button", name="Plain").click()
    assert page.evaluate(MARKED) == []
    surprise.click()
    page.keyboard.press("Control+k")
    assert page.evaluate(MARKED) == []


def test_a_browser_without_highlights_shows_the_tokens_as_they_are(browser: Browser, server: LiveServer) -> None:
    with watched(browser, server.url) as (page, _):  # a tab of its own: a script that is added stays in its tab
        page.add_init_script("delete CSS.highlights")
        page.goto(server.url)
        scripted(page, tokens_of("**a**", 1))
        say(page, "Hello")
        page.locator(".answer").get_by_role("button", name="Surprise").click()
        expect(page.locator(".tokens .t")).to_have_text(["*", "*", "a", "*", "*"])
        page.locator(".tokens .t").nth(2).click()
        expect(page.get_by_role("group", name="Token a")).to_be_visible()


def test_several_completions_are_branches_with_receipts(page: Page) -> None:
    sent = bodies(page)
    settle(page, max_tokens="8", n="3", temperature="2")
    say(page, "Hello")
    answered(page)
    assert sent[-1]["n"] == 3
    exported = json.loads(_export(page))["conversations"][0]["messages"][1:]
    assert [message["choice"] for message in exported] == [0, 1, 2]
    assert len({message["content"] for message in exported}) > 1
    record = exported[0]["record"]
    for index, message in enumerate(exported):
        if index:
            page.get_by_role("button", name="Next branch").click()
        expect(page.get_by_text(f"{index + 1}/3")).to_be_visible()
        times = record["timeline"]["token_ms"][index]
        assert [token[2] for token in message["tokens"]] == times
        facts = page.locator(".facts")
        assert _seconds(facts.locator("dd.p").inner_text()) == pytest.approx(times[0] / 1000, rel=0.01)
        expect(facts).to_contain_text(f"{record['tokens']['prompt']} in → {len(times)} out")
        expect(facts).to_contain_text("all 3 answers")


def test_a_token_marks_its_step_in_the_engine_and_a_step_its_tokens(chat: Page) -> None:
    say(chat, "Hello")
    answered(chat)
    tokens = json.loads(_export(chat))["conversations"][0]["messages"][-1]["tokens"]
    chat.locator(".answer").get_by_role("button", name="Surprise").click()
    group = chat.get_by_role("group", name="Tokens of this answer")
    group.press("ArrowRight")
    group.press("ArrowRight")
    chat.locator(".pop .why").get_by_role("button", name="step").click()  # opens the engine
    engine = chat.get_by_role("complementary", name="Engine")
    said, fold = engine.locator(".said"), engine.get_by_role("img", name="Rows of the steps")
    expect(said).to_contain_text(f"Step {tokens[1][5]:,}:")
    group.press("ArrowRight")
    expect(said).to_contain_text(f"Step {tokens[2][5]:,}:")
    assert accessibility_faults(chat) == []
    picture(chat, "beside")
    group.press("Escape")
    fold.press("ArrowLeft")
    script = MARKED.replace('"t-a"', '"t-step"').replace(', "t-b", "t-c", "t-d", "t-e"', "")
    for _ in range(40):  # the words follow a choice within half a second
        number = int(said.inner_text().split(":")[0].removeprefix("Step ").replace(",", ""))
        made = "".join(token[6] if len(token) > 6 else token[0] for token in tokens if token[5] == number)
        marked = "".join(chat.evaluate(script))
        if made and marked.split() == made.split():
            break
        chat.wait_for_timeout(50)
    assert made, f"step {number} made no token of this answer"
    assert marked.split() == made.split()
    chat.locator("body").press("e")
    expect(engine).to_have_count(0)


def test_an_answer_goes_on_while_another_view_is_shown(page: Page) -> None:
    held: list[Route] = []
    page.route(CHATS, lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks handlers
    settle(page, max_tokens="4")
    say(page, "Hello")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.get_by_role("link", name="Explore").first.click()
    expect(page.locator(".ask")).to_have_count(0)
    held.pop().continue_()
    page.get_by_role("link", name="Chat", exact=True).first.click()
    expect(page.locator(".ask")).to_contain_text("Hello")
    answered(page)


def test_settings_are_chips_and_fields_of_the_body(page: Page) -> None:
    sent = bodies(page)
    settle(page, temperature="9")
    expect(page.locator("#set-temperature:invalid")).to_be_focused()  # the browser says why
    page.locator("#set-temperature").fill("0.5")
    page.locator("#set-max_tokens").fill("4")
    page.locator("#set-system").fill("Be short.")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("button", name="temperature 0.5")).to_be_visible()
    page.locator(".bar select").select_option("other")
    say(page, "Hello")
    answered(page)
    body = sent[-1]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("other", 0.5, 4)
    assert body["messages"][0] == {"role": "system", "content": "Be short."}
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="as curl").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    command = page.evaluate("navigator.clipboard.readText()")
    assert '"temperature": 0.5' in command
    assert "stream" not in command


def test_files_go_as_text_and_others_are_refused(chat: Page) -> None:
    sent = bodies(chat)
    files: list[FilePayload] = [
        {"name": "a.txt", "mimeType": "text/plain", "buffer": b"alpha"},
        {"name": "b.bin", "mimeType": "application/octet-stream", "buffer": b"\xff\xfe\x00"},
    ]
    chat.locator(".composer input[type=file]").set_input_files(files)
    expect(chat.locator(".composer").get_by_role("alert")).to_have_text("b.bin is not text.")
    expect(chat.get_by_role("button", name="Remove a.txt")).to_be_visible()
    say(chat, "What is it?")
    answered(chat)
    assert sent[-1]["messages"][-1]["content"].startswith("What is it?\n\na.txt:\n```\nalpha\n```")


def test_conversations_are_kept_searched_renamed_imported_and_deleted(chat: Page) -> None:
    say(chat, "An apple")
    answered(chat)
    chat.get_by_label("Name of the conversation").fill("Fruit")
    chat.get_by_label("Name of the conversation").press("Enter")
    text = _export(chat)
    chat.reload()
    side = chat.get_by_role("complementary", name="Conversations")
    side.get_by_label("Search conversations").fill("nothing like it")
    expect(side.get_by_role("button", name="Fruit")).to_have_count(0)
    side.get_by_label("Search conversations").fill("apple")
    side.get_by_role("button", name="Fruit").click()
    expect(chat.locator(".ask")).to_contain_text("An apple")
    expect(chat.locator(".receipt")).to_be_visible()
    chat.on("dialog", lambda dialog: dialog.accept())
    side.get_by_role("button", name="Delete all").click()
    expect(side.get_by_role("button", name="Fruit")).to_have_count(0)
    side.locator("input[type=file]").set_input_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": b'{"a": 1}'}
    )
    expect(side.get_by_role("alert")).to_contain_text("not an export of this page")
    side.locator("input[type=file]").set_input_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": text.encode()}
    )
    side.get_by_label("Search conversations").fill("")
    expect(side.get_by_role("button", name="Fruit")).to_be_visible()


def test_a_conversation_that_is_not_kept_is_gone(chat: Page) -> None:
    chat.get_by_label("Message", exact=True).fill("A secret")
    chat.locator(".head summary").click()
    chat.locator(".head").get_by_label("Save chat").uncheck()
    say(chat, "A secret")
    answered(chat)
    chat.reload()
    expect(chat.get_by_role("button", name="A secret")).to_have_count(0)


def test_what_is_typed_survives_a_reload(page: Page) -> None:
    page.get_by_label("Message", exact=True).fill("Half a sentence")
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_have_value("Half a sentence")


def test_json_is_a_tree_and_thinking_is_folded(page: Page) -> None:
    settle(page, max_tokens="4")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.locator("#set-form").select_option("JSON")
    page.get_by_role("button", name="Apply").click()
    answer = json.dumps({"name": "Ulm", "sizes": [1, {"a": None}]})
    scripted(page, chunk({"reasoning_content": "hm"}), chunk({"content": answer}), chunk({}, "stop"))
    say(page, "As JSON")
    expect(page.locator(".json")).to_contain_text("name: ")
    expect(page.get_by_text("✓ valid JSON")).to_be_visible()
    thought = page.locator(".thought")
    expect(thought.get_by_text("hm")).to_be_hidden()
    thought.get_by_text("Thinking").click()
    expect(thought.get_by_text("hm")).to_be_visible()
    assert accessibility_faults(page) == []


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_says_when_to_try_again(watch: tuple[Page, Watch], server: LiveServer, status: int) -> None:
    page, seen = watch
    seen.expect(str(status))
    page.goto(server.url)
    error = json.dumps({"error": {"message": "Too many requests.", "code": "busy"}})
    headers = {"retry-after": "60", "content-type": "application/json"}
    page.route(CHATS, lambda route: route.fulfill(status=status, headers=headers, body=error))
    say(page, "Hello")
    fault = page.locator(".answer .fault")
    expect(fault).to_contain_text("Too many requests.")
    expect(fault.get_by_role("button", name=re.compile(r"Try again in \d+ s"))).to_be_disabled()
    expect(page.locator(".ask")).to_contain_text("Hello")
    assert accessibility_faults(page) == []
    picture(page, f"refused_{status}")


def test_a_cut_stream_can_go_on(page: Page) -> None:
    sent = bodies(page)
    scripted(page, chunk({"content": "Half of"}), done=False)
    say(page, "Hello")
    expect(page.locator(".answer .fault")).to_contain_text("cut before the answer was complete")
    page.unroute(CHATS)
    scripted(page, chunk({"content": " it."}), chunk({}, "stop"))
    page.get_by_role("button", name="Continue").click()
    expect(page.locator(".answer .text")).to_have_text("Half of it.")
    assert sent[-1]["messages"][-1] == {"role": "assistant", "content": "Half of"}


def test_a_server_that_is_gone_loses_nothing(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect("ERR_FAILED")
    page.goto(server.url)
    page.route(CHATS, lambda route: route.abort())
    say(page, "Hello")
    expect(page.locator(".answer .fault")).to_contain_text("does not answer")
    page.unroute(CHATS)
    settle(page, max_tokens="4")
    page.get_by_role("button", name="Try again").click()
    answered(page)


def test_an_error_of_the_server_is_said_where_it_happened(watch: tuple[Page, Watch], server: LiveServer) -> None:
    page, seen = watch
    seen.expect("400")
    page.goto(server.url)
    settle(page, other='{"temprature": 1}')
    say(page, "Hello")
    expect(page.locator(".answer .fault")).to_contain_text("temprature")


def test_a_wrong_key_is_asked_for_again(browser: Browser, keyed: LiveServer) -> None:
    with watched(browser, keyed.url) as (page, seen):
        seen.expect("401")
        page.goto(keyed.url)
        dialog = page.get_by_role("dialog", name="API key")
        dialog.get_by_role("button", name="Cancel").click()
        settle(page, max_tokens="24")
        say(page, "Hello")
        expect(dialog.get_by_role("alert")).to_be_visible()
        dialog.get_by_label("Key", exact=True).fill("secret")
        dialog.get_by_role("button", name="Apply").click()
        page.get_by_role("button", name="Try again").click()
        answered(page)


def test_hostile_text_is_text_wherever_it_stands(page: Page) -> None:
    """As an answer, as the name and arguments of a call, in thinking, and in an error."""
    for attack in ATTACKS[::6]:
        events = [chunk({"reasoning_content": attack}), chunk({"content": attack}), called(attack[:60], attack)]
        page.unroute_all()
        scripted(page, *events)
        with page.expect_response(CHATS):  # the answer before has such a button, too
            say(page, attack)
        expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()
        expect(page.get_by_role("button", name="Send the result").last).to_be_visible()
    page.unroute_all()
    error = f"data: {json.dumps({'error': {'message': ATTACKS[1]}})}\n\n"
    scripted(page, error)
    say(page, "Hello")
    expect(page.locator(".answer .fault").last).to_contain_text("<img src=x")
    assert page.locator("#view").locator("script, iframe, img, object, embed, link, style, form[action]").count() == 0


def test_an_answer_and_the_settings_are_accessible(chat: Page) -> None:
    say(chat, "Hello")
    answered(chat)
    chat.locator(".answer").get_by_role("button", name="Time").click()
    found = faults_of_looks(chat, "answered")
    chat.get_by_role("button", name="Settings", exact=True).click()
    assert found + faults_of_looks(chat, "settings") == []


def test_a_screen_reader_hears_one_message_an_answer(chat: Page) -> None:
    chat.evaluate("""() => {
        window.heard = [];
        const status = document.querySelector("[role=status]");
        new MutationObserver(() => heard.push(status.textContent)).observe(status, { childList: true });
    }""")
    say(chat, "Hello")
    answered(chat)
    heard = chat.evaluate("heard")
    assert len(heard) == 1
    assert heard[0].startswith("The answer is complete")


def test_keys_are_listed_and_work(chat: Page) -> None:
    say(chat, "Hello")
    answered(chat)
    chat.locator(".answer .text").click()
    chat.keyboard.press("t")
    expect(chat.get_by_role("button", name="Time")).to_have_attribute("aria-pressed", "true")
    chat.get_by_label("Message", exact=True).press("Control+/")
    expect(chat.get_by_role("dialog", name="Keys")).to_be_visible()
    chat.keyboard.press("Escape")
    chat.keyboard.press("Control+k")
    expect(chat.locator(".ask")).to_have_count(0)
    expect(chat.get_by_label("Message", exact=True)).to_be_focused()

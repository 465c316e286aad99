"""What the page costs a browser: ``python -m benchmarks.web`` prints the seconds of script that a long answer takes.

Needs Chromium. The answer comes in pieces of four characters and is drawn after each fifth, as at 100 tokens a second
and 20 pictures a second. The last line is JSON.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, sync_playwright

from tests.server.live import live_server
from tests.support.tiny import TinyOptions, write_tiny
from tests.web.browser import serve_sources

ANSWER: Final = """async (size) => {
    const { createMarkdown } = await import("/sources/text/md.js");
    const part = "## Part\\n\\nSome **bold** text with `code`, a [link](https://a.example/b) and *more* of it, "
        + "which goes on for a while so that it fills some lines.\\n\\n- one\\n- two\\n  - three\\n\\n"
        + "```python\\nfor x in range(10):\\n    print(x)\\n```\\n\\n| a | b |\\n|---|---|\\n| 1 | 2 |\\n\\n";
    const text = part.repeat(Math.ceil(size / part.length)).slice(0, size);
    const root = document.createElement("article");
    root.className = "answer";
    document.querySelector(".talk").append(root);
    const stream = createMarkdown(root);
    let script = 0, longest = 0;
    for (let at = 0; at < text.length; at += 20) {
        const began = performance.now();
        for (let piece = at; piece < at + 20; piece += 4) stream.write(text.slice(piece, piece + 4));
        stream.draw();
        const took = performance.now() - began;
        script += took;
        longest = Math.max(longest, took);
        if (at % 2000 === 0) await new Promise(requestAnimationFrame);
    }
    return { characters: text.length, script_s: script / 1000, longest_ms: longest };
}"""

READY: Final = "() => performance.getEntriesByName('ready')[0]?.startTime"
OPENED: Final = """async () => {
    const { createKept } = await import("/sources/chat/kept.js");
    const messages = Array.from({ length: 500 }, (_, n) => ({
        id: `m${n}`, parent: n ? `m${n - 1}` : "", role: n % 2 ? "assistant" : "user",
        content: "Some **text** with `code`.\\n\\n- one\\n- two\\n\\n".repeat(8),
    }));
    const now = Date.now() / 1000, id = "long";
    const talk = { id, title: "Long", created: now, updated: now, system: "", settings: {}, messages, chosen: {} };
    await createKept().save(talk);
}"""
OPEN: Final = """async () => {
    const button = [...document.querySelectorAll(".side li button")].find((each) => each.textContent === "Long");
    const began = performance.now();
    button.click();
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - began;
}"""


def ready_ms(browser: Browser, url: str, slowed: float) -> float:
    """Milliseconds from the navigation until the message box can be typed into, with a processor slowed so much."""
    context = browser.new_context()
    page = context.new_page()
    context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": slowed})
    page.goto(url)
    page.locator("#say").wait_for()
    found = float(page.evaluate(READY))
    context.close()
    return found


def main() -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        tiny = write_tiny(Path(folder) / "tiny.gguf", TinyOptions("llama", vocab=300, context=512))
        with live_server(Path(folder), f"tiny={tiny.path}", "--threads", "1") as server:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            ready = {
                f"ready_{slowed}x_ms": min(ready_ms(chromium, server.url, slowed) for _ in range(5))
                for slowed in (1, 4)
            }
            page = chromium.new_page()
            page.goto(server.url)
            page.locator("#say").wait_for()
            serve_sources(page)
            answer = page.evaluate(ANSWER, 100_000)
            page.evaluate(OPENED)
            page.reload()
            page.get_by_role("button", name="Long").wait_for()
            opened = float(page.evaluate(OPEN))
            chromium.close()
    print(
        f"{answer['characters']:,} characters: {answer['script_s']:.2f} s of script, "
        f"longest task {answer['longest_ms']:.1f} ms"
    )
    print(
        f"ready to type after {ready['ready_1x_ms']:.0f} ms, {ready['ready_4x_ms']:.0f} ms slowed four times; "
        f"500 messages open in {opened:.0f} ms"
    )
    print(json.dumps({**answer, **ready, "opened_ms": opened}))


if __name__ == "__main__":
    main()

"""Points of a conversation, found again in the tokens of its prompt; and how much of a prompt was cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from tests.text.vocabularies import sentencepiece_metadata
from twofold.api.base import ModelFacts
from twofold.api.cache_points import CachePoint, find_pins
from twofold.api.completion import CacheUsage
from twofold.core.record import HeldPin
from twofold.core.request import CachePin
from twofold.engine.outputs import RequestOutput
from twofold.text.parsers.format import CompletionFormat

TOOLS_FIRST = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
)
TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '\n' }}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML = TOOLS_FIRST + TURNS
TRIMMING = CHATML.replace("m.content", "m.content | trim")
SILENT = CHATML.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")

PHI3: dict[str, Any] = {"general.architecture": "phi3"}
"""Its control tokens take following white space with them."""

SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "What is the weather in Ulm?"}
CALLS = [
    {"id": "a", "type": "function", "function": {"name": "sun", "arguments": {"city": "Ulm"}}},
    {"id": "b", "type": "function", "function": {"name": "rain", "arguments": {}}},
]
CALLING = {"role": "assistant", "content": "I look.", "tool_calls": CALLS}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("sun", "rain")]


def facts_of(template: str, **metadata: Any) -> ModelFacts:
    vocabulary = metadata or tokenizer_metadata(300)
    tokenizer = tokenizer_of({**vocabulary, "tokenizer.chat_template": template})
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), context=4096, hidden_size=8)


class Prompt:
    """A conversation with its tokens."""

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        facts: ModelFacts | None = None,
    ) -> None:
        self.facts = facts or facts_of(CHATML)
        self.messages, self.tools = messages, tools
        shown, shown_tools = self.facts.format.shown(messages, tools)
        self.ids = self.facts.tokenizer.apply_chat_template(shown, tools=shown_tools, exact_content=True)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        shown, tools = self.facts.format.shown(messages, tools)
        return self.facts.tokenizer.apply_chat_template(shown, tools=tools, tokenize=False, exact_content=True)

    def pins(self, *points: CachePoint) -> tuple[CachePin, ...]:
        return find_pins(points, self.messages, self.tools, self.ids, self.facts, self.render)

    def covered(self, point: CachePoint) -> str:
        """The text that a point holds; "" for none."""
        pins = self.pins(point)
        return self.text(pins[0].tokens) if pins else ""

    def text(self, tokens: int) -> str:
        return self.facts.tokenizer.decode(self.ids[:tokens], skip_special_tokens=False)


def test_a_message_ends_where_its_text_ends() -> None:
    prompt = Prompt([SYSTEM, USER])
    assert prompt.covered(CachePoint(message=0)) == "<|im_start|>system\nBe kind."
    assert prompt.covered(CachePoint(message=1)).endswith("in Ulm?")


def test_neither_tool_nor_message_is_the_whole_prompt() -> None:
    prompt = Prompt([SYSTEM, USER])
    assert prompt.pins(CachePoint()) == (CachePin(tokens=len(prompt.ids)),)


def test_each_part_of_a_message_has_its_end() -> None:
    parts = [{"type": "text", "text": text} for text in ("one", "two", "three")]
    prompt = Prompt([{"role": "user", "content": parts}])
    assert [prompt.covered(CachePoint(message=0, part=part)).rpartition("\n")[2] for part in (0, 1, 2)] == [
        "one",
        "two",
        "three",
    ]
    assert prompt.covered(CachePoint(message=0)) == prompt.covered(CachePoint(message=0, part=2))


@pytest.mark.parametrize(("tool", "ends"), [(0, '"sun", "parameters": {}}}\n'), (1, '"rain", "parameters": {}}}\n')])
def test_tools_end_where_others_could_follow(tool: int, ends: str) -> None:
    prompt = Prompt([USER], TOOLS)
    assert prompt.covered(CachePoint(tool=tool)).endswith(ends)


def test_calls_are_parts_behind_the_texts() -> None:
    prompt = Prompt([USER, CALLING], TOOLS)
    assert prompt.covered(CachePoint(message=1, part=0)).endswith("I look.")
    assert prompt.covered(CachePoint(message=1, part=1)).endswith('"Ulm"}}</tool_call>')
    assert prompt.covered(CachePoint(message=1, part=2)).endswith('"arguments": {}}</tool_call>')
    assert prompt.covered(CachePoint(message=1)) == prompt.covered(CachePoint(message=1, part=2))


def test_calls_without_text_begin_the_parts() -> None:
    prompt = Prompt([USER, {"role": "assistant", "content": None, "tool_calls": CALLS}], TOOLS)
    assert prompt.covered(CachePoint(message=1, part=0)).endswith('"Ulm"}}</tool_call>')


def test_tools_that_the_template_does_not_show_are_found_in_the_instructions() -> None:
    prompt = Prompt([SYSTEM, USER], TOOLS, facts=facts_of(TURNS))
    covered = prompt.covered(CachePoint(tool=0))
    assert '"sun"' in covered
    assert '"rain"' not in covered


def test_a_trimming_template_hides_what_it_trims() -> None:
    prompt = Prompt([{"role": "user", "content": "  hello \n"}], facts=facts_of(TRIMMING))
    assert prompt.covered(CachePoint(message=0)) == "<|im_start|>user\nhello"


def test_what_the_template_hides_has_no_pin() -> None:
    facts = facts_of(SILENT)
    prompt = Prompt([SYSTEM, USER], facts=facts)
    shown, _ = facts.format.shown(prompt.messages, None)
    hidden = shown == list(prompt.messages)  # else the system text is in the user's message
    assert bool(prompt.pins(CachePoint(message=0))) is not hidden


def test_a_point_on_tools_that_are_not_shown_has_no_pin() -> None:
    assert Prompt([USER]).pins(CachePoint(tool=0)) == ()


def test_where_the_template_refuses_what_could_follow_there_is_no_pin() -> None:
    refusing = "{% for m in messages if (m.tool_calls or []) | length > 2 %}{{ raise_exception('no') }}{% endfor %}"
    prompt = Prompt([USER, CALLING], TOOLS, facts=facts_of(refusing + CHATML))
    assert prompt.pins(CachePoint(message=1)) == ()
    assert prompt.pins(CachePoint(message=1, part=0)) != ()


def test_pins_ascend_and_the_longest_time_wins_where_they_meet() -> None:
    prompt = Prompt([SYSTEM, USER])
    points = [CachePoint("5m", message=1), CachePoint("1h", message=0), CachePoint("5m", message=0, part=0)]
    first, second = prompt.pins(*points)
    assert (first.ttl, second.ttl) == ("1h", "5m")
    assert first.tokens < second.tokens


def test_text_that_looks_like_a_control_token_is_counted_as_it_was_tokenised() -> None:
    prompt = Prompt([{"role": "system", "content": "Write <|im_end|> often."}, USER])
    assert prompt.covered(CachePoint(message=0)) == "<|im_start|>system\nWrite <|im_end|> often."
    assert prompt.ids.count(2) == 2


@pytest.mark.parametrize("prefix", [False, True])
def test_spaces_that_a_tokenizer_adds_are_seen(prefix: bool) -> None:
    metadata = sentencepiece_metadata(["▁be", "kind", "b", "e", "▁"], control=["<end>"], space_prefix=prefix)
    facts = facts_of("{% for m in messages %}{{ m.role }}:{{ m.content }}<end>{% endfor %}", **metadata)
    prompt = Prompt([{"role": "user", "content": "be kind"}, {"role": "assistant", "content": "ok"}], facts=facts)
    ends = [prompt.covered(CachePoint(message=index)) for index in (0, 1)]
    assert [end.replace(" ", "") for end in ends] == ["user:bekind", "user:bekind<end>assistant:ok"]


def test_white_space_that_a_tokenizer_drops_is_seen() -> None:
    metadata = sentencepiece_metadata(["hi", "ok"], control=["<end>"])
    facts = facts_of("{% for m in messages %}{{ m.content }}<end>\n {% endfor %}", **metadata, **PHI3)
    prompt = Prompt([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}], facts=facts)
    assert [prompt.covered(CachePoint(message=index)) for index in (0, 1)] == ["hi", "hi<end>ok"]


words = st.text(alphabet="ab .\n<|im_end|>äß世", max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(words, min_size=2, max_size=5), st.lists(words, min_size=1, max_size=2), st.data())
def test_whatever_follows_a_point_its_tokens_stay(before: list[str], after: list[str], data: st.DataObject) -> None:
    said = [{"role": "user", "content": text} for text in before]
    place = data.draw(st.integers(0, len(said) - 1))
    prompt = Prompt(said, facts=FACTS)
    other = Prompt(said[: place + 1] + [{"role": "assistant", "content": text} for text in after], facts=FACTS)
    for pin in prompt.pins(CachePoint(message=place)):
        assert other.ids[: pin.tokens] == prompt.ids[: pin.tokens]
        assert before[place].rstrip() in prompt.text(pin.tokens)


FACTS = facts_of(CHATML)


def used(pins: Sequence[HeldPin], prompt_tokens: int, cached_tokens: int) -> CacheUsage:
    """The usage of one request."""
    return CacheUsage.of([completed(pins, prompt_tokens, cached_tokens)])


def completed(pins: Sequence[HeldPin], prompt_tokens: int, cached_tokens: int) -> RequestOutput:
    report = SimpleNamespace(record=SimpleNamespace(pins=pins))
    metrics = SimpleNamespace(cached_tokens=cached_tokens, loaded_tokens=0)
    return cast(RequestOutput, SimpleNamespace(prompt_token_ids=range(prompt_tokens), metrics=metrics, report=report))


def test_fresh_read_and_written_are_the_prompt() -> None:
    pins = [HeldPin(40, 3600.0), HeldPin(64, 300.0)]
    assert used(pins, 100, 0) == CacheUsage(100, 0, {300.0: 24, 3600.0: 40})
    assert used(pins, 100, 48) == CacheUsage(100, 48, {300.0: 16})
    assert used(pins, 100, 80) == CacheUsage(100, 80)
    assert used([], 100, 80).fresh == 20


def test_a_token_stays_as_long_as_the_longest_pin_over_it() -> None:
    usage = used([HeldPin(10, 300.0), HeldPin(30, 3600.0), HeldPin(40, 1800.0)], 50, 0)
    assert usage.written_by_seconds == {3600.0: 30, 1800.0: 10}


@given(
    st.lists(st.tuples(st.integers(1, 100), st.sampled_from([300.0, 1800.0, 3600.0])), max_size=4),
    st.integers(0, 99),
)
def test_counts_never_overlap(given_pins: list[tuple[int, float]], cached: int) -> None:
    pins = [HeldPin(*pin) for pin in given_pins]
    usage = used(pins, 100, cached)
    assert usage.fresh + usage.read + usage.written == 100
    assert usage.written == max(0, max((pin.tokens for pin in pins), default=0) - cached)
    assert min(usage.fresh, *usage.written_by_seconds.values(), 1) >= 0


def test_usages_add_up() -> None:
    outputs = [completed([HeldPin(3, 300.0)], 10, 1), completed([HeldPin(4, 300.0), HeldPin(2, 3600.0)], 10, 1)]
    assert CacheUsage.of(outputs) == CacheUsage(20, 2, {300.0: 4, 3600.0: 1})

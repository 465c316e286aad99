"""The thinking section in the engine: its budget is kept, and a form applies only to the text after it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import VOCAB, MakeLLM
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams, StructuredOutputsParams, ThinkingParams
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.engine.grammar.form import OutputGrammar
from twofold.engine.grammar.thinking import ThinkingConstraint, completion_constraint
from twofold.engine.llm import LLM
from twofold.engine.prompts import TokensPrompt
from twofold.text.tokenizers.tokenizer import Tokenizer

PROMPT: TokensPrompt = {"prompt_token_ids": [40, 41, 42]}
START, END = "<t>", "</t>"
FORM = StructuredOutputsParams(regex="[ab]{2,4}x")


@pytest.fixture(scope="module")
def grammar(tokenizer: Tokenizer) -> Iterator[OutputGrammar]:
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_ids, VOCAB, seconds=5)
    yield compiler.submit(FORM).result()
    compiler.close()


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def thinking(tokenizer: Tokenizer, *, budget: int | None = None, opened: bool = True) -> ThinkingParams:
    return ThinkingParams(start=() if opened else ids(tokenizer, START), end=ids(tokenizer, END), budget=budget)


def constraint(
    tokenizer: Tokenizer, grammar: OutputGrammar | None, *, room: int = 40, **options: Any
) -> ThinkingConstraint:
    return ThinkingConstraint(
        thinking(tokenizer, **options),
        grammar,
        max_tokens=room,
        spell=tokenizer.token_bytes,
        end_ids=tokenizer.eos_ids,
        vocab_size=VOCAB,
    )


def allowed(rules: ThinkingConstraint) -> set[int]:
    mask = rules.masks()[0]
    if mask is None:
        return set(range(VOCAB))
    return {token for token in range(VOCAB) if mask[token >> 5] >> (token & 31) & 1}


def say(rules: ThinkingConstraint, tokens: list[int]) -> None:
    for token in tokens:
        assert token in allowed(rules)
        rules.advance([token])


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_a_budget_closes_the_section(make_llm: MakeLLM, tokenizer: Tokenizer, budget: int) -> None:
    wanted = SamplingParams(thinking=thinking(tokenizer, budget=budget), max_tokens=30, seed=3, ignore_eos=True)
    end = ids(tokenizer, END)
    for temperature in (0.0, 1.0):
        output = make_llm().generate(PROMPT, SamplingParams(**{**_fields(wanted), "temperature": temperature}))[0]
        tokens = list(output.outputs[0].token_ids)
        assert tokens[budget : budget + len(end)] == end
        assert len(tokens) == 30


def _fields(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in ("thinking", "max_tokens", "seed", "ignore_eos")}


def test_completions_without_a_section_are_unchanged(make_llm: MakeLLM, tokenizer: Tokenizer) -> None:
    """The start mark is never sampled: completions are the same bit for bit, greedy and sampled."""
    for temperature in (0.0, 1.0):
        plain = SamplingParams(temperature=temperature, seed=1, max_tokens=20, logprobs=2)
        limited = SamplingParams(
            temperature=temperature,
            seed=1,
            max_tokens=20,
            logprobs=2,
            thinking=thinking(tokenizer, budget=0, opened=False),
        )
        first, second = make_llm().generate([PROMPT] * 2, [plain, limited])
        assert first.outputs == second.outputs


def test_a_form_follows_the_section_beside_other_requests(make_llm: MakeLLM, tokenizer: Tokenizer) -> None:
    """Random logits, and few blocks so that sequences are preempted: the same completions as alone."""
    wanted = [
        SamplingParams(thinking=thinking(tokenizer, budget=i % 9), structured_outputs=FORM, max_tokens=16 + i, seed=i)
        for i in range(16)
    ]
    outputs = make_llm(seqs=6, rows=16, blocks=24).generate([PROMPT] * 16, wanted)
    for output in outputs:
        thought, _, answer = output.outputs[0].text.partition(END)
        assert re.fullmatch("[ab]{2,4}x", answer), output.outputs[0].text
        assert tokenizer.eos_ids.isdisjoint(ids(tokenizer, thought))
    alone = [make_llm().generate(PROMPT, params)[0] for params in wanted]
    assert [output.outputs for output in alone] == [output.outputs for output in outputs]


def test_the_form_fits_even_where_thinking_would_take_all(make_llm: MakeLLM, tokenizer: Tokenizer) -> None:
    for limit in range(9, 15):
        wanted = SamplingParams(
            thinking=thinking(tokenizer), structured_outputs=FORM, max_tokens=limit, seed=limit, ignore_eos=False
        )
        output = make_llm().generate(PROMPT, wanted)[0].outputs[0]
        assert re.fullmatch("[ab]{2,4}x", output.text.partition(END)[2])
        assert output.finish_reason == "length"


def test_a_completion_without_a_section_has_the_form_from_its_start(
    tokenizer: Tokenizer, grammar: OutputGrammar
) -> None:
    rules = constraint(tokenizer, grammar, opened=False)
    assert ids(tokenizer, "<")[0] in allowed(rules)
    say(rules, ids(tokenizer, "a"))
    assert ids(tokenizer, "<")[0] not in allowed(rules)
    say(rules, ids(tokenizer, "bx"))
    assert rules.finished
    assert not rules.shortened


def test_a_mark_that_was_begun_is_completed(tokenizer: Tokenizer, grammar: OutputGrammar) -> None:
    rules = constraint(tokenizer, grammar, opened=False)
    start = ids(tokenizer, START)
    rules.advance([start[0]])
    assert allowed(rules) == {start[1]}
    say(rules, start[1:])
    assert tokenizer.eos_id not in allowed(rules)
    say(rules, ids(tokenizer, "x <t> y" + END + "abx"))
    assert rules.finished


def test_marks_are_found_however_they_are_cut(tokenizer: Tokenizer) -> None:
    """The last token of the mark may hold what follows it."""
    rules = constraint(tokenizer, None, budget=3)
    say(rules, ids(tokenizer, "a"))
    assert rules.masks()[0] is None
    for character in END:
        say(rules, ids(tokenizer, character)[:1])
        if rules.masks()[0] is not None:
            break
    say(rules, [token for token in ids(tokenizer, END) if rules.masks()[0] is not None])
    assert rules.masks()[0] is None


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("formed", [True, False])
def test_any_walk_keeps_the_laws(tokenizer: Tokenizer, grammar: OutputGrammar, opened: bool, formed: bool) -> None:
    """Random allowed tokens, often those of the marks: the budget is kept, and so is the form, if there is one."""
    likely = ids(tokenizer, START + END + "abx")
    for seed in range(150):
        draw = random.Random(seed)
        budget, room = draw.choice([None, 0, 2, 6]), draw.randint(12, 30)
        rules = constraint(tokenizer, grammar if formed else None, room=room, budget=budget, opened=opened)
        tokens: list[int] = []
        while len(tokens) < room:
            possible = allowed(rules)  # waits for the mask; then ``finished`` is known, however slow the machine is
            if rules.finished:
                break
            near = [token for token in likely if token in possible]
            tokens.append(draw.choice(near) if near and draw.random() < 0.7 else draw.choice(sorted(possible)))
            rules.advance([tokens[-1]])
        data = (START.encode() if opened else b"") + b"".join(map(tokenizer.token_bytes, tokens))
        inside, _, answer = data.partition(END.encode())
        if not data.startswith(START.encode()):
            inside, answer = b"", data
        if budget is not None and (len(inside) > len(START) or answer):
            most = max(map(len, map(tokenizer.token_bytes, range(VOCAB))))
            assert len(inside) - len(START) <= budget * most
        if formed:
            for end in tokenizer.eos_ids:
                answer = answer.removesuffix(tokenizer.token_bytes(end))
            assert re.fullmatch(b"[ab]{2,4}x", answer), (seed, data)


def test_a_limit_without_room_for_mark_and_form_is_refused(tokenizer: Tokenizer, grammar: OutputGrammar) -> None:
    least = len(ids(tokenizer, END)) + grammar.min_tokens
    constraint(tokenizer, grammar, room=least)
    with pytest.raises(ParameterError, match="max_tokens") as caught:
        constraint(tokenizer, grammar, room=least - 1)
    assert caught.value.param == "max_tokens"


def test_thinking_without_budget_and_grammar_needs_no_constraint(tokenizer: Tokenizer) -> None:
    def made(params: ThinkingParams | None) -> object:
        return completion_constraint(
            params, None, max_tokens=9, spell=tokenizer.token_bytes, end_ids=tokenizer.eos_ids, vocab_size=VOCAB
        )

    assert made(None) is None
    assert made(thinking(tokenizer)) is None
    assert made(thinking(tokenizer, budget=1)) is not None


def test_tokens_of_marks_are_checked(make_llm: MakeLLM) -> None:
    with pytest.raises(ParameterError) as caught:
        make_llm().generate(PROMPT, SamplingParams(thinking=ThinkingParams(end=[VOCAB])))
    assert caught.value.param == "thinking"


@pytest.mark.model
def test_the_default_model_thinks_within_its_budget_and_matches_the_form(default_model: Path) -> None:
    with LLM(default_model, max_model_len=256) as llm:
        end = llm.get_tokenizer().encode("</think>", add_special_tokens=False)
        wanted = SamplingParams(
            temperature=0,
            thinking=ThinkingParams(end=end, budget=12),
            structured_outputs=StructuredOutputsParams(regex="-?[0-9]{1,3}"),
            max_tokens=60,
        )
        output = llm.generate("What is two and two?\n<think>\n", wanted)[0].outputs[0]
    assert list(output.token_ids[12 : 12 + len(end)]) == end
    assert re.fullmatch("-?[0-9]{1,3}", output.text.partition("</think>")[2])


def test_json_after_thinking_through_the_engine(make_llm: MakeLLM, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    wanted = SamplingParams(
        thinking=thinking(tokenizer, budget=4),
        structured_outputs=StructuredOutputsParams(json={**schema, "additionalProperties": False}),
        max_tokens=40,
        seed=2,
    )
    text = make_llm().generate(PROMPT, wanted)[0].outputs[0].text
    assert isinstance(json.loads(text.partition(END)[2])["ok"], bool)

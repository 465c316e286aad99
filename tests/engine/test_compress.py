"""Prompt compression: what is kept, what is protected, when it declines, and how it runs beside other requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.engine.conftest import MakeLLM, MakeLoaded
from tests.engine.test_async_llm import LONG, opened, prompt_of
from tests.support.basis import BASIS
from twofold.core.errors import ParameterError, UsageError
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import RequestOptions
from twofold.engine.compress import WINDOW, CompressionParams, ReadingTime, TextCompression
from twofold.engine.llm import LLM
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.text.spans import cut
from twofold.text.tokenizers.tokenizer import Tokenizer

TEXT = "The hello the. Then one. And two of them. Here is three. Now comes the four. Last is five."
FENCE = "```\ncode. More code.\n```"
SLOW = ReadingTime(StepTimeModel.of_weights(BASIS, (1e-3, 1e-2, 0.0, 0.0, 0.0, 1e-5)), 512, 64)
FAST = ReadingTime(StepTimeModel.of_weights(BASIS, (1e-4, 1e-4, 0.0, 1e-5, 0.0, 0.0)), 512, 64)
UNKNOWN = ReadingTime(None, 512, 64)


def naive(llm: LLM, text: str, keep: float) -> list[str]:
    """The spans to keep, by scores of the whole text as one prompt."""
    encode = llm.get_tokenizer().encode
    parts = [text[span.gap : span.end] for span in cut(text)]
    ids = [encode(part, add_special_tokens=False) for part in parts]
    tokens = [token for each in ids for token in each]
    (output,) = llm.score({"prompt_token_ids": [*encode("\n"), *tokens]})
    assert output.prompt_logprobs is not None
    surprise = [-each[token].logprob for token, each in zip(tokens, output.prompt_logprobs[1:], strict=True) if each]
    scores, at = [], 0
    for part, each in zip(parts, ids, strict=True):
        scores.append(sum(surprise[at : at + len(each)]) / len(part.strip()))
        at += len(each)
    left, kept = int(keep * len(tokens)), set()
    for index in sorted(range(len(parts)), key=lambda index: -scores[index]):
        if len(ids[index]) <= left:
            kept.add(index)
            left -= len(ids[index])
    return [parts[index].strip() for index in sorted(kept)]


@pytest.mark.parametrize("keep", [0.3, 0.5, 0.8])
def test_the_spans_of_least_surprise_are_dropped(make_llm: MakeLLM, keep: float) -> None:
    llm = make_llm(context=256, blocks=256)
    done = llm.compress(TEXT, keep, force=True)
    assert [done.text[span.start : span.end] for span in cut(done.text)] == naive(llm, TEXT, keep)
    assert done.text == "".join(TEXT[start:end] for start, end in done.kept)
    assert done.tokens_after <= keep * done.tokens_before
    assert done.tokens_before == len(llm.get_tokenizer().encode(TEXT, add_special_tokens=False))
    assert done.seconds > 0
    assert done.verdict.applied


def test_a_question_changes_what_is_kept(make_llm: MakeLLM) -> None:
    llm = make_llm(context=256, blocks=256)
    texts = {llm.compress(TEXT, 0.5, question, force=True).text for question in (None, "What is one?", "And five?")}
    assert len(texts) > 1
    assert llm.compress(TEXT, 0.5, "And five?", force=True).text in texts  # the same again


def test_windows_cover_every_span_once_and_fit_the_context(tokenizer: Tokenizer) -> None:
    text = "A sentence of some length. " * 400
    for context in (48, 256, 4096):
        plain = TextCompression([(text, ())], CompressionParams(), tokenizer, context)
        asked = TextCompression([(text, ())], CompressionParams(question="What?"), tokenizer, context)
        assert all(len(prompt) <= min(context, WINDOW + 32) for prompt in (*plain.prompts, *asked.prompts))
        assert sum(len(prompt) - 1 for prompt in plain.prompts) == plain.tokens
        windows = len(asked.prompts) // 2
        for one, other in zip(asked.prompts[:windows], asked.prompts[windows:], strict=True):
            assert other[-len(one) + 1 :] == one[1:]


def test_a_text_longer_than_the_context_is_compressed(make_llm: MakeLLM) -> None:
    done = make_llm(context=64).compress(TEXT * 20, 0.5, force=True)
    assert 0 < done.tokens_after <= done.tokens_before / 2


PIECES = st.sampled_from(
    [FENCE, '{"a": "x. Y"}', "One sentence. ", "Keep me. ", "\n\n", "你好。", " and so on", "\nA line.\n"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.lists(PIECES, min_size=3, max_size=14).map("".join), st.floats(0.05, 0.95), st.booleans())
def test_protected_ranges_are_byte_equal_in_the_result(make_llm: MakeLLM, text: str, keep: float, asks: bool) -> None:
    protect = ["Keep me."] if "Keep me." in text else []
    llm = make_llm(context=256, blocks=256)
    found = cut(text, protect) if text.strip() else ()
    assume(len(found) > 1 and not all(span.protected for span in found))
    done = llm.compress(text, keep, "Who?" if asks else None, protect=protect, force=True)
    spans = [text[span.start : span.end] for span in found if span.protected]
    at = 0
    for span in spans:
        assert span.encode() in done.text[at:].encode()
        at = done.text.index(span, at) + len(span)
    assert done.text.count("Keep me.") == text.count("Keep me.")
    protected = sum(len(llm.get_tokenizer().encode(" " + span)) + 2 for span in spans)
    assert done.text.strip()
    longest = max(len(llm.get_tokenizer().encode(" " + text[span.start : span.end])) + 2 for span in found)
    gaps = sum(map(str.isspace, text))
    assert done.tokens_after <= max(keep * done.tokens_before, protected + longest + gaps), "one span is always kept"


def test_it_declines_where_it_does_not_pay(tokenizer: Tokenizer) -> None:
    params = CompressionParams()
    compression = TextCompression([(TEXT * 9, ())], params, tokenizer, 256)
    pays = compression.verdict(FAST, SLOW)
    assert pays.applied
    assert pays.saving_s is not None
    assert pays.cost_s is not None
    assert pays.saving_s > pays.cost_s
    tokens, after = compression.tokens, int(0.5 * compression.tokens)
    assert pays.saving_s == pytest.approx(1e-3 * (-(-tokens // 512) + after // -512) + 1e-2 * (tokens - after), rel=0.1)
    against = compression.verdict(SLOW, FAST)
    assert not against.applied
    assert "no more than" in against.reason
    (same,) = compression.finish([], against)
    assert (same.text, same.kept, same.seconds) == (TEXT * 9, ((0, len(TEXT * 9)),), 0.0)
    assert same.tokens_after == same.tokens_before == len(tokenizer.encode(TEXT * 9, add_special_tokens=False))
    forced = TextCompression([(TEXT, ())], CompressionParams(force=True), tokenizer, 256).verdict(SLOW, FAST)
    assert forced.applied
    assert "forced" in forced.reason
    for pair in ((UNKNOWN, SLOW), (SLOW, UNKNOWN)):
        assert compression.verdict(*pair).applied
        assert "too few steps" in compression.verdict(*pair).reason
    long = TextCompression([(TEXT * 9, ())], CompressionParams(output_tokens=1000), tokenizer, 256).verdict(FAST, SLOW)
    assert long.saving_s == pytest.approx(pays.saving_s + 1000 * 1e-5 * (tokens - after), rel=1e-6)


def test_the_verdict_is_that_of_the_engines_own_step_times(make_llm: MakeLLM) -> None:
    llm, other = make_llm(context=256, blocks=256), make_llm(context=256, blocks=256)
    for each, row_s in ((llm, 1e-2), (other, 1e-4)):
        shapes = [StepShape().plus(0, rows, rows % 3) for rows in range(1, 65)]
        each.engine.scheduler.step_time = StepTimeModel(BASIS, ((shape, row_s * shape.rows) for shape in shapes))
    assert not llm.compress(TEXT).verdict.applied  # scoring computes all that it would save, and more
    assert llm.compress(TEXT).text == TEXT
    assert other.compress(TEXT, target=llm).verdict.applied
    assert not llm.compress(TEXT, target=other).verdict.applied


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("One sentence only", {}, "single sentence"),
        (FENCE, {}, "All of the text is protected"),
        (FENCE + "\n" + FENCE, {}, "All of the text is protected"),
        (TEXT, {"keep": 0}, "keep must be"),
        (TEXT, {"keep": 1.0}, "keep must be"),
        (TEXT, {"keep": float("nan")}, "keep must be"),
        (TEXT, {"keep": True}, "keep must be"),
        (TEXT, {"question": " "}, "question must be"),
        (TEXT, {"question": "why " * 400}, "The question has"),
        (TEXT, {"output_tokens": -1}, "output_tokens must be"),
        (TEXT, {"force": 1}, "force must be"),
        ("a\ud800. B. C.", {}, "surrogate"),
    ],
)
def test_impossible_requests(make_llm: MakeLLM, text: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        make_llm(context=256).compress(text, **{"force": True, **options})


def test_a_closed_llm_compresses_nothing(make_llm: MakeLLM) -> None:
    llm = make_llm()
    llm.close()
    with pytest.raises(UsageError):
        llm.compress(TEXT)


class Steps:
    """Observes steps."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def on_step(self, report: StepReport) -> None:
        self.reports.append(report)

    def on_request(self, report: RequestMetrics) -> None:
        """Requests are not of interest."""


def test_scoring_runs_beside_other_requests(make_loaded: MakeLoaded, make_llm: MakeLLM) -> None:
    """A long text takes many steps; in each of them a request that is generating gets its token."""
    steps = Steps()

    async def both() -> tuple[str, int]:
        async with opened(make_loaded, context=128, blocks=256, rows=32, logit_rows=16) as llm:
            llm._engine.observe(steps)
            scoring = asyncio.create_task(llm.compress(TEXT * 20, force=True))
            while not steps.reports:
                await asyncio.sleep(0)
            other = llm.generate(prompt_of(1), LONG, options=RequestOptions(tenant="other", speculation=False))
            tokens = sum([len(delta.token_ids) async for delta in other])
            return (await scoring).text, tokens

    alone = make_llm(context=128, blocks=256).compress(TEXT * 20, force=True)
    assert asyncio.run(both()) == (alone.text, LONG.max_tokens)
    decoding = [index for index, report in enumerate(steps.reports) if report.decode_rows]
    assert len(decoding) == decoding[-1] - decoding[0] + 1
    assert sum(bool(steps.reports[index].prefill_rows) for index in decoding) > 10

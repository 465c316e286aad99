"""Prompt compression: spans of a text that surprise a model least are dropped.

    text → spans → windows, scored as ordinary requests → a score for each span → the best within the budget of tokens

A span is a sentence, an item or a row (``text/spans.py``). Its score, with p the probability of its tokens after those
before them in their window:

    without a question     −Σ ln p / characters                     its surprise (after Li et al. 2023)
    with a question        Σ ln p(after the question) − Σ ln p      what the question says about the span, in nats

A surprise per token would favour code and names that are many short tokens.

A text of any length is scored in windows of at most WINDOW tokens, which are requests of their own, so the scheduler
interleaves them with others. Protected spans are neither scored nor dropped; they take their tokens from the budget.

Whether it pays is predicted by step-time models, before anything is scored: the seconds to compute a prompt of all
tokens less those for the tokens that remain, by the model that will read it, against the seconds of scoring by the
model that scores. Hits in a prefix cache are not counted; they make the saving smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from twofold.core.errors import ParameterError
from twofold.core.params import check_flag, impossible, known_keywords, whole_number
from twofold.core.request import ScoringParams
from twofold.engine.outputs import RequestOutput
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.text.spans import Range, TextSpan, cut, joined
from twofold.text.tokenizers.tokenizer import Tokenizer

WINDOW: Final = 512
MAX_QUESTION_TOKENS: Final = 256
MAX_OUTPUT_TOKENS: Final = 1 << 20
QUESTION: Final = "Question: {}\n"
SCORING: Final = ScoringParams()


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionParams:
    """How a text is compressed.

    keep           share of the tokens to keep, between 0 and 1
    question       what the shorter text will be asked; spans that it says nothing about are dropped first
    output_tokens  tokens that will be generated after the prompt: each reads fewer keys and values
    force          compress even if that is predicted to take longer than it saves
    """

    keep: float = 0.5
    question: str | None = None
    output_tokens: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.keep, int | float) or isinstance(self.keep, bool) or not 0 < self.keep < 1:
            raise impossible("keep", self.keep, "a number between 0 and 1")
        if self.question is not None and (not isinstance(self.question, str) or not self.question.strip()):
            raise impossible("question", self.question, "text")
        whole_number("output_tokens", self.output_tokens, 0, MAX_OUTPUT_TOKENS)
        check_flag("force", self.force)


@dataclass(frozen=True, slots=True)
class ReadingTime:
    """Predicts the seconds in which an engine reads prompts: by the times of its steps, of at most ``rows`` rows and
    ``logit_rows`` with logits. ``model`` None: it has not run enough steps."""

    model: StepTimeModel | None
    rows: int
    logit_rows: int

    @classmethod
    def unknown(cls) -> Self:
        """Of an engine that is not known."""
        return cls(None, 1, 1)

    @classmethod
    def of(cls, scheduler: Scheduler) -> Self:
        """The prediction of an engine now."""
        limits, learned = scheduler.limits, scheduler.step_time
        model = StepTimeModel.of_weights(learned.basis, learned.weights) if learned.ready else None
        return cls(model, limits.rows, limits.logit_rows)

    def prompt_s(self, tokens: int, *, scored: bool = False) -> float | None:
        """Seconds for a prompt alone, or for one whose log-probabilities are wanted."""
        model = self.model
        if model is None:
            return None
        chunk = min(self.rows, self.logit_rows) if scored else self.rows
        seconds = 0.0
        for start in range(0, tokens, chunk):
            rows = min(chunk, tokens - start)
            seconds += model.predict(StepShape().plus(start, rows, rows if scored else 1)) or 0.0
        return seconds

    def read_s(self, positions: int) -> float | None:
        """Seconds in which a generated token reads so many positions."""
        model = self.model
        if model is None:
            return None
        long, short = (model.predict(StepShape(1, 1, at, at)) or 0.0 for at in (positions, 0))
        return long - short


@dataclass(frozen=True, slots=True)
class CompressionVerdict:
    """Predicted seconds that the shorter prompt saves and that scoring costs; None if a model has run too few steps to
    predict. ``applied``: whether the text was compressed; ``reason`` says why, or why not."""

    saving_s: float | None
    cost_s: float | None
    applied: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CompressedText:
    """A text after compression, or unchanged if the verdict says so.

    text           the ``kept`` ranges of the original, joined; offsets count characters
    tokens_before  of the whole text, and ``tokens_after`` of the shorter one, by the tokenizer of the scoring model
    seconds        from the arrival of the first window at the engine until the last was scored
    """

    text: str
    kept: tuple[Range, ...]
    tokens_before: int
    tokens_after: int
    seconds: float
    verdict: CompressionVerdict


@dataclass(frozen=True, slots=True)
class CompressionReport:
    """The tokens of texts before and after compression, the seconds of scoring, and the verdict on all of them."""

    tokens_before: int
    tokens_after: int
    seconds: float
    verdict: CompressionVerdict

    @classmethod
    def of(cls, texts: Sequence[CompressedText], verdict: CompressionVerdict) -> Self:
        before, after = (sum(getattr(text, name) for text in texts) for name in ("tokens_before", "tokens_after"))
        return cls(before, after, max((text.seconds for text in texts), default=0.0), verdict)


@dataclass(frozen=True, slots=True)
class _Passage:
    """A text with its spans, and the token ids of each span with the gap before it."""

    text: str
    spans: tuple[TextSpan, ...]
    ids: tuple[tuple[int, ...], ...]

    @property
    def droppable(self) -> list[int]:
        """The spans that may be dropped: those that are not protected, if there is more than one span."""
        return [i for i, span in enumerate(self.spans) if not span.protected and len(self.spans) > 1]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))


_Window: TypeAlias = tuple[_Passage, tuple[int, ...]]
"""Spans of a passage that are scored in one request."""


class TextCompression:
    """The compression of texts that will be parts of one prompt, each with its protected ranges.

    ``prompts`` are the token ids to score; ``finish`` takes their outputs in the same order. Every text keeps at least
    one span. Raises ParameterError for a text as ``text.spans.cut``, and for a question that is too long.
    """

    def __init__(
        self,
        texts: Iterable[tuple[str, Iterable[Range | str]]],
        params: CompressionParams,
        tokenizer: Tokenizer,
        context: int,
    ) -> None:
        self.params = params
        self._tokenizer = tokenizer
        start = self._ids("\n")[:1] if tokenizer.bos_id is None or not tokenizer.add_bos else (tokenizer.bos_id,)
        question = () if params.question is None else self._ids(QUESTION.format(params.question))
        longest = min(MAX_QUESTION_TOKENS, context // 2)
        if len(question) > longest:
            message = f"The question has {len(question):,} tokens; the maximum is {longest:,}."
            raise ParameterError(message, param="question", hint="Shorten it.")
        self._passages = [self._passage(text, protect) for text, protect in texts]
        self._prefixes = [start, (*start, *question)] if question else [start]
        self._room = max(1, min(WINDOW, context - len(self._prefixes[-1])))
        self._windows = [window for passage in self._passages for window in _windows(passage, self._room)]
        self.prompts: list[tuple[int, ...]] = [
            (*prefix, *self._body(window)) for prefix in self._prefixes for window in self._windows
        ]

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(passage.tokens for passage in self._passages)

    def check_droppable(self) -> None:
        """Raises ParameterError if there is nothing that could be dropped."""
        if not self._windows:
            single = all(len(each.spans) == 1 and not each.spans[0].protected for each in self._passages)
            what = "The text is a single sentence" if single else "All of the text is protected"
            raise ParameterError(
                f"{what}: nothing can be dropped.", param="text", hint="Whole sentences are dropped; send it as it is."
            )

    def verdict(self, scorer: ReadingTime, target: ReadingTime) -> CompressionVerdict:
        """Whether compressing pays: ``scorer`` scores the texts, ``target`` will read the prompt."""
        before, after = self.tokens, self._budget() + self._protected()
        costs = [scorer.prompt_s(len(prompt), scored=True) for prompt in self.prompts]
        cost = None if None in costs else sum(each or 0.0 for each in costs)
        whole, less, read = target.prompt_s(before), target.prompt_s(after), target.read_s(before - after)
        if cost is None or whole is None or less is None or read is None:
            reason = "The models have run too few steps to predict whether it pays."
            return CompressionVerdict(None, cost, True, reason)
        saving = whole - less + self.params.output_tokens * read
        pays = saving > cost
        relation = "more" if pays else "no more"
        reason = f"It is predicted to save {saving:.3g} s, {relation} than the {cost:.3g} s that scoring takes."
        if not pays and self.params.force:
            reason += " It was forced."
        return CompressionVerdict(saving, cost, pays or self.params.force, reason)

    def finish(self, outputs: Sequence[RequestOutput], verdict: CompressionVerdict) -> list[CompressedText]:
        """The texts without the spans of the lowest scores; unchanged if the verdict is against it."""
        if not verdict.applied:
            return [
                CompressedText(passage.text, ((0, len(passage.text)),), tokens, tokens, 0.0, verdict)
                for passage in self._passages
                for tokens in (self._count(passage.text),)
            ]
        times = [output.metrics for output in outputs]
        seconds = max(each.finished for each in times) - min(each.arrival for each in times)
        scores, budget = self._scores(outputs), self._budget()
        allowed = int(self.params.keep * sum(self._count(passage.text) for passage in self._passages))
        while True:
            kept = self._select(scores, budget)
            found = [self._shortened(*each, seconds, verdict) for each in zip(self._passages, kept, strict=True)]
            excess = sum(each.tokens_after for each in found) - allowed
            if excess <= 0 or budget <= 0:
                return found
            budget -= excess  # joined spans may have more tokens than each alone

    def _scores(self, outputs: Sequence[RequestOutput]) -> list[dict[int, float]]:
        """The scores of the spans that may be dropped, by index, for each text."""
        scores = {id(passage): dict[int, float]() for passage in self._passages}
        parts = len(self._windows)
        for number, (passage, window) in enumerate(self._windows):
            plain = self._logprobs(window, passage, outputs[number], len(self._prefixes[0]))
            if len(self._prefixes) == 1:
                sizes = [passage.spans[index].end - passage.spans[index].start for index in window]
                found = [-sum(each) / size for each, size in zip(plain, sizes, strict=True)]
            else:
                asked = self._logprobs(window, passage, outputs[parts + number], len(self._prefixes[1]))
                found = [sum(one) - sum(other) for one, other in zip(asked, plain, strict=True)]
            scores[id(passage)].update(zip(window, found, strict=True))
        return list(scores.values())

    def _select(self, scores: Sequence[Mapping[int, float]], budget: int) -> list[list[int]]:
        """The indices of the spans that each text keeps: first the best of each text, then the best of all."""
        kept = [
            {index for index in range(len(passage.spans)) if index not in scored}
            for passage, scored in zip(self._passages, scores, strict=True)
        ]
        order = sorted((-each, number, index) for number, one in enumerate(scores) for index, each in one.items())
        for first in (True, False):
            for _, number, index in order:
                size = len(self._passages[number].ids[index])
                if index not in kept[number] and (not kept[number] if first else size <= budget):
                    kept[number].add(index)
                    budget -= size
        return [sorted(indices) for indices in kept]

    def _logprobs(self, window: Sequence[int], passage: _Passage, output: RequestOutput, at: int) -> list[list[float]]:
        """The log-probabilities of the tokens of each span in a window that begins at position ``at``."""
        assert output.prompt_logprobs is not None, "the request was scored"
        found, end = [], at + self._room
        for index in window:
            ids = passage.ids[index][: end - at]
            positions = output.prompt_logprobs[at : at + len(ids)]
            found.append([each[token].logprob for token, each in zip(ids, positions, strict=True) if each is not None])
            at += len(ids)
        return found

    def _shortened(
        self, passage: _Passage, kept: Sequence[int], seconds: float, verdict: CompressionVerdict
    ) -> CompressedText:
        ranges = joined(passage.text, passage.spans, kept)
        text = "".join(passage.text[start:end] for start, end in ranges)
        return CompressedText(text, ranges, self._count(passage.text), self._count(text), seconds, verdict)

    def _budget(self) -> int:
        """Tokens for spans that may be dropped."""
        return max(0, int(self.params.keep * self.tokens) - self._protected())

    def _protected(self) -> int:
        """Tokens of spans that are kept in any case."""
        droppable = sum(len(passage.ids[i]) for passage in self._passages for i in passage.droppable)
        return self.tokens - droppable

    def _body(self, window: _Window) -> tuple[int, ...]:
        passage, indices = window
        return tuple(token for index in indices for token in passage.ids[index])[: self._room]

    def _passage(self, text: str, protect: Iterable[Range | str]) -> _Passage:
        spans = cut(text, protect)
        return _Passage(text, spans, tuple(self._ids(text[span.gap : span.end]) for span in spans))

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False, parse_special=False))

    def _count(self, text: str) -> int:
        return len(self._ids(text))


def _windows(passage: _Passage, room: int) -> Iterator[_Window]:
    """The spans that may be dropped, in windows of at most ``room`` tokens; a longer span is a window of its own."""
    window: list[int] = []
    tokens = 0
    for index in passage.droppable:
        size = len(passage.ids[index])
        if window and tokens + size > room:
            yield passage, tuple(window)
            window, tokens = [], 0
        window.append(index)
        tokens += size
    if window:
        yield passage, tuple(window)

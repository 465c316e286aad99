"""Makes the request with which the next replica continues a request, from the part that its caller has.

Samples depend only on the seed and the position, so another replica of the same model continues with the same tokens.
Everything else that a completion depends on is a function of its tokens: penalties, stop strings, the state of a
grammar, a thinking budget. So the next replica gets the tokens delivered so far, and its deltas begin after them.

What its tokens do not say stays here: their log-probabilities and their times, and the completions that have ended.
Beam searches, embeddings, scores and ``best_of`` deliver nothing before their end, so they start over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from twofold.core.params import SamplingParams
from twofold.core.record import Pause
from twofold.core.report import RequestMetrics
from twofold.core.request import DeliveredCompletion, EngineRequest, RequestOptions
from twofold.core.step import FinishReason
from twofold.engine.outputs import CompletionOutput, Logprobs, OutputDelta, RequestOutput


@dataclass(slots=True)
class DeliveredPart:
    """The part of a completion that its caller has. ``times``: when its tokens arrived, on the hub's clock."""

    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def add(self, delta: OutputDelta, now: float) -> None:
        """Adds what a delta delivers."""
        self.token_ids += delta.token_ids
        self.text.append(delta.text)
        self.logprobs += delta.logprobs or ()
        self.times += [now] * len(delta.token_ids)
        if delta.finish_reason is not None:
            self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


class DeliveredRequest:
    """What the caller of a request, which has arrived, has of each of its completions."""

    def __init__(self, request: EngineRequest) -> None:
        params = request.params
        grows = isinstance(params, SamplingParams) and params.answers == params.n
        self.request = request
        self.completions = [DeliveredPart() for _ in range(request.completions if grows else 0)]
        self.noted: list[tuple[OutputDelta, float]] = []

    @property
    def tokens(self) -> int:
        self._fold()
        return sum(len(delivered.token_ids) for delivered in self.completions)

    def add(self, delta: OutputDelta, now: float) -> None:
        """Adds what a delta delivers, unless the completions are delivered at the end, all at once."""
        if self.completions:
            self.noted.append((delta, now))

    def rest(self, request_id: str) -> EngineRequest:
        """The request for the next replica, under this id. It has waited once, so it has no queue limit any more."""
        options = _without_queue_limit(self.request.options)
        request = replace(self.request, request_id=request_id, options=options)
        if not self.tokens:
            return request
        delivered = tuple(DeliveredCompletion(tuple(each.token_ids), each.finish_reason) for each in self.completions)
        return replace(request, delivered=delivered)

    def whole(self, output: RequestOutput, delivered: Sequence[DeliveredCompletion]) -> RequestOutput:
        """The output of the request, made of the last replica's, which had begun after ``delivered``."""
        output = replace(output, request_id=self.request.request_id, prompt_token_ids=self.request.token_ids)
        ahead_s = output.metrics.arrival - self.request.arrived
        if ahead_s:
            output = replace(output, metrics=_by_our_clock(output.metrics, ahead_s))
        if not delivered:
            return output
        self._fold()
        pairs = list(zip(output.outputs, self._at(delivered), strict=True))
        return replace(
            output,
            outputs=tuple(_joined(rest, before) for rest, before in pairs),
            metrics=_metrics(output.metrics, [before for _, before in pairs]),
        )

    def _fold(self) -> None:
        """Adds what was noted to its completions. Most requests never resume, so it waits until one does."""
        for delta, now in self.noted:
            self.completions[delta.index].add(delta, now)
        self.noted.clear()

    def _at(self, delivered: Sequence[DeliveredCompletion]) -> list[DeliveredPart]:
        """What was delivered when the last replica began: deltas of it were added since."""
        parts = []
        for each, begun in zip(self.completions, delivered, strict=True):
            count = len(begun.token_ids)
            part = DeliveredPart(each.token_ids[:count], each.text, each.logprobs[:count], each.times[:count])
            part.finish_reason = begun.finish_reason
            part.stop_reason = each.stop_reason
            parts.append(part)
        return parts


def _without_queue_limit(options: RequestOptions) -> RequestOptions:
    return options if options.queue_limit_s is None else replace(options, queue_limit_s=None)


def _joined(rest: CompletionOutput, before: DeliveredPart) -> CompletionOutput:
    """A completion: the part delivered before, with the last replica's."""
    logprobs = None if rest.logprobs is None else (*before.logprobs, *rest.logprobs)
    if before.finish_reason is not None:
        rest = replace(
            rest,
            text="".join(before.text),
            token_ids=tuple(before.token_ids),
            finish_reason=before.finish_reason,
            stop_reason=before.stop_reason,
        )
    if logprobs is None:
        return rest
    total = 0.0
    for token, position in zip(rest.token_ids, logprobs, strict=True):
        total += position[token].logprob  # one by one, as an engine adds them
    return replace(rest, logprobs=logprobs, cumulative_logprob=total)


def _by_our_clock(metrics: RequestMetrics, ahead_s: float) -> RequestMetrics:
    """Metrics of an engine on another machine, whose clock is this much ahead."""
    record = replace(
        metrics.record,
        pauses=[Pause(each.cause, each.start - ahead_s, each.end - ahead_s) for each in metrics.record.pauses],
    )
    return replace(
        metrics,
        arrival=metrics.arrival - ahead_s,
        first_scheduled=None if metrics.first_scheduled is None else metrics.first_scheduled - ahead_s,
        first_token=None if metrics.first_token is None else metrics.first_token - ahead_s,
        finished=metrics.finished - ahead_s,
        token_times=tuple(tuple(at - ahead_s for at in times) for times in metrics.token_times),
        record=record,
    )


def _metrics(metrics: RequestMetrics, delivered: Sequence[DeliveredPart]) -> RequestMetrics:
    """Metrics with the times of delivered tokens. Phases follow each other, so the queue ends before the first token;
    the work and the waits are those of the last replica, and it alone knows its steps."""
    times = tuple((*before.times, *after) for before, after in zip(delivered, metrics.token_times, strict=True))
    first = min(each[0] for each in times if each)
    scheduled = metrics.first_scheduled
    return replace(
        metrics,
        token_times=times,
        first_token=first,
        first_scheduled=first if scheduled is None else min(scheduled, first),
        timeline=None,
    )

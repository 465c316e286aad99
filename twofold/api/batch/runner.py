"""Runs a batch file in an engine of this process: enough lines at once to keep it full, in constant memory.

    with open_batch(source, target, clock, ENDPOINTS) as batch:
        progress = BatchRunner(llm, batch, names=["smollm2-135m"], clock=clock).run()

The runner owns the lines between reading and writing, the engine their requests, the journal the results. A line that
cannot be completed gets an error as its result; other lines are not affected.

A line without a seed samples with a seed made of its custom_id, so its completion depends neither on other lines nor on
interruptions. Of the lines in the engine, those with a lower ``priority`` go first; the file is read in its order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from twofold.api.base import DialectRequest, ModelFacts, ReplyHead
from twofold.api.batch.lines import LineCall, digest_of, read_body
from twofold.api.batch.run import BatchProgress, BatchRun
from twofold.api.fields import unsupported
from twofold.api.openai.errors import error_reply
from twofold.backends.sampling.philox import derive_seed
from twofold.core.clock import Clock
from twofold.core.errors import ModelNotFoundError, TwofoldError, closest_match, quoted
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine.llm import LLM
from twofold.engine.loop import never
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.format import CompletionFormat

WINDOW_PER_SLOT: Final = 2
"""Sequences in the engine for each that can run: so the next sequence is ready when one finishes."""


@dataclass(slots=True)
class _OpenLine:
    """A line whose requests wait or run; ``outputs`` has an entry for each of them."""

    call: LineCall
    request: DialectRequest
    jobs: Sequence[EngineRequest]
    outputs: list[RequestOutput | None] = field(init=False)

    def __post_init__(self) -> None:
        self.outputs = [None] * len(self.jobs)


@dataclass(slots=True)
class _RunningRequest:
    """Request ``index`` of a line, in the engine. ``started`` is set with its first delta."""

    line: _OpenLine
    index: int
    started: bool = False

    @property
    def job(self) -> EngineRequest:
        return self.line.jobs[self.index]


class BatchRunner:
    """One run over a batch.

    names        names of the model: lines may ask for any of them; results have the first
    any_model    lines may ask for any model, and get this one
    fingerprint  ``system_fingerprint`` of results, or None
    watch        called after every step and every line
    stopped      called between steps; True ends the run and leaves unfinished lines to the next run
    wall         seconds since 1970, for ``created``

    Raises UsageError if the output has results of another model.
    """

    def __init__(
        self,
        llm: LLM,
        batch: BatchRun,
        *,
        names: Sequence[str],
        clock: Clock,
        any_model: bool = False,
        fingerprint: str | None = None,
        watch: Callable[[BatchProgress], None] = lambda _: None,
        stopped: Callable[[], bool] = never,
        wall: Callable[[], float] = time.time,
    ) -> None:
        batch.journal.check_model(names[0])
        self._llm, self._batch, self._names, self._any_model = llm, batch, tuple(names), any_model
        self._clock, self._watch, self._stopped, self._wall = clock, watch, stopped, wall
        self._facts = _facts(llm, fingerprint)
        self._window = WINDOW_PER_SLOT * llm.config.limits.sequences
        self._waiting: deque[_RunningRequest] = deque()
        self._running: dict[str, _RunningRequest] = {}
        self._calls = batch.calls()
        self._progress = batch.progress
        self._began = clock.now()

    def run(self) -> BatchProgress:
        """Runs every line that has no result. Raises ResourceError if the output cannot be written."""
        self._began = self._clock.now()
        try:
            while not self._stopped():
                self._fill()
                if not self._running:
                    break
                for delta in self._llm.client.turn():
                    self._take(delta)
                self._report()
        finally:
            for request_id in self._running:
                self._llm.engine.abort(request_id)
        return self._report()

    def _fill(self) -> None:
        """Adds requests to the engine until the window is full or the input ends."""
        sequences = sum(running.job.completions for running in self._running.values())
        while sequences < self._window and not self._stopped():
            if self._waiting:
                waiting = self._llm.engine.waiting + self._waiting[0].job.completions
                if self._running and waiting > self._llm.config.options.max_waiting_seqs:
                    return
                sequences += self._start(self._waiting.popleft())
            elif (call := next(self._calls, None)) is not None:
                self._open(call)
            else:
                return

    def _open(self, call: LineCall) -> None:
        """Prepares a line: queues its requests, or ends it with an error."""
        try:
            opened = self._prepared(call)
        except TwofoldError as error:
            self._refuse(call, error)
        except Exception as error:  # an internal error in one line must not end the others
            self._refuse(call, TwofoldError(f"Internal error: {type(error).__name__}: {error}"))
        else:
            self._waiting.extend(_RunningRequest(opened, index) for index in range(len(opened.jobs)))

    def _prepared(self, call: LineCall) -> _OpenLine:
        """The line with its prompts as token ids; all are checked before the first of them runs."""
        request = read_body(call)
        self._check_model(request.model)
        if request.explain:
            raise unsupported("twofold.explain", "Remove it: use --trace for the whole batch.")
        return _OpenLine(call, request, [*self._requests(call, request)])

    def _requests(self, call: LineCall, request: DialectRequest) -> Iterator[EngineRequest]:
        """The requests of a line, each with an id and a seed, checked."""
        for index, asked in enumerate(request.prepare(self._facts)):
            made = replace(asked, request_id=f"{call.line_key}-{index}")
            if isinstance(asked.params, SamplingParams):
                made = replace(made, params=_seeded(asked.params, self._llm.config.options.seed, call.custom_id, index))
            self._llm.engine.check(made)
            yield made

    def _check_model(self, model: str | None) -> None:
        if model is None or self._any_model or model in self._names:
            return
        close = closest_match(model, self._names) or self._names[0]
        raise ModelNotFoundError(
            f"The model {quoted(model)} is not the batch's model.", hint=f"Did you mean {close!r}?"
        )

    def _start(self, entry: _RunningRequest) -> int:
        """Adds a request to the engine; returns how many sequences it has there."""
        try:
            self._llm.engine.add(entry.job)
        except TwofoldError as error:
            self._fail(entry.line, error)
            return 0
        self._running[entry.job.request_id] = entry
        return entry.job.completions

    def _fail(self, line: _OpenLine, error: TwofoldError) -> None:
        """Ends a line with an error, and aborts its requests."""
        self._waiting = deque(entry for entry in self._waiting if entry.line is not line)
        for job in line.jobs:
            if self._running.pop(job.request_id, None) is not None:
                self._llm.engine.abort(job.request_id)
        self._refuse(line.call, error)

    def _refuse(self, call: LineCall, error: TwofoldError) -> None:
        self._batch.write(call, error.status, error_reply(error))
        self._report()

    def _take(self, delta: OutputDelta) -> None:
        running = self._running.get(delta.request_id)
        if running is None:
            return  # a request of another caller of the engine
        fresh_prompt = 0 if running.started else len(running.job.token_ids)
        running.started = True
        self._progress = replace(
            self._progress,
            prompt_tokens=self._progress.prompt_tokens + fresh_prompt,
            completion_tokens=self._progress.completion_tokens + len(delta.token_ids),
        )
        line = running.line
        if delta.error is not None:
            del self._running[delta.request_id]
            self._fail(line, delta.error)
        elif delta.request is not None:
            del self._running[delta.request_id]
            line.outputs[running.index] = delta.request
            outputs = [output for output in line.outputs if output is not None]
            if len(outputs) == len(line.jobs):
                head = ReplyHead(line.call.line_key, int(self._wall()), self._names[0])
                self._batch.write(line.call, 200, line.request.reply(head, outputs, self._facts))
                self._report()

    def _report(self) -> BatchProgress:
        """Reports the progress to ``watch``."""
        tally, seconds = self._batch.journal.tally, self._clock.now() - self._began
        self._progress = replace(self._progress, done=tally.finished, failed=tally.failed, seconds=seconds)
        self._watch(self._progress)
        return self._progress


def _facts(llm: LLM, fingerprint: str | None) -> ModelFacts:
    tokenizer, loaded = llm.get_tokenizer(), llm.loaded
    form, width = CompletionFormat.of(tokenizer), loaded.spec.hidden_size
    return ModelFacts(tokenizer, form, llm.config.context, width, loaded.sampling, fingerprint=fingerprint)


def _seeded(params: SamplingParams, seed: int, custom_id: str, index: int) -> SamplingParams:
    """The parameters with a seed: their own, or one for prompt ``index`` of the line."""
    if params.seed is not None:
        return params
    part = int.from_bytes(digest_of(f"{custom_id}\n{index}")[:8])
    return replace(params, seed=derive_seed(seed, part))

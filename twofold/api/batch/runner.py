"""Runs a batch file through an engine: as many lines at once as keep it full, in constant memory.

    with open_batch(source, target, MonotonicClock()) as files:
        progress = BatchRunner(llm, files, names=["smollm2-135m"]).run()

Ownership: the runner owns the lines between reading and writing, the engine the requests made of them, the journal
what is written. A line that cannot be answered gets an error as its answer; the others never notice.

A line without a seed draws with one made of its custom_id, so its answer depends neither on what else ran nor on how
often the batch was taken up again. Lines with a lower ``priority`` go first among those that are in the engine; the
file is read in its order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from twofold.api.base import DialectRequest, ModelFacts, ReplyHead
from twofold.api.batch.endpoints import ENDPOINTS, check_batched
from twofold.api.batch.files import BatchFiles, BatchProgress
from twofold.api.batch.lines import InputLine, check_body, custom_id_of, decode_line, digest_of, read_lines, target_of
from twofold.api.fields import FieldError, unsupported
from twofold.api.openai.errors import error_code, error_message, error_reply
from twofold.backends.sampling.philox import derive_seed
from twofold.core.clock import Clock
from twofold.core.errors import ModelNotFoundError, TwofoldError, closest_match, quoted
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine.llm import LLM
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.format import AnswerFormat

WINDOW_PER_SLOT: Final = 2
"""Sequences in the engine for each that can run: whoever finishes has a successor that is ready."""


@dataclass(slots=True)
class _OpenLine:
    """A line whose requests wait or run; ``outputs`` has a place for each job."""

    key: str
    custom_id: str
    request: DialectRequest
    jobs: Sequence[EngineRequest]
    outputs: list[RequestOutput | None] = field(init=False)

    def __post_init__(self) -> None:
        self.outputs = [None] * len(self.jobs)

    @property
    def finished(self) -> bool:
        return None not in self.outputs


@dataclass(slots=True)
class _RunningRequest:
    """A request in the engine: job ``index`` of a line. ``started`` once its first token is there."""

    line: _OpenLine
    index: int
    started: bool = False


def _unwatched(_progress: BatchProgress) -> None:
    return


def _never() -> bool:
    return False


class BatchRunner:
    """One run over a batch.

    names      what the model is called: the first stands in the answers, lines may ask for any of them
    any_model  lines may ask for any model whatever, and get this one
    watch      hears of every step and of every line
    stopped    asked between steps; true ends the run, and what is unfinished is left for the next one
    wall       seconds since 1970, for ``created``

    Raises UsageError where the output holds answers of another model.
    """

    def __init__(
        self,
        llm: LLM,
        files: BatchFiles,
        *,
        names: Sequence[str],
        clock: Clock,
        any_model: bool = False,
        watch: Callable[[BatchProgress], None] = _unwatched,
        stopped: Callable[[], bool] = _never,
        wall: Callable[[], float] = time.time,
    ) -> None:
        files.journal.check_model(names[0])
        self._llm, self._files, self._names, self._any_model = llm, files, tuple(names), any_model
        self._clock, self._watch, self._stopped, self._wall = clock, watch, stopped, wall
        self._facts = _facts(llm)
        self._window = WINDOW_PER_SLOT * llm.config.limits.sequences
        self._room = llm.config.max_waiting
        self._waiting: deque[tuple[_OpenLine, int]] = deque()
        self._running: dict[str, _RunningRequest] = {}
        self._custom_ids: set[bytes] = set()
        self._progress = files.progress
        self._began = clock.now()

    def run(self) -> BatchProgress:
        """Answers every line that has no answer yet. Raises ResourceError where the output cannot be written."""
        self._began = self._clock.now()
        lines = read_lines(self._files.source)
        try:
            while not self._stopped():
                self._fill(lines)
                if not self._running:
                    break
                for delta in self._llm.client.turn():
                    self._take(delta)
                self._tell()
        finally:
            for request_id in self._running:
                self._llm.engine.abort(request_id)
        return self._tell()

    def _fill(self, lines: Iterator[InputLine]) -> None:
        """Brings requests into the engine until the window is full or the input has ended."""
        sequences = sum(running.line.jobs[running.index].completions for running in self._running.values())
        while sequences < self._window and not self._stopped():
            if self._waiting:
                if self._running and not self._ready(self._waiting[0]):
                    return
                sequences += self._start(*self._waiting.popleft())
            elif (line := next(lines, None)) is not None:
                self._open(line)
            else:
                return

    def _ready(self, waiting: tuple[_OpenLine, int]) -> bool:
        """Whether the engine's queue has room for a request."""
        line, index = waiting
        return self._llm.engine.waiting + line.jobs[index].completions <= self._room

    def _open(self, line: InputLine) -> None:
        """Reads a line; its requests wait then, or it is finished with an error."""
        done = line.key in self._files.journal.found.finished
        custom_id = None
        try:
            fields = decode_line(line)
            custom_id = custom_id_of(fields)
            self._claim(custom_id)
            if done:
                return
            url, body = target_of(fields, ENDPOINTS)
        except FieldError as error:
            if not done:
                self._refuse_line(line, custom_id, error)
            return
        try:
            check_body(body)
            opened = self._prepared(line.key, custom_id, ENDPOINTS[url](body))
        except TwofoldError as error:
            self._refuse_body(line.key, custom_id, error)
        except Exception as error:  # whatever one line brings about, the others go on
            internal = TwofoldError(f"Internal error: {type(error).__name__}: {error}")
            self._refuse_body(line.key, custom_id, internal)
        else:
            self._waiting.extend((opened, index) for index in range(len(opened.jobs)))

    def _claim(self, custom_id: str) -> None:
        """A custom_id belongs to the first line that has it."""
        digest = digest_of(custom_id)
        if digest in self._custom_ids:
            message = f"An earlier line has the custom_id {quoted(custom_id)} too."
            raise FieldError(message, param="custom_id", code="duplicate_custom_id")
        self._custom_ids.add(digest)

    def _prepared(self, key: str, custom_id: str, request: DialectRequest) -> _OpenLine:
        """The line with its prompts as token ids: all are checked before the first of them runs."""
        self._check_model(request.model)
        check_batched(request)
        if request.explain:
            raise unsupported("twofold.explain", "Remove it: use --trace for the whole batch.")
        return _OpenLine(key, custom_id, request, [*self._requests(key, custom_id, request)])

    def _requests(self, key: str, custom_id: str, request: DialectRequest) -> Iterator[EngineRequest]:
        """The requests of a line, each with an id and a seed, checked."""
        for index, asked in enumerate(request.prepare(self._facts)):
            made = replace(asked, request_id=f"{key}-{index}")
            if isinstance(asked.params, SamplingParams):
                made = replace(made, params=_seeded(asked.params, self._llm.config.seed, custom_id, index))
            self._llm.engine.check(made)
            yield made

    def _check_model(self, model: str | None) -> None:
        if model is None or self._any_model or model in self._names:
            return
        close = closest_match(model, self._names) or self._names[0]
        raise ModelNotFoundError(
            f"The model {quoted(model)} is not the batch's model.", hint=f"Did you mean {close!r}?"
        )

    def _start(self, line: _OpenLine, index: int) -> int:
        """Hands a prompt to the engine; how many sequences it has now."""
        try:
            self._llm.engine.add(line.jobs[index])
        except TwofoldError as error:
            self._fail(line, error)
            return 0
        self._running[line.jobs[index].request_id] = _RunningRequest(line, index)
        return line.jobs[index].completions

    def _fail(self, line: _OpenLine, error: TwofoldError) -> None:
        """Takes back what waits and runs of a line; the error is its answer."""
        self._give_up(line)
        self._refuse_body(line.key, line.custom_id, error)

    def _give_up(self, line: _OpenLine) -> None:
        """Takes back what waits and runs of a line."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not line)
        for index in range(len(line.jobs)):
            if self._running.pop(line.jobs[index].request_id, None) is not None:
                self._llm.engine.abort(line.jobs[index].request_id)

    def _take(self, delta: OutputDelta) -> None:
        running = self._running.get(delta.request_id)
        if running is None:
            return  # somebody else's request in the same engine
        line = running.line
        fresh_prompt = 0 if running.started else len(line.jobs[running.index].token_ids)
        running.started = True
        self._progress = replace(
            self._progress,
            prompt_tokens=self._progress.prompt_tokens + fresh_prompt,
            completion_tokens=self._progress.completion_tokens + len(delta.token_ids),
        )
        if delta.error is not None:
            del self._running[delta.request_id]
            self._fail(line, delta.error)
            return
        if delta.request is None:
            return
        del self._running[delta.request_id]
        line.outputs[running.index] = delta.request
        if line.finished:
            self._answer(line)

    def _answer(self, line: _OpenLine) -> None:
        head = ReplyHead(line.key, int(self._wall()), self._names[0])
        outputs = [output for output in line.outputs if output is not None]
        body = line.request.reply(head, outputs, self._facts)
        self._write(line.key, line.custom_id, _response(line.key, 200, body), None)

    def _refuse_line(self, line: InputLine, custom_id: str | None, error: FieldError) -> None:
        """An error for a line that is no request; it tells the line, for there may be nothing else to know it by."""
        told = {"code": error_code(error), "message": f"Line {line.number}: {error_message(error)}"}
        self._write(line.key, custom_id, None, told)

    def _refuse_body(self, key: str, custom_id: str, error: TwofoldError) -> None:
        told = {"code": error_code(error), "message": error_message(error)}
        self._write(key, custom_id, _response(key, error.status, error_reply(error)), told)

    def _write(
        self, key: str, custom_id: str | None, response: Mapping[str, Any] | None, error: Mapping[str, str] | None
    ) -> None:
        self._files.journal.write(key, {"custom_id": custom_id, "response": response, "error": error})
        failed = self._progress.failed + (error is not None)
        self._progress = replace(self._progress, done=self._progress.done + 1, failed=failed)
        self._tell()

    def _tell(self) -> BatchProgress:
        self._progress = replace(self._progress, seconds=self._clock.now() - self._began)
        self._watch(self._progress)
        return self._progress


def _response(key: str, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"status_code": status, "request_id": f"req_{key}", "body": body}


def _facts(llm: LLM) -> ModelFacts:
    tokenizer = llm.get_tokenizer()
    loaded = llm.loaded
    return ModelFacts(
        tokenizer, AnswerFormat.of(tokenizer), llm.config.context, loaded.spec.hidden_size, loaded.sampling
    )


def _seeded(params: SamplingParams, seed: int, custom_id: str, index: int) -> SamplingParams:
    """The parameters with a seed: their own, or one for prompt ``index`` of the line."""
    if params.seed is not None:
        return params
    part = int.from_bytes(digest_of(f"{custom_id}\n{index}")[:8])
    return replace(params, seed=derive_seed(seed, part))

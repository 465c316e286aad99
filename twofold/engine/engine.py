"""The loop. Requests come in, three calls are made again and again, and what was added to answers comes out.

    plan    = scheduler.plan(now)
    outcome = executor.run(plan)
    events  = scheduler.commit(plan, outcome)

Ownership: the scheduler owns sequences and their blocks, the engine owns requests and their answers. An engine
belongs to one thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count

from twofold.core.clock import Clock
from twofold.core.errors import ContextLengthError, ParameterError
from twofold.core.params import SamplingParams
from twofold.core.step import TokenEvent
from twofold.engine.answer import Answer, readable
from twofold.engine.base import Executor
from twofold.engine.outputs import Logprobs, OutputDelta, RequestMetrics, RequestOutput
from twofold.engine.prompts import GivenPrompt
from twofold.sampling.philox import derive_seed
from twofold.sched.scheduler import Scheduler
from twofold.sched.sequence import Sequence
from twofold.text.tokenizer import Tokenizer


@dataclass(slots=True)
class _Request:
    request_id: str
    prompt: str | None
    token_ids: tuple[int, ...]
    arrival: float
    answers: list[Answer] = field(default_factory=list)
    prompt_logprobs: list[Logprobs | None] | None = None

    @property
    def finished(self) -> bool:
        return all(answer.finished for answer in self.answers)

    def metrics(self, now: float) -> RequestMetrics:
        admitted = [a.sequence.admitted_at for a in self.answers if a.sequence.admitted_at is not None]
        firsts = [answer.times[0] for answer in self.answers if answer.times]
        return RequestMetrics(
            arrival=self.arrival,
            first_scheduled=min(admitted, default=None),
            first_token=min(firsts, default=None),
            finished=now,
            token_times=tuple(tuple(answer.times) for answer in self.answers),
            prompt_tokens=len(self.token_ids),
            cached_tokens=self.answers[0].sequence.cached,
        )

    def output(self, now: float) -> RequestOutput:
        return RequestOutput(
            self.request_id,
            self.prompt,
            self.token_ids,
            None if self.prompt_logprobs is None else tuple(self.prompt_logprobs),
            tuple(answer.output() for answer in self.answers),
            self.metrics(now),
            self.finished,
        )


class Engine:
    """Requests over one model. ``context`` is the most tokens of a prompt with its answer; ``seed`` the source of
    seeds for requests without one: the n-th request of an engine draws the same in every run.
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        clock: Clock,
        *,
        vocab_size: int,
        context: int,
        seed: int = 0,
    ) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._tokenizer = tokenizer
        self._clock = clock
        self._vocab_size = vocab_size
        self._context = context
        self._seed = seed
        self._requests: dict[str, _Request] = {}
        self._owners: dict[int, tuple[_Request, Answer]] = {}
        self._request_numbers = count()
        self._sequence_numbers = count()

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def prepare(self, prompt: GivenPrompt, params: SamplingParams) -> GivenPrompt:
        """The prompt with its token ids, checked together with ``params`` against the model; nothing is queued.

        Raises ParameterError for an empty prompt or unknown token ids, ContextLengthError for a prompt that leaves no
        room for an answer.
        """
        ids = tuple(self._tokenizer.encode(prompt.text or "")) if prompt.token_ids is None else prompt.token_ids
        if not ids:
            raise ParameterError("The prompt is empty.", param="prompt", hint="Give at least one token.")
        self._check_tokens("prompt_token_ids", ids)
        self._check_tokens("stop_token_ids", params.stop_tokens)
        self._check_tokens("logit_bias", tuple(params.biases))
        if len(ids) >= self._context:
            raise ContextLengthError(
                f"The prompt has {len(ids)} tokens; with one token of answer it does not fit "
                f"the context of {self._context}.",
                hint="Shorten the prompt, or raise max_model_len if the model allows it.",
            )
        return GivenPrompt(prompt.text, ids)

    def add(self, prompt: GivenPrompt, params: SamplingParams, request_id: str | None = None) -> str:
        """Queues a request and returns its id. Raises as ``prepare``, and for an id that is in use."""
        prompt = self.prepare(prompt, params)
        number = next(self._request_numbers)
        request_id = f"request-{number}" if request_id is None else request_id
        if request_id in self._requests:
            raise ParameterError(f"The request id {request_id!r} is in use.", param="request_id")
        request = _Request(request_id, prompt.text, prompt.token_ids or (), self._clock.now())
        if params.prompt_logprobs is not None:
            request.prompt_logprobs = [None]
        seed = derive_seed(self._seed, number + 1) if params.seed is None else params.seed
        for index in range(params.n):
            self._add_answer(request, params, index, derive_seed(seed, index))
        self._requests[request_id] = request
        return request_id

    def step(self) -> list[OutputDelta]:
        """One turn of the loop; empty where it only computed, or had nothing to do.

        When the executor fails, its error leaves and every request stays as it was: abort them, or try again.
        """
        plan = self._scheduler.plan(self._clock.now())
        if not plan:
            return []
        outcome = self._executor.run(plan)
        now = self._clock.now()
        events = self._scheduler.commit(plan, outcome)
        return [delta for event in events if (delta := self._deliver(event, now)) is not None]

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request at once and frees all it holds; what there is of it, or None if it is not there any more."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        for answer in request.answers:
            self._scheduler.cancel(answer.sequence.sequence_id)
            if not answer.finished:
                del self._owners[answer.sequence.sequence_id]
                answer.abort()
        return request.output(self._clock.now())

    def check_idle(self) -> None:
        """Asserts that an engine without work holds nothing."""
        self._scheduler.check_idle()
        assert self._scheduler.has_work or not (self._requests or self._owners), "a request was forgotten"

    def _check_tokens(self, name: str, ids: tuple[int, ...]) -> None:
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self._vocab_size:
                raise ParameterError(
                    f"{name} holds {token!r:.40}, which is no token id of a vocabulary of {self._vocab_size}.",
                    param=name,
                )

    def _add_answer(self, request: _Request, params: SamplingParams, index: int, seed: int) -> None:
        longest = self._context if params.max_tokens is None else len(request.token_ids) + params.max_tokens
        sequence = Sequence(
            next(self._sequence_numbers),
            request.token_ids,
            params,
            seed=seed,
            limit=min(longest, self._context),
            end_ids=self._tokenizer.eos_ids,
            scores_prompt=params.prompt_logprobs is not None and index == 0,
        )
        self._scheduler.add(sequence)
        answer = Answer(request.request_id, index, sequence, self._tokenizer)
        request.answers.append(answer)
        self._owners[sequence.sequence_id] = request, answer

    def _deliver(self, event: TokenEvent, now: float) -> OutputDelta | None:
        """What the event adds to its answer; None for one that brings only log-probabilities of the prompt."""
        request, answer = self._owners[event.sequence_id]
        if request.prompt_logprobs is not None:
            request.prompt_logprobs.extend(readable(p, self._tokenizer) for p in event.prompt_logprobs)
        if not event.tokens:
            return None
        delta = answer.take(event, now)
        if not answer.finished:
            return delta
        if answer.stopped_by_text:
            self._scheduler.stop(event.sequence_id)
        del self._owners[event.sequence_id]
        return self._closed(request, delta, now) if request.finished else delta

    def _closed(self, request: _Request, delta: OutputDelta, now: float) -> OutputDelta:
        """The last delta of a request, which carries the whole."""
        del self._requests[request.request_id]
        return replace(delta, request=request.output(now))

"""From an ``EngineRequest`` to its sequences: tokens, checks against the model, limits, seeds, constraints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import count
from typing import Any, Final

from twofold.backends.sampling.philox import derive_seed
from twofold.core.errors import ParameterError
from twofold.core.params import BeamSearchParams, RequestParams, SamplingParams
from twofold.core.record import SequenceRecord
from twofold.core.request import (
    STORED_TTL,
    DeliveredCompletion,
    EngineRequest,
    PoolingParams,
    RequestOptions,
    ScoringParams,
    TextOrTokens,
)
from twofold.engine.beams import BeamSearch
from twofold.engine.grammar.form import OutputGrammar
from twofold.engine.grammar.thinking import completion_constraint
from twofold.engine.request import ActiveRequest, Embedding, EngineState, Generation
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.trace import RequestTrace
from twofold.text.prompt_limit import PromptLimit

READING: Final = SamplingParams(temperature=0)
"""The parameters of sequences that compute their prompt and sample nothing."""


class InputProcessor:
    """Checks requests against one model, and makes their sequences.

    ``context`` is the maximum number of tokens of a prompt with its completion. Seeds of requests without one are
    derived from ``seed``.
    """

    def __init__(self, engine: EngineState, *, vocab_size: int, context: int, seed: int) -> None:
        self._engine = engine
        self._tokenizer = engine.tokenizer
        self._vocab_size = vocab_size
        self._context = context
        self._seed = seed
        self._numbers = count()

    def request(self, prompt: TextOrTokens, params: RequestParams, options: RequestOptions) -> EngineRequest:
        """``Engine.request``."""
        text, ids = (prompt, ()) if isinstance(prompt, str) else (None, prompt)
        if text is not None:
            ids = tuple(self._tokenizer.within(self._room(params)).encode(text))
        request = EngineRequest(ids, params, options, text)
        self.check(request)
        return request

    def check(self, request: EngineRequest) -> None:
        """``Engine.check``."""
        ids, params = request.token_ids, request.params
        if not ids:
            raise ParameterError("The prompt is empty.", param="prompt", hint="Give at least one token.")
        self._check_tokens("prompt_token_ids", ids)
        self._check_tokens("prediction", request.options.prediction)
        if isinstance(params, SamplingParams):
            self._check_tokens("stop_token_ids", params.stop_tokens)
            self._check_tokens("logit_bias", params.biases)
            if params.thinking is not None:
                self._check_tokens("thinking", (*params.thinking.start, *params.thinking.end))
        self._check_delivered(request)
        if self._engine.scheduler.store is None and any(pin.ttl == STORED_TTL for pin in request.options.cache_pins):
            raise ParameterError(
                f"Caching a prompt for {STORED_TTL} requires a KV store, and this engine has none.",
                param="ttl",
                hint="Start with --kv-store DIR, or use 5m, 30m or 1h.",
            )
        self._room(params).check(len(ids))

    def active(self, request: EngineRequest, number: int) -> ActiveRequest:
        """The ``number``-th request of the engine with its first sequences, which are not queued yet."""
        match request.params:
            case SamplingParams() as params:
                return self._generation(request, params, number)
            case BeamSearchParams() as params:
                return self._beams(request, params)
            case PoolingParams() as params:
                sequence = self._sequence(request, READING, 0, pooling=params.pooling, samples=False)
                return Embedding(request, self._engine, sequence, params)
            case ScoringParams(alternatives):
                scoring = SamplingParams(temperature=0, prompt_logprobs=alternatives)
                sequence = self._sequence(request, scoring, 0, samples=False, reports_prompt=True)
                return Generation(request, self._engine, {0: sequence}, scoring, (DeliveredCompletion(),))
            case other:
                raise AssertionError(f"a request of {type(other).__name__}")

    def constrain(self, active: ActiveRequest, grammar: OutputGrammar | None) -> None:
        """Gives sequences their token constraints. Raises ParameterError where the grammar needs more tokens than the
        limit."""
        params = active.request.params
        if not isinstance(params, SamplingParams):
            return
        for sequence in active.sequences:
            constraint = completion_constraint(
                params.thinking,
                grammar,
                max_tokens=sequence.limit - len(active.request.token_ids),
                spell=self._tokenizer.token_bytes,
                end_ids=self._tokenizer.eos_ids,
                vocab_size=self._vocab_size,
            )
            if constraint is not None and sequence.generated:
                constraint.advance(sequence.tokens[sequence.prompt_length :])
            sequence.constraint = constraint

    def _generation(self, request: EngineRequest, params: SamplingParams, number: int) -> Generation:
        """Completions that are sampled: the first sequence computes the prompt, the others share it. Those that have
        ended elsewhere have no sequence."""
        seed = derive_seed(self._seed, number + 1) if params.seed is None else params.seed
        sampled = replace(params, logprobs=params.logprobs or 0) if params.answers > params.n else params
        sequences: dict[int, Sequence] = {}
        trace = RequestTrace() if request.options.timeline else None
        delivered = request.delivered or (DeliveredCompletion(),) * params.answers
        first: Sequence | None = None
        for index, known in enumerate(delivered):
            if known.finish_reason is not None:
                continue
            sequences[index] = sequence = self._sequence(
                request,
                sampled,
                derive_seed(seed, index),
                parent=first,
                reports_prompt=params.prompt_logprobs is not None and first is None,
                trace=trace,
            )
            sequence.tokens.extend(known.token_ids)
            first = first or sequence
        return Generation(request, self._engine, sequences, params, delivered)

    def _beams(self, request: EngineRequest, params: BeamSearchParams) -> BeamSearch:
        longest = min(params.max_tokens, self._context - len(request.token_ids))
        greedy = SamplingParams(temperature=0, max_tokens=longest, ignore_eos=True)

        def make_beam(completion: tuple[int, ...]) -> Sequence:
            sequence = self._sequence(request, greedy, 0, candidates=2 * params.beam_width)
            sequence.tokens.extend(completion)
            return sequence

        return BeamSearch(request, self._engine, params, make_beam, longest=longest)

    def _sequence(
        self, request: EngineRequest, params: SamplingParams, seed: int, *, samples: bool = True, **more: Any
    ) -> Sequence:
        """A new sequence of a request."""
        limit = self._longest(request, params) if samples else len(request.token_ids)
        return Sequence(
            next(self._numbers),
            request.token_ids,
            params,
            seed=seed,
            limit=limit,
            end_ids=self._tokenizer.eos_ids,
            options=request.options,
            arrival=request.arrived,
            record=SequenceRecord(),
            samples=samples,
            request_id=request.request_id,
            **more,
        )

    def _check_delivered(self, request: EngineRequest) -> None:
        """Raises ParameterError if the delivered part of completions cannot belong to the request."""
        delivered, params = request.delivered, request.params
        if not delivered:
            return
        sampled = params.answers if isinstance(params, SamplingParams) else 0
        if len(delivered) != sampled or all(known.finish_reason is not None for known in delivered):
            raise ParameterError(
                "delivered must have every completion, and one must not have ended.", param="delivered"
            )
        longest = self._longest(request, params)
        for known in delivered:
            self._check_tokens("delivered", known.token_ids)
            if known.finish_reason is None and len(request.token_ids) + len(known.token_ids) >= longest:
                raise ParameterError(
                    "delivered has a completion that has reached its limit without an end.", param="delivered"
                )

    def _longest(self, request: EngineRequest, params: RequestParams) -> int:
        """The maximum number of tokens of the prompt and a completion."""
        tokens = params.max_tokens if isinstance(params, SamplingParams) else None
        return self._context if tokens is None else min(self._context, len(request.token_ids) + tokens)

    def _room(self, params: RequestParams) -> PromptLimit:
        reserved = 1 if isinstance(params, SamplingParams | BeamSearchParams) else 0
        return PromptLimit(self._context, reserved, remedy="raise max_model_len if the model allows it")

    def _check_tokens(self, name: str, ids: Collection[int]) -> None:
        if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < self._vocab_size):
            return
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self._vocab_size:
                raise ParameterError(
                    f"{name} contains {token!r:.40}, which is outside the vocabulary of {self._vocab_size} tokens.",
                    param=name,
                )

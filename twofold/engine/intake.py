"""From what a caller asks for to a request with its sequences: checks against the model, limits, seeds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from twofold.backends.sampling.philox import derive_seed
from twofold.core.errors import ParameterError
from twofold.core.params import BeamSearchParams, SamplingParams
from twofold.core.record import SequenceRecord
from twofold.core.request import RequestOptions
from twofold.core.step import Pooling, TokenConstraint
from twofold.engine.beams import BeamSearch
from twofold.engine.embedding import Embedding
from twofold.engine.grammar.form import AnswerForm
from twofold.engine.grammar.thinking import answer_constraint
from twofold.engine.prompts import GivenPrompt
from twofold.engine.request import Generation, Given
from twofold.engine.roster import Roster
from twofold.engine.scheduler.sequence import Sequence
from twofold.text.prompt_limit import PromptLimit
from twofold.text.tokenizers.tokenizer import Tokenizer

READING: Final = SamplingParams(temperature=0)
"""For texts that are only read."""


@dataclass(frozen=True, slots=True)
class Came:
    """Who came: the ``number``-th request of the engine, when, and how it is to be treated."""

    number: int
    request_id: str
    arrival: float
    options: RequestOptions
    grammar_s: float


class Intake:
    """Makes requests over one model, and queues their sequences.

    ``context`` is the most tokens of a prompt with its answer, ``seed`` the source of seeds.
    """

    def __init__(self, roster: Roster, tokenizer: Tokenizer, *, vocab_size: int, context: int, seed: int) -> None:
        self._roster = roster
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._context = context
        self._seed = seed

    def prepare(self, prompt: GivenPrompt, params: SamplingParams | BeamSearchParams | None = None) -> GivenPrompt:
        """``Engine.prepare``."""
        room = PromptLimit(self._context, 0 if params is None else 1)
        ids = prompt.token_ids
        if ids is None:
            ids = tuple(self._tokenizer.within(room).encode(prompt.text or ""))
        if not ids:
            raise ParameterError("The prompt is empty.", param="prompt", hint="Give at least one token.")
        self._check_tokens("prompt_token_ids", ids)
        if isinstance(params, SamplingParams):
            self._check_tokens("stop_token_ids", params.stop_tokens)
            self._check_tokens("logit_bias", tuple(params.biases))
            if params.thinking is not None:
                self._check_tokens("thinking", (*params.thinking.start, *params.thinking.end))
        room.check(len(ids))
        return GivenPrompt(prompt.text, ids)

    def generation(
        self, came: Came, prompt: GivenPrompt, params: SamplingParams, grammar: AnswerForm | None
    ) -> Generation:
        """Answers that are drawn; the first sequence computes the prompt, the others share it."""
        given = self._given(came, prompt, params)
        seed = derive_seed(self._seed, came.number + 1) if params.seed is None else params.seed
        sequences = self._answers(given, params, seed, grammar)
        return Generation(given, self._roster, params, self._tokenizer, sequences)

    def beams(self, came: Came, prompt: GivenPrompt, params: BeamSearchParams) -> BeamSearch:
        """The most likely answers."""
        given = self._given(came, prompt, params)
        longest = min(params.max_tokens, self._context - len(given.token_ids))
        greedy = SamplingParams(temperature=0, max_tokens=longest, ignore_eos=True)

        def make_beam(answer: tuple[int, ...]) -> Sequence:
            return self._sequence(given, greedy, 0, answer=answer, candidates=2 * params.beam_width)

        return BeamSearch(given, self._roster, params, self._tokenizer, make_beam, longest=longest)

    def embedding(self, came: Came, prompt: GivenPrompt, pooling: Pooling, *, normalize: bool) -> Embedding:
        """A text's vector."""
        given = self._given(came, prompt, None)
        sequence = self._sequence(given, READING, 0, pooling=pooling, draws=False)
        return Embedding(given, self._roster, sequence, pooling, normalize=normalize)

    def scoring(self, came: Came, prompt: GivenPrompt, alternatives: int) -> Generation:
        """Log-probabilities of a text's tokens, and no answer."""
        given = self._given(came, prompt, None)
        params = SamplingParams(temperature=0, prompt_logprobs=alternatives)
        sequence = self._sequence(given, params, 0, draws=False, scores_prompt=True)
        return Generation(given, self._roster, params, self._tokenizer, [sequence])

    def _given(self, came: Came, prompt: GivenPrompt, params: SamplingParams | BeamSearchParams | None) -> Given:
        prompt = self.prepare(prompt, params)
        ids = tuple(prompt.token_ids or ())
        return Given(came.request_id, prompt.text, ids, came.arrival, came.options, came.grammar_s)

    def _answers(self, given: Given, params: SamplingParams, seed: int, grammar: AnswerForm | None) -> list[Sequence]:
        """The sequences of a request's answers: the first computes the prompt, the others share it."""
        if params.answers > params.n:
            params = replace(params, logprobs=params.logprobs or 0)
        answers: list[Sequence] = []
        room = self._limit(given, params) - len(given.token_ids)
        for index in range(params.answers):
            answers.append(
                self._sequence(
                    given,
                    params,
                    derive_seed(seed, index),
                    parent=answers[0] if answers else None,
                    constraint=self._constraint(params, grammar, room),
                    scores_prompt=params.prompt_logprobs is not None and index == 0,
                )
            )
        return answers

    def _constraint(self, params: SamplingParams, grammar: AnswerForm | None, room: int) -> TokenConstraint | None:
        """What rules the tokens of one answer of at most ``room`` tokens."""
        return answer_constraint(
            params.thinking,
            grammar,
            max_tokens=room,
            spell=self._tokenizer.token_bytes,
            end_ids=self._tokenizer.eos_ids,
            vocab_size=self._vocab_size,
        )

    def _limit(self, given: Given, params: SamplingParams) -> int:
        longest = self._context if params.max_tokens is None else len(given.token_ids) + params.max_tokens
        return min(longest, self._context)

    def _sequence(
        self,
        given: Given,
        params: SamplingParams,
        seed: int,
        *,
        answer: tuple[int, ...] = (),
        draws: bool = True,
        **more: Any,
    ) -> Sequence:
        """A new sequence of a request; ``answer`` is what it already has of one."""
        sequence = Sequence(
            self._roster.next_id(),
            given.token_ids,
            params,
            seed=seed,
            limit=self._limit(given, params) if draws else len(given.token_ids),
            end_ids=self._tokenizer.eos_ids,
            options=given.options,
            arrival=given.arrival,
            record=SequenceRecord(),
            draws=draws,
            **more,
        )
        sequence.tokens.extend(answer)
        return sequence

    def _check_tokens(self, name: str, ids: Iterable[int]) -> None:
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < self._vocab_size:
                raise ParameterError(
                    f"{name} contains {token!r:.40}, which is outside the vocabulary of {self._vocab_size} tokens.",
                    param=name,
                )

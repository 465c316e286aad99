"""The life of a sequence: one list of tokens, four cursors, three states.

    cached     tokens whose keys and values came from a cache
    computed   tokens whose keys and values are in the sequence's blocks
    known      tokens there are: the prompt and what was drawn
    limit      most tokens there can be: the prompt with max_tokens, or the context

    state      may become           blocks             cursors
    WAITING    RUNNING, FINISHED    none               computed = 0
    RUNNING    FINISHED             all up to limit    computed and known move
    FINISHED   —                    none               at rest

Laws, asserted where a cursor moves:
    1. cached ≤ computed ≤ known ≤ limit.
    2. A step advances ``computed`` by at least 1 and never past ``known``. Only when it reaches ``known`` is there a
       draw, and only a draw advances ``known``. So there is no prefill path and no decode path.
    3. Keys and values are never needed for the last possible token: limit − 1 positions suffice.
    4. A sequence has a finish reason exactly when it is FINISHED.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import Enum
from typing import Final

from twofold.core.params import SamplingParams
from twofold.core.step import DrawRequest, FinishReason, Logits, SequenceStep
from twofold.kv.pool import BlockPool, BlockTable


class State(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


TRANSITIONS: Final = {
    State.WAITING: (State.RUNNING, State.FINISHED),
    State.RUNNING: (State.FINISHED,),
    State.FINISHED: (),
}


class Sequence:
    """One prompt and the answer that grows after it.

    ``end_ids`` are the model's end-of-sequence tokens. With ``scores_prompt`` its steps also ask for the prompt's
    log-probabilities.
    """

    def __init__(
        self,
        sequence_id: int,
        prompt: Iterable[int],
        params: SamplingParams,
        *,
        seed: int,
        limit: int,
        end_ids: Iterable[int] = (),
        scores_prompt: bool = False,
    ) -> None:
        self.sequence_id = sequence_id
        self.params = params
        self.seed = seed
        self.limit = limit
        self.tokens = array("i", prompt)
        self.prompt_length = len(self.tokens)
        self.state = State.WAITING
        self.cached = 0
        self.computed = 0
        self.finish_reason: FinishReason | None = None
        self.stop_token: int | None = None
        self.admitted_at: float | None = None
        self._scores_prompt = scores_prompt
        self._table: BlockTable | None = None
        self._stops = frozenset(params.stop_tokens) | (frozenset() if params.ignore_eos else frozenset(end_ids))
        self._suppressed = tuple(sorted(self._stops))
        self._check()

    @property
    def known(self) -> int:
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens known but not computed."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def positions_needed(self) -> int:
        """Positions whose keys and values it may come to store (law 3)."""
        return self.limit - 1

    @property
    def scores_prompt(self) -> bool:
        """Whether its next rows each need logits, for the prompt's log-probabilities."""
        return self._scores_prompt and self.computed < self.prompt_length

    def admit(self, pool: BlockPool, now: float) -> None:
        """WAITING → RUNNING, with blocks for all it may need. Raises ResourceError when the pool has too few."""
        table = BlockTable(pool)
        table.grow_to(self.positions_needed)
        self._become(State.RUNNING)
        self._table = table
        self.admitted_at = now

    def next_step(self, rows: int) -> SequenceStep:
        """The step that computes its next ``rows`` tokens."""
        assert self._table is not None, "a sequence without blocks cannot take a step"
        start, end = self.computed, self.computed + rows
        draw = self._draw_request() if end == self.known else None
        scored = self.tokens[start + 1 : min(end + 1, self.prompt_length)] if self.scores_prompt else ()
        return SequenceStep(
            self.sequence_id,
            self.tokens[start:end],
            start,
            (self._table.blocks,),
            Logits.ALL if scored else Logits.LAST if draw else Logits.NONE,
            draw,
            scored,
            self.params.prompt_logprobs or 0,
        )

    def advance(self, rows: int) -> None:
        """``rows`` more tokens are computed."""
        assert rows >= 1, "a step computes at least one token"
        self.computed += rows
        self._check()

    def append(self, drawn: Iterable[int]) -> tuple[int, ...]:
        """Makes drawn tokens known until one ends the sequence; returns those that were taken."""
        assert self.pending == 0, "a draw needs every known token computed"
        taken = []
        for token in drawn:
            self.tokens.append(token)
            taken.append(token)
            self._check()
            if token in self._stops and self.generated > self.params.min_tokens:
                self.stop_token = token
                self.finish("stop")
                break
            if self.known == self.limit:
                self.finish("length")
                break
        return tuple(taken)

    def finish(self, reason: FinishReason) -> None:
        """→ FINISHED; the blocks go back."""
        self._become(State.FINISHED)
        self.finish_reason = reason
        if self._table is not None:
            self._table.release()
            self._table = None

    def _draw_request(self) -> DrawRequest:
        suppressed = self._suppressed if self.generated < self.params.min_tokens else ()
        if not self.params.penalises:
            return DrawRequest(self.params, self.seed, self.known, suppressed=suppressed)
        prompt, answer = self.tokens[: self.prompt_length], self.tokens[self.prompt_length :]
        return DrawRequest(self.params, self.seed, self.known, prompt, answer, suppressed)

    def _become(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"a {self.state.value} sequence cannot become {state.value}"
        self.state = state

    def _check(self) -> None:
        assert 0 <= self.cached <= self.computed <= self.known <= self.limit, (
            f"cached {self.cached} ≤ computed {self.computed} ≤ known {self.known} ≤ limit {self.limit} is broken"
        )

"""What a client sees: TTFT, TPOT and the time of whole completions, with C requests open at all times.

    t_dec     seconds of a step with a token for each sequence, halfway through the completion
    T_p       seconds of a prompt's own steps
    TPOT      t_dec(b) + (b − 1) / OSL · T_p                     continuous batching: each token waits for its share
                                                                of the other prompts
    TTFT      t_first + entry · t_dec + T_p · (1 + n) + queue     n = min(b − 1, ahead + ahead_c · (b − 1))
    load      bytes of the loaded tokens · (1 / disk + 1 / digest)     before the prompt's own steps, in TTFT
    E2E       TTFT + (OSL − 1) · TPOT
    queue     (C − b) / b · (E2E without it)                      the requests beyond the b that fit wait for a slot

b = min(C, what the memory holds). n counts the other prompts that are computed first: where each completion is followed
by the next request, requests of equal length end together and so arrive together. ``entry`` counts the steps before
admission. The interference term is that of SARATHI (Agrawal et al. 2023), in the mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.planner.count.memory import ReplicaMemory, kv_bytes
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.machine import Cited, Machine
from twofold.planner.predict.constants import Constants
from twofold.planner.predict.steps import Demand, StepParts, StepPredictor

DIGEST: Final = Cited(5e9, "MAC of the KV store in one thread, AVX-512, pieces of 16 KiB, measured 2026-11-28")
"""Bytes a second at which the keys and values of a store are verified."""
ENTRY_STEPS: Final = 1.5
"""Steps that a request waits for: half of the running one, and the one before its admission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Equal requests, ``concurrency`` of them open at all times. ``cached`` of the ``prompt`` tokens need no prefill;
    ``loaded`` ones after them come from a store on disk; ``chunk`` is the most rows of a step."""

    prompt: int
    output: int
    cached: int = 0
    concurrency: int = 1
    chunk: int | None = None
    loaded: int = 0

    def __post_init__(self) -> None:
        sizes = self.prompt >= 1 and self.output >= 1 and self.concurrency >= 1
        if not sizes or min(self.cached, self.loaded) < 0 or self.cached + self.loaded >= self.prompt:
            raise ParameterError(
                "A request needs an uncached prompt token, an output token and a concurrency of at least 1.",
                param="case",
            )
        if self.chunk is not None and self.chunk < 1:
            raise ParameterError(f"A step has at least one row, not {self.chunk}.", param="chunk")

    @property
    def fresh(self) -> int:
        """Prompt tokens that must be computed."""
        return self.prompt - self.cached - self.loaded

    @property
    def halfway(self) -> int:
        """Context of a sequence in the middle of its completion."""
        return self.prompt + max(1, self.output // 2)

    def chunks(self) -> Iterator[SequenceRows]:
        """The steps of a prompt alone; the last one has logits."""
        chunk = self.chunk or self.fresh
        for start in range(self.cached + self.loaded, self.prompt, chunk):
            rows = min(chunk, self.prompt - start)
            yield SequenceRows(rows, start, int(start + rows == self.prompt))


@dataclass(frozen=True, slots=True)
class Prediction:
    """Mean seconds of a request. ``batch`` requests run together, the others of the case wait.

    ttft_floor, tpot_floor     no server on this machine is faster: a prompt alone, and a step of the batch
    prefill, decode            a prompt's own steps, and a step with a token for each sequence, by part
    interference               a token's share of other requests' prompts
    queue                      wait for a slot
    load                       seconds of loading keys and values from disk, a part of ``ttft``
    """

    ttft: float
    tpot: float
    ttft_floor: float
    tpot_floor: float
    prefill: StepParts
    decode: StepParts
    interference: float
    queue: float
    batch: int
    output: int
    concurrency: int
    devices: int
    load: float = 0.0

    @property
    def e2e(self) -> float:
        return self.ttft + (self.output - 1) * self.tpot

    @property
    def requests_per_s(self) -> float:
        """With ``concurrency`` open, by Little's law."""
        return self.concurrency / self.e2e

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests together."""
        return self.output * self.requests_per_s


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predictions for one model on one machine."""

    shape: ModelSpec
    machine: Machine
    constants: Constants
    setup: Setting = PLAIN
    steps: StepPredictor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", StepPredictor.of(self.shape, self.machine, self.setup))

    @property
    def memory(self) -> ReplicaMemory:
        """Of each device; activations are not counted."""
        return ReplicaMemory(self.shape, self.machine.memory, self.setup)

    def batch(self, case: Case) -> int:
        """How many of the case's requests run together: those that fit in memory, halfway through their completions.

        Raises ParameterError if none fits.
        """
        context = case.prompt + case.output // 2
        sequences = self.memory.sequences(context)
        if not sequences:
            room, needed = self.memory.room(), self.memory.sequence_bytes(context)
            raise ParameterError(
                f"{self.shape.name} with a context of {context:,} tokens does not fit into {self.machine.name}: "
                f"{room.weights / 1e9:,.1f} GB of weights and {needed / 1e9:,.1f} GB of keys and values, "
                f"in {room.usable / 1e9:,.1f} GB.",
                param="hardware",
                hint="Use more devices, smaller weights, or a shorter context.",
            )
        return min(case.concurrency, sequences)

    def predict(self, case: Case) -> Prediction:
        """TTFT, TPOT and their parts. Raises what ``batch`` raises."""
        by, batch = self.constants, self.batch(case)
        decode = self.decode(case, batch)
        chunks = self.prefill(case)
        step_s, prefill_s = decode.seconds(by), sum(each.seconds(by) for each in chunks)
        interference = (batch - 1) / case.output * prefill_s
        tpot = step_s + interference
        load = self.load_s(case)
        ttft = first_token_s(by, prefill_s, step_s, batch) + load
        queue = (case.concurrency - batch) / batch * (ttft + (case.output - 1) * tpot)
        return Prediction(
            ttft=ttft + queue,
            tpot=tpot,
            ttft_floor=sum(each.floor for each in chunks),
            tpot_floor=decode.floor,
            prefill=StepParts.total(each.parts(by) for each in chunks),
            decode=decode.parts(by),
            interference=interference,
            queue=queue,
            batch=batch,
            output=case.output,
            concurrency=case.concurrency,
            devices=self.setup.tp,
            load=load,
        )

    def load_s(self, case: Case) -> float:
        """Seconds of reading and verifying the keys and values of all devices for the loaded tokens."""
        ends = (kv_bytes(self.shape, tokens, self.setup) for tokens in (case.cached + case.loaded, case.cached))
        return self.setup.tp * (next(ends) - next(ends)) * (1 / self.machine.disk + 1 / DIGEST) if case.loaded else 0.0

    def decode(self, case: Case, batch: int) -> Demand:
        """Of a step of ``batch`` sequences halfway through their completions."""
        return self.steps.decode(batch, case.halfway)

    def prefill(self, case: Case) -> tuple[Demand, ...]:
        """Of each step of a prompt alone."""
        return tuple(self.steps.demand([(1, rows)]) for rows in case.chunks())


def first_token_s(by: Constants, prompt_s: float, step_s: float, batch: int) -> float:
    """Seconds to the first token of one of ``batch`` running requests, without the wait for a slot."""
    entry = ENTRY_STEPS * step_s if batch > 1 else 0.0
    return by.t_first + entry + prompt_s * (1 + by.prompts_ahead(batch))

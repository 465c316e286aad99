"""LayerKV (Xiong et al. 2024, arXiv 2410.00428): prompts without room in device memory are computed layer by layer.

Where the scheduler refuses a prompt for lack of blocks, the rows that a step has left compute it all the same. Only the
layer at hand has its keys and values on the device, in a small buffer; those of the others are written to host memory
while the next layer computes, and read back for later chunks of the prompt. Its first token is sampled at once. The
sequence keeps its place in the queue; once the scheduler admits it, its keys and values are loaded in place of being
computed, and it decodes.

    position_s  bytes of a position's keys and values in all layers / bandwidth of the host link
    a step      max(compute, in, out) + (in + out) / layers      in, out: positions moved · position_s

The link moves one layer while another computes, and both ways at once; the first layer in and the last one out overlap
with nothing. Both kinds of replicas share ``HostPrompts``.

With a target of TPOT a step computes such prompts only if no open sequence would miss it:

    slack       target · (tokens − 1) − time since the first token − step of decodes · tokens that are left

must cover what the step takes longer. The simulation knows how many tokens an output will have; a server predicts it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from twofold.core.errors import ParameterError, ResourceError
from twofold.core.kv_layout import KVLayout
from twofold.core.model import ModelSpec, read_positions, visible
from twofold.engine.kv.manager import GroupSize
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.steps import StepSize
from twofold.planner.simulate.jobs import SimulatedJob

BUFFERS: Final = 4
"""Parts of the device's buffer: of two layers, positions that are used and others that are under way."""


@dataclass(frozen=True, slots=True)
class LayerKV:
    """Layer-wise keys and values. ``host_blocks``: those that host memory holds; ``tpot_s``: the target, if any."""

    host_blocks: int
    position_s: float
    layers: int
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        if self.host_blocks < 1 or not self.position_s > 0 or self.layers < 1:
            raise ParameterError(
                "Layer-wise keys and values need at least one block of host memory, a layer and a link.",
                param="layer-kv",
            )
        if self.tpot_s is not None and not self.tpot_s > 0:
            raise ParameterError("The target of TPOT must be above 0.", param="layer-kv-tpot-ms")

    def seconds(self, compute_s: float, fetched: int, written: int) -> float:
        """Seconds of a step that moves so many positions of all layers from and to host memory."""
        into, out = fetched * self.position_s, written * self.position_s
        return max(compute_s, into, out) + (into + out) / self.layers


def layer_kv(
    shape: ModelSpec,
    machine: Machine,
    groups: tuple[GroupSize, ...],
    host_bytes: int,
    setup: Setting = PLAIN,
    *,
    rows: int,
    block_size: int,
    tpot_s: float | None = None,
) -> tuple[LayerKV, tuple[GroupSize, ...]]:
    """The lever with ``host_bytes`` of host memory for each device, and the blocks that its buffer leaves.

    Raises ParameterError for a machine without a link to a host's memory and a model with windows or recurrent states,
    ResourceError if host memory or the blocks that are left do not suffice.
    """
    if machine.host_link is None:
        raise ParameterError(
            f"{machine.name} has no memory apart from its host's.",
            param="layer-kv",
            hint="Moving keys and values within one memory frees nothing. Name a machine with device memory: l40s.",
        )
    if len(groups) > 1 or groups[0].window or any(setup.state_bytes(layer.attention) for _, layer in shape.runs):
        raise ParameterError(
            f"{shape.name} has layers that do not keep the keys and values of all positions.",
            param="layer-kv",
            hint="Layer-wise keys and values are simulated for models with full attention in every layer.",
        )
    layout = KVLayout(shape, setup.kv, block_size, setup.tp)
    layers = len(shape.layers)
    block_bytes = layout.window_bytes(1 << 62)[None]
    buffer = -(-BUFFERS * rows // (layers * block_size))
    lever = LayerKV(int(host_bytes // block_bytes), layout.token_bytes() / machine.host_link, layers, tpot_s)
    if groups[0].blocks <= buffer:
        raise ResourceError(
            f"The buffer of {buffer} blocks leaves none of {groups[0].blocks} for the KV cache.",
            hint="Lower --max-num-batched-tokens, or give the KV cache more memory.",
        )
    return lever, (GroupSize(None, groups[0].blocks - buffer),)


class HostPrompt:
    """A job whose scheduler has not loaded or computed all of its prompt.

    done        positions whose keys and values are in host memory; ``copied``: of these found in the prefix cache
    blocks      taken in host memory
    begun_s     when its first rows were computed layer by layer
    first_s     when its first token was sampled so
    """

    __slots__ = ("begun_s", "blocks", "copied", "done", "first_s", "job")

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.done = self.copied = self.blocks = 0
        self.begun_s: float | None = None
        self.first_s: float | None = None


class OpenOutput(NamedTuple):
    """An output that has begun: the time of its first token, its tokens so far, and those that it will have."""

    first_s: float
    made: int
    tokens: int


class HostPrompts:
    """Prompts that are computed layer by layer.

    free       blocks of host memory
    waiting    jobs that the scheduler has not admitted and that have no first token, in order of arrival
    """

    def __init__(self, lever: LayerKV, block_size: int, step_s: Callable[[StepSize], float]) -> None:
        self._lever, self._size, self._step_s = lever, block_size, step_s
        self.free = lever.host_blocks
        self.waiting: deque[HostPrompt] = deque()
        self._held: dict[int, HostPrompt] = {}
        self._chunks: list[tuple[HostPrompt, int]] = []

    def arrive(self, job: SimulatedJob) -> None:
        """Queues a job."""
        self.waiting.append(HostPrompt(job))

    def head(self, admitted: Callable[[int], bool]) -> HostPrompt | None:
        """The first job that waits, and None if host memory has no room for it. Forgets admitted ones before it."""
        while self.waiting and admitted(self.waiting[0].job.number):
            self.waiting.popleft()
        return self.waiting[0] if self.waiting and self._fits(self.waiting[0]) else None

    def found(self, number: int) -> HostPrompt | None:
        """A job with keys and values in host memory, or None."""
        return self._held.get(number)

    def done(self, number: int) -> int:
        """Positions of a job whose keys and values are in host memory."""
        held = self._held.get(number)
        return held.done if held else 0

    def parked(self) -> Iterable[OpenOutput]:
        """The outputs whose keys and values wait in host memory."""
        for held in self._held.values():
            if held.first_s is not None:
                yield OpenOutput(held.first_s, 1, held.job.output)

    def plan(self, rows: int, admitted: Callable[[int], bool], matched: Callable[[SimulatedJob], int]) -> None:
        """Gives up to ``rows`` rows of the next step to waiting prompts, in their order."""
        self._chunks = []
        while rows and (prompt := self.head(admitted)) is not None:
            if not prompt.blocks:
                prompt.blocks = -(-prompt.job.prompt // self._size)
                self.free -= prompt.blocks
                self._held[prompt.job.number] = prompt
                prompt.copied = prompt.done = min(matched(prompt.job), prompt.job.prompt - 1)
            taken = min(rows, prompt.job.prompt - prompt.done)
            self._chunks.append((prompt, taken))
            rows -= taken
            if prompt.done + taken < prompt.job.prompt:
                return
            self.waiting.popleft()

    def take(
        self, size: StepSize, loaded: int, decodes: StepSize, now: float, outputs: Callable[[], Iterable[OpenOutput]]
    ) -> tuple[StepSize, float]:
        """The step with the planned rows, and its seconds; without them if a sequence would miss its TPOT.

        size, loaded   the scheduler's step without the ``loaded`` positions that come from host memory
        decodes        the rows of decoding sequences in it
        """
        without = self._lever.seconds(self._compute_s(size), loaded, 0)
        if not self._chunks:
            return size, without
        whole, fetched, written = self._with_chunks(size)
        seconds = self._lever.seconds(self._step_s(whole), loaded + fetched, written)
        if self._lever.tpot_s is not None:
            step_s = self._compute_s(decodes)
            slack = (self._slack(each, step_s, now) for each in outputs())
            if any(each < seconds - step_s for each in slack):
                self._drop()
                return size, without
        return whole, seconds

    @property
    def planned(self) -> bool:
        """Whether the step has rows of such prompts."""
        return bool(self._chunks)

    def commit(self, began_s: float, now: float) -> list[HostPrompt]:
        """Ends the step that began at ``began_s``. Returns the prompts that had rows in it."""
        for prompt, rows in self._chunks:
            prompt.done += rows
            if prompt.begun_s is None:
                prompt.begun_s = began_s
            if prompt.done == prompt.job.prompt:
                prompt.first_s = now
        computed, self._chunks = [prompt for prompt, _ in self._chunks], []
        return computed

    def release(self, number: int) -> None:
        """Frees the host memory of a job that the device has all positions of, or that ended."""
        held = self._held.pop(number, None)
        if held is not None:
            self.free += held.blocks

    def check_idle(self) -> None:
        """Asserts that nothing is left."""
        assert not self._held, "a prompt was left in host memory"
        assert self.free == self._lever.host_blocks, "host memory leaked"

    def _fits(self, prompt: HostPrompt) -> bool:
        return bool(prompt.blocks) or -(-prompt.job.prompt // self._size) <= self.free

    def _drop(self) -> None:
        """Gives the planned rows back; prompts that have not begun leave host memory, so that others may use it."""
        for prompt, _ in reversed(self._chunks):
            if not (self.waiting and self.waiting[0] is prompt):
                self.waiting.appendleft(prompt)
            if prompt.begun_s is None:
                self.release(prompt.job.number)
                prompt.blocks = prompt.done = prompt.copied = 0
        self._chunks = []

    def _compute_s(self, size: StepSize) -> float:
        return self._step_s(size) if size.rows else 0.0

    def _slack(self, output: OpenOutput, step_s: float, now: float) -> float:
        assert self._lever.tpot_s is not None, "slack is that to a target"
        left = output.tokens - output.made
        return self._lever.tpot_s * (output.tokens - 1) - (now - output.first_s) - step_s * left

    def _with_chunks(self, size: StepSize) -> tuple[StepSize, int, int]:
        """The step with the planned rows; positions that it fetches from host memory and writes there."""
        pairs, read, fetched, written = size.attended[0], size.read[0], 0, 0
        rows, logit_rows, spans = size.rows, size.logit_rows, []
        for prompt, new in self._chunks:
            start = prompt.done
            copied = prompt.copied if prompt.begun_s is None else 0
            fetched += start - copied
            written += new + copied
            pairs += visible(start, new, None)
            read += read_positions(start, new, None)
            rows += new
            logit_rows += start + new == prompt.job.prompt
            if new > 1:
                spans.append((1, SequenceRows(new, start)))
        sequences = size.sequences + len(self._chunks)
        return (
            StepSize(rows, logit_rows, sequences, (pairs,), (read,), (*size.prompts, *spans)),
            fetched,
            written,
        )


def computed_part(start: int, rows: int, done: int) -> tuple[int, int]:
    """Of ``rows`` positions from ``start``: where those begin that are computed and not loaded, and their number."""
    first = min(max(start, done), start + rows)
    return first, start + rows - first

"""The CPU backend: kernels for the instruction set of this processor, run by a thread pool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from twofold.backends.base import Backend, LoadableModel, RunnerSizes
from twofold.backends.cpu.kernels.attention import CHUNK
from twofold.backends.cpu.kernels.cache import TILE
from twofold.backends.cpu.kernels.digest import compiled_hash
from twofold.backends.cpu.kernels.isa import choose
from twofold.backends.cpu.kernels.jit import Compiler, host_features, refused_features
from twofold.backends.cpu.machine import MachineProbe
from twofold.backends.cpu.model import CpuModel
from twofold.backends.cpu.tables import SelfTests, TableChoice, choose_table, select_table
from twofold.backends.drafting import DraftModel
from twofold.backends.graph import Node, Recorder
from twofold.backends.runner import HostRunner
from twofold.backends.sampling.sampler import Sampler
from twofold.core.errors import ParameterError
from twofold.core.model import ModelSpec
from twofold.core.params import whole_number
from twofold.core.step_basis import StepBasis, experts_of
from twofold.host.digest import UniversalHash
from twofold.host.machine import read_cpu, read_memory
from twofold.host.paths import CacheFolders
from twofold.models.decoder import forward

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CpuBackend(Backend):
    """``Backend`` for this machine's processor.

    isa      instruction set of the kernels; None: the fastest that the processor has
    threads  number of threads that compute; None: one for each usable core

    Raises ParameterError for an instruction set that is unknown or that the processor does not have, and for an
    impossible number of threads.
    """

    isa: str | None = None
    threads: int | None = None
    name: ClassVar[str] = "cpu"
    attention_chunk: ClassVar[int] = CHUNK

    def __post_init__(self) -> None:
        if self.threads is not None:
            whole_number("threads", self.threads, 1, 1 << 62)
        if self.isa is not None:
            choose(host_features(), self.isa, refused_features())

    @property
    def choice(self) -> TableChoice:
        """The instruction set that kernels are written for, and why. Its first use on a machine tests it."""
        return choose_table(self.isa, SelfTests(CacheFolders.of()).fault)

    @property
    def workers(self) -> int:
        """Threads of the pool."""
        return self.threads or read_cpu().usable_cores

    @property
    def device(self) -> str:
        """``Backend.device``: the processor."""
        return read_cpu().name

    @property
    def variant(self) -> tuple[str, int]:
        """``Backend.variant``: instruction set and threads."""
        return self.choice.isa.name, self.workers

    def warnings(self) -> tuple[str, ...]:
        """``Backend.warnings``."""
        cores = read_cpu().usable_cores
        if self.workers <= 2 * cores:
            return ()
        return (f"{self.workers} threads share {cores} cores, which is slower than --threads {cores}.",)

    def share(self, replicas: int) -> Mapping[str, int]:
        """``Backend.share``: the cores are divided."""
        return {} if replicas == 1 or self.threads else {"threads": max(1, read_cpu().usable_cores // replicas)}

    def free_memory(self) -> int:
        """``Backend.free_memory``."""
        return read_memory().available

    def probe(self, working_set: int = 0) -> MachineProbe:
        """Measures the machine with these options. Raises ResourceError where the cache folder cannot be used."""
        return MachineProbe(self.compiler(), self.workers, working_set)

    def step_basis(self, spec: ModelSpec) -> StepBasis:
        """``Backend.step_basis``, with prior weights from a small model on two cores."""
        return StepBasis(32, (4e-3, 3e-4, 8e-5, 1e-4, 4e-7, 1e-6), experts_of(spec))

    def universal_hash(self) -> UniversalHash:
        """``Backend.universal_hash``: a kernel."""
        return compiled_hash(self.compiler())

    def compiler(self) -> Compiler:
        """A compiler that stores machine code in the cache folder."""
        return select_table(self.isa, CacheFolders.of().create())[1]

    def load(
        self,
        model: LoadableModel,
        sizes: RunnerSizes,
        overlap: Callable[[], object],
        draft: LoadableModel | None = None,
    ) -> HostRunner:
        """``Backend.load``. Blocks must be whole tiles of attention."""
        if sizes.block_size % TILE:
            raise ParameterError(
                f"block_size must be a multiple of {TILE} on CPUs, not {sizes.block_size}.", param="block_size"
            )
        choice, compiler = select_table(self.isa, CacheFolders.of().create())
        for rejection in choice.rejected:
            if rejection.fault:
                log.warning("%s. Kernels use %s.", rejection, choice.isa.name)
        loaded = CpuModel(model, _trace(model), compiler, sizes, self.workers, overlap)
        drafting = None
        if draft is not None:
            groups = len(draft.spec.kv_groups(0))
            try:
                smaller = CpuModel(draft, _trace(draft), compiler, sizes.of_draft(groups), self.workers, beside=loaded)
            except BaseException:
                loaded.close()
                raise
            argmax = smaller.argmax if smaller.vocab_size == loaded.vocab_size else None
            drafting = DraftModel(smaller, Sampler(smaller.rows, argmax), loaded.vocab_size, groups)
        sampler = Sampler(loaded.rows, loaded.argmax)
        return HostRunner(loaded, sampler, sizes, compile_s=compiler.seconds, close=loaded.close, draft=drafting)


def _trace(model: LoadableModel) -> Callable[[Recorder], tuple[Node, Node]]:
    """Its decoder."""
    return partial(forward, spec=model.spec, weights=model.weights)

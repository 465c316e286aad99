"""The interface between the engine and the machine that computes.

    backend = open_backend(name, options)           Backend       a kind of machine, with its options resolved
    runner  = backend.load(model, sizes, overlap)   ModelRunner   a model on that machine
    handle  = runner.execute(step)                  StepHandle    a step that is being computed
    outcome = handle.result(masks)                  StepOutcome   sampled tokens, log-probabilities, hidden states

Logits never cross it: a runner samples where its logits are. ``docs/extend/backend.md`` describes how to add a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import import_module
from typing import Any, ClassVar, Final, Protocol

from twofold.core.errors import ParameterError, ResourceError
from twofold.core.kv_layout import KVType
from twofold.core.limits import MachineLimits
from twofold.core.model import ModelSpec
from twofold.core.params import check_choice
from twofold.core.step import StepInput, StepMasks, StepOutcome
from twofold.core.step_basis import StepBasis, experts_of
from twofold.formats.base import ModelFile
from twofold.host.digest import UniversalHash, universal_hash
from twofold.models.bind import ModelWeights
from twofold.models.ops import BlockMemory

NO_MASKS: Final = StepMasks()
BACKENDS: Final = {
    "cpu": "twofold.backends.cpu.backend:CpuBackend",
    "reference": "twofold.backends.reference:ReferenceBackend",
}
"""Module and class of each backend. A module is imported when its backend is opened: kernels load only if they run."""


class StepHandle(Protocol):
    """A step that a runner has begun. Its runner takes the next step after ``result`` or, on errors, ``wait``."""

    def wait(self) -> None:
        """Returns when the rows are computed."""
        ...

    def result(self, masks: StepMasks = NO_MASKS) -> StepOutcome:
        """Waits, then samples: one outcome for each entry of the step, in its order. To be called once."""
        ...


class ModelRunner(BlockMemory, Protocol):
    """A model on a machine: weights, KV cache, forward pass and sampling. One thread at a time."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def max_rows(self) -> int:
        """Max rows of a step."""
        ...

    @property
    def max_logit_rows(self) -> int:
        """Max rows of a step whose logits are needed."""
        ...

    @property
    def compile_s(self) -> float:
        """Seconds that compiling took when the model was loaded."""
        ...

    def execute(self, step: StepInput, *, overlap: bool = False) -> StepHandle:
        """Moves blocks and begins to compute the rows.

        With ``overlap`` the caller has other work to do before it asks for the result; without, the step may be
        computed before this returns. A step that raised may be executed again, unless the model keeps states. A
        sequence's state is empty before its row at position 0.
        """
        ...

    def provide_blocks(self, blocks: Sequence[int]) -> None:
        """Prepares the memory of the first ``blocks`` of each KV group, so that filling them takes less time. Any
        thread may call it, at any time."""
        ...

    def close(self) -> None:
        """Frees the machine; the runner cannot be used again."""
        ...


@dataclass(frozen=True, slots=True)
class LoadableModel:
    """A model that can be loaded: its file, its description and its tensors."""

    file: ModelFile
    spec: ModelSpec
    weights: ModelWeights

    @property
    def read_bytes(self) -> int:
        """Bytes of weights that a step of one row reads: all but a table of embeddings that is not the head too."""
        embedding, head = self.weights.embedding.name, self.weights.head.name
        unread = self.file.tensors[embedding].nbytes if embedding != head else 0
        return self.file.nbytes - unread


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSizes:
    """The sizes that a runner allocates memory for.

    context      max tokens of a sequence
    sequences    max sequences of a step
    rows         max rows of a step, of which ``logit_rows`` need logits
    block_size   positions of a KV block
    blocks       KV blocks of each KV group (``ModelSpec.kv_groups``)
    host_slots   the same for blocks of swapped sequences
    kv_type      the type of stored keys and values
    """

    context: int
    sequences: int
    rows: int
    logit_rows: int
    block_size: int
    blocks: tuple[int, ...]
    host_slots: tuple[int, ...]
    kv_type: KVType

    @property
    def blocks_per_sequence(self) -> int:
        """Blocks of the longest sequence: the width of a block table."""
        return -(-self.context // self.block_size)

    def of_draft(self, groups: int) -> RunnerSizes:
        """The sizes of a draft model of so many KV groups beside this one: all are in the blocks of this one's group 0,
        in arrays of their own."""
        blocks, host_slots = self.blocks[:1] * groups, self.host_slots[:1] * groups
        return replace(self, logit_rows=self.sequences, blocks=blocks, host_slots=host_slots)


class LimitsProbe(Protocol):
    """Measures what a machine can do at most. Other programs can only slow a measurement down, so the best counts.

    limits          those measured within the last week, or now
    again, best     measured now, quickly or thoroughly; the best of that and of this week's
    now             measured now, thoroughly
    """

    def limits(self) -> MachineLimits: ...
    def again(self) -> MachineLimits: ...
    def best(self) -> MachineLimits: ...
    def now(self) -> MachineLimits: ...


class Backend(Protocol):
    """A kind of machine that models run on, with its options resolved; the base class of backends, which need not
    override what has a body here.

    name             as in ``BACKENDS``
    attention_chunk  positions that attention reads at a time: a row reads from the start of the chunk of its first
                     visible position, so blocks from there on stay
    """

    name: ClassVar[str]
    attention_chunk: ClassVar[int] = 1

    @property
    def device(self) -> str:
        """The machine's name."""
        ...

    @property
    def variant(self) -> tuple[Any, ...]:
        """The options that the time of a step depends on, as parts of a file name."""
        return (self.name,)

    def warnings(self) -> tuple[str, ...]:
        """Warnings about its options, as sentences."""
        return ()

    def share(self, replicas: int) -> Mapping[str, Any]:
        """Keywords of engines (``EngineOptions``) for one of so many ``replicas`` on the machine."""
        del replicas
        return {}

    def free_memory(self) -> int:
        """Bytes that weights and KV cache may take."""
        ...

    def probe(self, working_set: int = 0) -> LimitsProbe:
        """Measures the machine while a step reads ``working_set`` bytes. Raises ResourceError if it cannot."""
        del working_set
        raise ResourceError(f"The limits of the {self.name} backend are not measured.")

    def step_basis(self, spec: ModelSpec) -> StepBasis:
        """What the time of a step of a model is linear in."""
        return StepBasis(experts=experts_of(spec))

    def universal_hash(self) -> UniversalHash:
        """The hash that MACs of blocks are made with; it may be compiled now."""
        return universal_hash

    def load(
        self,
        model: LoadableModel,
        sizes: RunnerSizes,
        overlap: Callable[[], object],
        draft: LoadableModel | None = None,
    ) -> ModelRunner:
        """A runner of a model. The caller closes the file; arrays of it that are in use stay valid.

        ``draft`` is a smaller model of the same vocabulary, which proposes the tokens that are DRAFTED. Its layers are
        in the blocks of KV group 0, which has no window. ``overlap`` may be called on this thread, to use the time in
        which other threads read the weights.
        Raises ParameterError for sizes that the machine does not support, ResourceError if memory does not suffice.
        """
        ...


def open_backend(name: str, options: Mapping[str, Any]) -> Backend:
    """The backend ``name``. Options are the fields of its class; those that are None keep their defaults.

    Raises ParameterError for an unknown backend, and for an option that it does not have.
    """
    check_choice("backend", name, tuple(BACKENDS))
    module, class_name = BACKENDS[name].split(":")
    kind = getattr(import_module(module), class_name)
    given = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - {field.name for field in fields(kind)}:
        raise ParameterError(f"The {name} backend has no option {option}.", param=option)
    backend: Backend = kind(**given)
    return backend

"""From what a caller asked for to what an engine runs with: every automatic choice is made here, once.

``EngineOptions`` may leave things open. ``EngineConfig`` adds what ``resolve`` chose for them.

A layer with a window keeps only what its rows can still see, so its KV group needs a bounded number of blocks for each
sequence; the rest of the memory goes to the widest group, whose blocks grow with the text.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, fields
from typing import Any, Final, Literal, TypedDict, cast, get_args

from twofold.backends.base import BACKENDS, Backend, RunnerSizes, open_backend
from twofold.core.errors import ParameterError, ResourceError
from twofold.core.kv_layout import KV_FORMATS, KVLayout, KVType, check_kv_type
from twofold.core.model import ModelSpec, State
from twofold.core.params import (
    MAX_SEED,
    check_choice,
    check_flag,
    check_keywords,
    impossible,
    known_keywords,
    whole_number,
)
from twofold.core.units import format_bytes
from twofold.engine.kv.manager import GroupSize
from twofold.engine.kv.pool import blocks_for
from twofold.engine.kv.segments import SEGMENT_TOKENS
from twofold.engine.scheduler.budget import StepLimits

TokenBudget = Literal["live", "fixed"]
SpeculationMethod = Literal["auto", "suffix", "draft_model", "off"]

DEFAULT_KV_BYTES: Final = 2 << 30
"""Without a flag the KV cache takes no more than this, unless one sequence of the full context needs more."""
KV_SHARE_OF_FREE: Final = 0.5
"""… and never more than this share of the free memory."""
DEFAULT_SWAP_BYTES: Final = 1 << 30
"""Without a flag preempted sequences may take this much memory beside the KV cache, or half of the KV cache's."""
DEFAULT_STORE_BYTES: Final = 8 << 30
"""Without a flag a KV store takes this much of its disk."""
MIN_LOGIT_ROWS: Final = 32
"""Least rows of logits of a step, so that a prompt is scored in chunks of some size."""
MAX_BLOCKS: Final = 1 << 18
"""More blocks than this cost more to keep account of than prefixes of that age are worth."""
WINDOW_SHARE: Final = 0.5
"""Groups with windows take at most this share of the memory, unless one sequence needs more."""
DEFAULT_DRAFTS: Final = 31
"""With the row of the newest token a whole number of tiles of rows."""
MAX_DRAFTS: Final = 63
MAX_BLOCK_SIZE: Final = 1024
MAX_STEP_ROWS: Final = 1 << 16
MAX_TARGET_MS: Final = 1e6
DEFAULT_TARGET_MS: Final = 50.0
"""20 tokens a second: somewhat faster than people read."""


BACKEND_KEYWORDS: Final = frozenset({"backend_options", "threads", "isa"})
"""Keywords of ``EngineOptions`` that each machine sets for itself."""


class EngineKeywords(TypedDict, total=False):
    """The keywords of ``EngineOptions``."""

    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    kv_cache_dtype: str
    kv_cache_memory_bytes: int | None
    swap_space_bytes: int | None
    kv_store: str | os.PathLike[str] | None
    kv_store_bytes: int
    enable_prefix_caching: bool
    token_budget: str
    tpot_target_ms: float | None
    itl_limit_ms: float | None
    max_waiting_seqs: int
    overlap: bool
    seed: int
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None
    stop_loops: bool
    backend: str
    backend_options: Mapping[str, Any]
    threads: int | None
    isa: str | None
    chat_template: str | None


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """How draft tokens are made. None of it changes a completion.

    method                  auto or suffix: tokens that a grammar forces, the client's prediction, and what followed the
                            same tokens before, in the request or in past completions of its cache salt; draft_model:
                            these, and the tokens of a smaller model; off: none (default: draft_model with a model,
                            else auto)
    model                   that smaller model, of the same vocabulary: a path, an alias or any other name of a model
    num_speculative_tokens  most draft tokens of a sequence in a step; the cost model decides how many there are
    """

    method: SpeculationMethod | None = None
    model: str | None = None
    num_speculative_tokens: int = DEFAULT_DRAFTS

    def __post_init__(self) -> None:
        if self.method is None:
            object.__setattr__(self, "method", "auto" if self.model is None else "draft_model")
        check_choice("speculative_config.method", self.method, get_args(SpeculationMethod))
        if self.model is not None and (not isinstance(self.model, str | os.PathLike) or not os.fspath(self.model)):
            raise impossible("speculative_config.model", self.model, "the name or the path of a model")
        if (self.method == "draft_model") != (self.model is not None):
            raise ParameterError(
                f"speculative_config has the method {self.method} and {'a' if self.model else 'no'} model.",
                param="speculative_config",
                hint='The method draft_model has one, for example {"model": "qwen2.5-coder-0.5b"}; others have none.',
            )
        whole_number("speculative_config.num_speculative_tokens", self.num_speculative_tokens, 1, MAX_DRAFTS)


def _speculative_config(given: object, backend: str) -> SpeculativeConfig:
    """The reference backend has no drafts: NumPy's products depend on the number of rows, so drafts change bits."""
    if given is None and backend == "reference":
        return SpeculativeConfig(method="off")
    if given is not None and not isinstance(given, Mapping | SpeculativeConfig):
        raise impossible("speculative_config", given, 'an object such as {"method": "auto"}')
    if isinstance(given, Mapping):
        check_keywords("speculative_config", given, [each.name for each in fields(SpeculativeConfig)])
    config = given if isinstance(given, SpeculativeConfig) else SpeculativeConfig(**(given or {}))
    if config.method != "off" and backend == "reference":
        raise ParameterError(
            "The reference backend does not support speculation: its bits depend on the number of rows in a step.",
            param="speculative_config",
            hint="Remove speculative_config, or use the cpu backend.",
        )
    return config


@known_keywords
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What a caller asks for. None leaves the choice to ``resolve``.

    max_model_len           most tokens of a prompt with its completion
    max_num_seqs            most sequences that run at once
    max_num_batched_tokens  most tokens that one step computes
    block_size              positions of a KV block
    kv_cache_dtype          auto (bf16), bf16, f16 or f32; q8 and k8v4 take less memory
    kv_cache_memory_bytes   memory of the KV cache
    swap_space_bytes        memory beside it for sequences that were preempted; 0 computes them again
    kv_store                folder that keeps prefixes of prompts on the disk, beyond the end of the process; None: none
    kv_store_bytes          size of that folder's segments for this model; the least recently used ones are removed
    enable_prefix_caching   keep the keys and values of prompts for others that begin alike
    token_budget            live: prompts get the rows that keep running completions inside their TPOT target;
                            fixed: all rows of max_num_batched_tokens that are left
    tpot_target_ms          with the live budget, most milliseconds for each token after the first, where a request
                            names none, as a mean over its completion; 50 if left open
    itl_limit_ms            with the live budget, most milliseconds between two tokens of a completion for the sake of
                            others' prompts; 4 targets if left open
    max_waiting_seqs        sequences that may wait; more are refused
    overlap                 turn tokens into text while the next step computes
    seed                    where requests without a seed get theirs from
    speculative_config      how draft tokens are made, a SpeculativeConfig or its fields; its defaults if left open
    stop_loops              end a completion that repeats itself, with the finish reason "repetition": a part of up to
                            256 tokens, at least 4 times and 64 tokens. Not those with structured output or ignore_eos
    backend                 what computes: cpu, or reference (NumPy; slow)
    backend_options         its own options by name, checked when it is opened; None leaves one open
    threads, isa            two of them, of the cpu backend: threads and instruction set
    chat_template           Jinja source or the name of a built-in template, instead of the model's own
    """

    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None
    swap_space_bytes: int | None = None
    kv_store: str | os.PathLike[str] | None = None
    kv_store_bytes: int = DEFAULT_STORE_BYTES
    enable_prefix_caching: bool = True
    token_budget: str = "live"
    tpot_target_ms: float | None = None
    itl_limit_ms: float | None = None
    max_waiting_seqs: int = 100_000
    overlap: bool = True
    seed: int = 0
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None
    stop_loops: bool = False
    backend: str = "cpu"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    threads: InitVar[int | None] = None
    isa: InitVar[str | None] = None

    def __post_init__(self, threads: int | None, isa: str | None) -> None:
        whole_number("max_num_seqs", self.max_num_seqs, 1, MAX_STEP_ROWS)
        whole_number("max_num_batched_tokens", self.max_num_batched_tokens, 1, MAX_STEP_ROWS)
        whole_number("block_size", self.block_size, 1, MAX_BLOCK_SIZE)
        whole_number("max_waiting_seqs", self.max_waiting_seqs, 1, 1 << 62)
        for name in ("max_model_len", "kv_cache_memory_bytes", "swap_space_bytes"):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), 0 if name == "swap_space_bytes" else 1, 1 << 62)
        whole_number("kv_store_bytes", self.kv_store_bytes, 1, 1 << 62)
        self._check_store()
        whole_number("seed", self.seed, 0, MAX_SEED)
        check_choice("backend", self.backend, tuple(BACKENDS))
        if threads is not None:
            whole_number("threads", threads, 1, 1 << 62)
        self._take_backend_options({"threads": threads, "isa": isa})
        check_choice("kv_cache_dtype", self.kv_cache_dtype, ("auto", *get_args(KVType)))
        check_choice("token_budget", self.token_budget, get_args(TokenBudget))
        object.__setattr__(self, "speculative_config", _speculative_config(self.speculative_config, self.backend))
        for name in ("enable_prefix_caching", "overlap", "stop_loops"):
            check_flag(name, getattr(self, name))
        for name in ("tpot_target_ms", "itl_limit_ms"):
            if getattr(self, name) is not None:
                self._check_pace(name, getattr(self, name))

    def open_backend(self) -> Backend:
        """The backend that computes, with its options. Raises ParameterError for an option that it does not have."""
        return open_backend(self.backend, self.backend_options)

    @property
    def kv_type(self) -> KVType:
        """How keys and values are stored."""
        return cast(KVType, "bf16" if self.kv_cache_dtype == "auto" else self.kv_cache_dtype)

    @property
    def speculation(self) -> SpeculativeConfig:
        """How draft tokens are made."""
        return cast(SpeculativeConfig, self.speculative_config)

    @property
    def tpot_target_s(self) -> float:
        """The target time for each token after the first in seconds: as the option says, or the default."""
        return (self.tpot_target_ms or DEFAULT_TARGET_MS) / 1000

    @property
    def itl_limit_s(self) -> float | None:
        """The maximum time between two tokens in seconds; None: no limit."""
        return None if self.itl_limit_ms is None else self.itl_limit_ms / 1000

    def kv_layout(self, spec: ModelSpec, draft: ModelSpec | None = None) -> KVLayout:
        """How the keys and values of that model are kept, with those of its ``draft`` model."""
        return KVLayout(spec, KV_FORMATS[self.kv_type], self.block_size, draft=draft)

    def _take_backend_options(self, named: Mapping[str, Any]) -> None:
        """Joins ``backend_options`` and those with a keyword of their own, without those that are left open."""
        given, options = self.backend_options, dict[str, Any]()
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise impossible("backend_options", given, 'an object such as {"threads": 2}')
        for name, value in (*given.items(), *named.items()):
            if value is not None and options.setdefault(name, value) != value:
                raise ParameterError(f"{name} and backend_options differ.", param=name, hint="Give it once.")
        object.__setattr__(self, "backend_options", options)

    def _check_store(self) -> None:
        if self.kv_store is None:
            if self.kv_store_bytes != DEFAULT_STORE_BYTES:
                raise ParameterError(
                    "kv_store_bytes is the size of a KV store, which is not given.",
                    param="kv_store_bytes",
                    hint="Name its folder as kv_store, or remove kv_store_bytes.",
                )
            return
        if not isinstance(self.kv_store, str | os.PathLike) or not os.fspath(self.kv_store):
            raise impossible("kv_store", self.kv_store, "the path of a folder")
        if not self.enable_prefix_caching:
            raise ParameterError(
                "A KV store extends the prefix cache, which is off.",
                param="kv_store",
                hint="Remove kv_store, or set enable_prefix_caching.",
            )
        if SEGMENT_TOKENS % self.block_size:
            raise ParameterError(
                f"A KV store holds segments of {SEGMENT_TOKENS} tokens, which {self.block_size} does not divide.",
                param="block_size",
                hint="Use the default of 16.",
            )

    def _check_pace(self, name: str, milliseconds: object) -> None:
        number = isinstance(milliseconds, int | float) and not isinstance(milliseconds, bool)
        if not number or not 0 < cast(float, milliseconds) <= MAX_TARGET_MS:
            raise impossible(name, milliseconds, f"a number above 0 and at most {MAX_TARGET_MS:,.0f}")
        if self.token_budget == "fixed":
            raise ParameterError(
                f"A fixed token budget cannot keep {'a TPOT target' if name == 'tpot_target_ms' else 'a gap limit'}.",
                param=name,
                hint="Remove it, or set token_budget to live.",
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine runs with: its options, and what they left open.

    context     most tokens of a prompt with its completion
    limits      of a step
    kv_groups   blocks of each KV group; a block holds ``block_size`` positions of the layers of its group
    draft       the draft model; None: none
    attention_chunk     positions that attention reads at a time
    """

    options: EngineOptions
    context: int
    limits: StepLimits
    kv_groups: tuple[GroupSize, ...]
    draft: ModelSpec | None = None
    attention_chunk: int = 1

    @property
    def kv_blocks(self) -> int:
        """Blocks of the widest group."""
        return self.kv_groups[0].blocks


def resolve(
    options: EngineOptions,
    spec: ModelSpec,
    free_memory: int,
    chunk: int,
    draft: ModelSpec | None = None,
    *,
    weights: int = 0,
) -> EngineConfig:
    """Settles the context and the KV cache for a model and its ``draft`` model, whose ``weights`` take so many of
    ``free_memory`` bytes, on a backend that reads the cache in chunks of ``chunk`` positions.

    A context that was asked for must fit, or it is an error; one that was left open is the model's, or shorter where
    memory does not hold it. Raises ParameterError and ResourceError.
    """
    check_kv_type(spec, options.kv_type)
    if draft is not None:
        check_kv_type(draft, options.kv_type)
    demand = KVDemand(spec, options.kv_layout(spec, draft), options.max_num_batched_tokens, chunk)
    if options.kv_store is not None and demand.state_bytes(spec.context_length):
        raise ParameterError(
            f"{spec.name} has layers that keep a state, so its prefixes are not cached: a KV store would stay empty.",
            param="kv_store",
            hint="Remove kv_store.",
        )
    longest = _asked_context(options, spec)
    memory = _allowed_memory(options, demand.sequence_bytes(longest), max(0, free_memory - weights))
    states = (options.max_num_seqs - 1) * demand.state_bytes(longest)
    context = largest_context(demand, longest, memory - states)
    if context < 2 or (options.max_model_len is not None and context < longest):
        if options.kv_cache_memory_bytes is None and weights >= free_memory:
            raise no_room_for_weights(weights, free_memory, "Use a smaller model, or free memory.")
        need = format_bytes(demand.sequence_bytes(longest))
        raise ResourceError(
            f"The KV cache of one sequence of {longest:,} tokens takes {need}; {format_bytes(memory)} may be used.",
            hint="Lower max_model_len, or raise kv_cache_memory_bytes.",
        )
    swap = min(memory // 2, DEFAULT_SWAP_BYTES) if options.swap_space_bytes is None else options.swap_space_bytes
    logit_rows = max(options.max_num_seqs, min(MIN_LOGIT_ROWS, options.max_num_batched_tokens))
    groups = share_out(
        demand, context, memory, swap, options.max_num_seqs, keeps_prefixes=options.enable_prefix_caching
    )
    limits = StepLimits(options.max_num_seqs, options.max_num_batched_tokens, logit_rows)
    if draft is not None:
        check_draft(spec, context)
    return EngineConfig(options, context, limits, groups, draft, chunk)


def no_room_for_weights(weights: int, memory: int, hint: str) -> ResourceError:
    """The error for weights that alone take more than the ``memory`` of a model."""
    return ResourceError(
        f"The weights take {format_bytes(weights)}; the model may use {format_bytes(memory)} of memory.", hint=hint
    )


def check_draft(spec: ModelSpec, context: int) -> None:
    """Raises ParameterError if no draft model can propose tokens for a model: its keys and values are in the blocks of
    layers without a window."""
    groups = spec.kv_groups(context)
    if isinstance(groups[-1].kind, State):
        raise ParameterError(
            "A draft model needs a target whose layers keep no states: rejected drafts could not be taken back.",
            param="speculative_config",
            hint="Use the method off.",
        )
    if groups[0].window is not None:
        raise ParameterError(
            "A draft model needs a target with a layer that attends to the whole context; all layers have windows.",
            param="speculative_config",
            hint="Use the method auto.",
        )


def runner_sizes(config: EngineConfig) -> RunnerSizes:
    """What the runner of an engine has to hold."""
    return RunnerSizes(
        context=config.context,
        sequences=config.limits.sequences,
        rows=config.limits.rows,
        logit_rows=config.limits.logit_rows,
        block_size=config.options.block_size,
        blocks=tuple(group.blocks for group in config.kv_groups),
        host_slots=tuple(group.host_slots for group in config.kv_groups),
        kv_type=config.options.kv_type,
    )


def _asked_context(options: EngineOptions, spec: ModelSpec) -> int:
    asked = options.max_model_len
    if asked is None:
        return spec.context_length
    if asked < 2 or asked > spec.context_length:
        raise ParameterError(
            f"max_model_len must be from 2 to the model's context of {spec.context_length}, not {asked}.",
            param="max_model_len",
        )
    return asked


def _allowed_memory(options: EngineOptions, one_sequence: int, free_memory: int) -> int:
    """Bytes of the KV cache: as the option says, or a default that leaves most of the memory free."""
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes
    return min(int(free_memory * KV_SHARE_OF_FREE), max(DEFAULT_KV_BYTES, one_sequence))


@dataclass(frozen=True, slots=True)
class KVDemand:
    """What sequences of a model need. ``rows`` are the most that a step computes: they are there beside the window,
    which attention reads in chunks of ``chunk`` positions."""

    spec: ModelSpec
    layout: KVLayout
    rows: int
    chunk: int

    def blocks(self, window: int | None, context: int) -> int:
        """The maximum number of blocks of a group that a sequence of ``context`` tokens holds at once."""
        size = self.layout.block_size
        everything = blocks_for(context, size)
        if window is None:
            return everything
        return min(everything, blocks_for(window + self.rows + self.chunk, size) + 1)

    def sequence_bytes(self, context: int) -> int:
        """Bytes of one sequence of ``context`` tokens."""
        blocks = sum(self.blocks(window, context) * size for window, size in self.layout.window_bytes(context).items())
        return blocks + self.state_bytes(context)

    def state_bytes(self, context: int) -> int:
        """Bytes of the states of one sequence."""
        return sum(self.layout.block_bytes(g) for g in self.spec.kv_groups(context) if isinstance(g.kind, State))


def largest_context(demand: KVDemand, longest: int, memory: int) -> int:
    """The longest sequence up to ``longest`` tokens that fits into ``memory`` bytes; if less, whole blocks."""
    if demand.sequence_bytes(longest) <= memory:
        return longest
    size = demand.layout.block_size
    low, high = 0, longest // size
    while low < high:
        middle = (low + high + 1) // 2
        fits = demand.sequence_bytes(middle * size) <= memory
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * size


def share_out(
    demand: KVDemand, context: int, memory: int, swap: int, sequences: int, *, keeps_prefixes: bool
) -> tuple[GroupSize, ...]:
    """Blocks of each group in ``memory`` bytes, and its host slots in ``swap`` bytes. Groups of states get one for each
    sequence.

    Groups with the same window get equally many, since sequences hold equally many. Those with narrower windows than
    the first get what ``sequences`` sequences need at most. Without ``keeps_prefixes`` the first gets no more than that
    either: there is nothing to keep in the rest.
    """
    sizes = demand.layout.window_bytes(context)
    least = {window: demand.blocks(window, context) for window in sizes}
    blocks = dict(least)
    states = sequences * demand.state_bytes(context)
    spare = memory - states - sum(least[window] * size for window, size in sizes.items())
    widest, *narrow = sizes
    for window in narrow:
        allowed = int(memory * WINDOW_SHARE / len(narrow)) // sizes[window]
        more = min(least[window] * sequences, allowed, least[window] + spare // sizes[window]) - least[window]
        blocks[window] += max(0, more)
        spare -= max(0, more) * sizes[window]
    blocks[widest] += spare // sizes[widest]
    most = max(MAX_BLOCKS, least[widest]) if keeps_prefixes else least[widest] * sequences
    blocks[widest] = min(blocks[widest], most)
    total = states + sum(blocks[window] * size for window, size in sizes.items())
    found = []
    for group in demand.spec.kv_groups(context):
        state = isinstance(group.kind, State)
        count = sequences if state else blocks[group.window]
        found.append(GroupSize(group.window, count, count * swap // total, state))
    return tuple(found)

"""From what a caller asked for to what an engine runs with: every automatic choice is made here, once.

``EngineOptions`` may leave things open. ``EngineConfig`` leaves nothing open; it is what is logged and shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast, get_args

from twofold.core.errors import ParameterError, ResourceError, nearest
from twofold.core.model import ModelSpec
from twofold.kv.pool import blocks_for
from twofold.sched.scheduler import StepLimits

KVCacheType = Literal["f16", "f32"]
KV_BYTES: Final[dict[KVCacheType, int]] = {"f16": 2, "f32": 4}

DEFAULT_KV_BYTES: Final = 2 << 30
"""Without a flag the KV cache takes no more than this, unless one sequence of the full context needs more."""
KV_SHARE_OF_FREE: Final = 0.5
"""… and never more than this share of the free memory."""
LEAST_LOGIT_ROWS: Final = 32
"""Rows of logits a step has room for, so that scoring a prompt goes in chunks of some size."""
MOST_BLOCK_SIZE: Final = 1024
MOST_STEP_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What a caller asks for. None leaves the choice to ``resolve``.

    max_model_len           most tokens of a prompt with its answer
    max_num_seqs            most sequences that run at once
    max_num_batched_tokens  most tokens that one step computes
    block_size              positions of a KV block
    kv_cache_dtype          auto (f16), f16 or f32
    kv_cache_memory_bytes   memory of the KV cache
    seed                    where requests without a seed get theirs from
    threads, isa            threads and instruction set of the kernels
    """

    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 512
    block_size: int = 16
    kv_cache_dtype: str = "auto"
    kv_cache_memory_bytes: int | None = None
    seed: int = 0
    threads: int | None = None
    isa: str | None = None

    def __post_init__(self) -> None:
        _positive("max_num_seqs", self.max_num_seqs, MOST_STEP_ROWS)
        _positive("max_num_batched_tokens", self.max_num_batched_tokens, MOST_STEP_ROWS)
        _positive("block_size", self.block_size, MOST_BLOCK_SIZE)
        for name in ("max_model_len", "kv_cache_memory_bytes", "threads"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name), 1 << 62)
        if not isinstance(self.seed, int) or not 0 <= self.seed < 1 << 64:
            raise ParameterError(f"seed must be a whole number from 0 to 2**64 - 1, not {self.seed!r}.", param="seed")
        if self.kv_cache_dtype not in ("auto", *get_args(KVCacheType)):
            close = nearest(str(self.kv_cache_dtype), ("auto", "f16", "f32"))
            raise ParameterError(
                f"kv_cache_dtype must be auto, f16 or f32, not {self.kv_cache_dtype!r}.",
                param="kv_cache_dtype",
                hint=f"Did you mean {close!r}?" if close else None,
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine runs with. A KV block holds ``block_size`` positions of all layers."""

    context: int
    limits: StepLimits
    block_size: int
    kv_blocks: int
    kv_type: KVCacheType
    seed: int
    threads: int | None
    isa: str | None

    @property
    def blocks_per_sequence(self) -> int:
        """Blocks of the longest sequence: the width of a block table."""
        return blocks_for(self.context, self.block_size)


def resolve(options: EngineOptions, spec: ModelSpec, free_memory: int) -> EngineConfig:
    """Settles the context and the KV cache for a model, with ``free_memory`` bytes beside its weights.

    A context that was asked for must fit, or it is an error; one that was left open is the model's, or shorter where
    memory does not hold it. Raises ParameterError and ResourceError.
    """
    kv_type = cast(KVCacheType, "f16" if options.kv_cache_dtype == "auto" else options.kv_cache_dtype)
    block_bytes = spec.kv_bytes_per_token(KV_BYTES[kv_type]) * options.block_size
    longest = _asked_context(options, spec)
    affordable = _affordable_blocks(options, blocks_for(longest, options.block_size), block_bytes, free_memory)
    context = min(longest, affordable * options.block_size)
    if context < 2 or (options.max_model_len is not None and context < longest):
        needed = blocks_for(longest, options.block_size) * block_bytes
        raise ResourceError(
            f"The KV cache of one sequence of {longest} tokens takes {needed:,} bytes; "
            f"{affordable * block_bytes:,} may be used.",
            hint="Lower max_model_len, or raise kv_cache_memory_bytes.",
        )
    per_sequence = blocks_for(context, options.block_size)
    logit_rows = max(options.max_num_seqs, min(LEAST_LOGIT_ROWS, options.max_num_batched_tokens))
    return EngineConfig(
        context=context,
        limits=StepLimits(options.max_num_seqs, options.max_num_batched_tokens, logit_rows),
        block_size=options.block_size,
        kv_blocks=min(affordable, per_sequence * options.max_num_seqs),
        kv_type=kv_type,
        seed=options.seed,
        threads=options.threads,
        isa=options.isa,
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


def _affordable_blocks(options: EngineOptions, per_sequence: int, block_bytes: int, free_memory: int) -> int:
    """Blocks that the memory allows: as flagged, or a default that leaves most of the machine alone."""
    if options.kv_cache_memory_bytes is not None:
        return options.kv_cache_memory_bytes // block_bytes
    allowed = int(free_memory * KV_SHARE_OF_FREE)
    return min(allowed, max(DEFAULT_KV_BYTES, per_sequence * block_bytes)) // block_bytes


def _positive(name: str, value: object, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ParameterError(f"{name} must be a whole number from 1 to {most}, not {value!r:.40}.", param=name)

"""Joins the parts of an engine. The only place that knows them all."""

from __future__ import annotations

from dataclasses import replace

from twofold.core.clock import Clock
from twofold.engine.batch import BatchBuilder
from twofold.engine.engine import Engine
from twofold.engine.executor import LocalExecutor
from twofold.engine.load import LoadedModel
from twofold.kv.pool import BlockPool
from twofold.sampling.sampler import Sampler
from twofold.sched.scheduler import Scheduler


def assemble(loaded: LoadedModel, clock: Clock) -> Engine:
    """An engine on this machine. Where the model takes fewer rows than configured, its own limits count."""
    config, forward = loaded.config, loaded.built.forward
    limits = replace(
        config.limits,
        rows=min(config.limits.rows, forward.max_rows),
        logit_rows=min(config.limits.logit_rows, forward.max_logit_rows),
    )
    batches = BatchBuilder(
        sequences=limits.sequences,
        rows=limits.rows,
        logit_rows=limits.logit_rows,
        context=config.context,
        blocks=config.blocks_per_sequence,
    )
    return Engine(
        LocalExecutor(forward, Sampler(loaded.built.rows), batches),
        Scheduler(BlockPool(config.kv_blocks, config.block_size), limits),
        loaded.tokenizer,
        clock,
        vocab_size=forward.vocab_size,
        context=config.context,
        seed=config.seed,
    )

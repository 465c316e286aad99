"""Joins the parts of an engine. The only place that knows them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from twofold.core.clock import Clock
from twofold.engine.config import EngineConfig
from twofold.engine.engine import Engine
from twofold.engine.kv.manager import BlockManager
from twofold.engine.load import LoadedModel
from twofold.engine.scheduler.budget import Budget, FixedBudget, LiveBudget, StepLimits
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.step_time import StepTimeModel
from twofold.engine.step_samples import StepSample


def assemble(loaded: LoadedModel, clock: Clock) -> Engine:
    """An engine on this machine. Where the model takes fewer rows than configured, its own limits count."""
    config, runner = loaded.config, loaded.runner
    limits = replace(
        config.limits,
        rows=min(config.limits.rows, runner.max_rows),
        logit_rows=min(config.limits.logit_rows, runner.max_logit_rows),
    )
    return Engine(
        runner,
        _scheduler(config, limits, loaded.lessons),
        loaded.tokenizer,
        clock,
        vocab_size=runner.vocab_size,
        context=config.context,
        seed=config.seed,
        overlap=config.overlap,
        keeps_targets=config.token_budget == "live",
    )


def _scheduler(config: EngineConfig, limits: StepLimits, lessons: Sequence[StepSample]) -> Scheduler:
    step_time = StepTimeModel(lessons)
    budget: Budget = FixedBudget(limits.rows)
    if config.token_budget == "live":
        budget = LiveBudget(step_time, config.tpot_target_s, config.itl_limit_s)
    manager = BlockManager(config.kv_groups, config.block_size, prefix_caching=config.prefix_caching)
    return Scheduler(
        manager,
        limits,
        budget=budget,
        step_time=step_time,
        windows=[group.window for group in config.kv_groups],
        max_waiting=config.max_waiting,
    )

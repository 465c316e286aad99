"""Reports about a completion of the local engine: shares of this machine's limits, and JSON."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Any, Self

from twofold.backends.cpu.backend import CpuBackend
from twofold.cli.generate import Generator
from twofold.cli.phases import PhaseShare, RooflineShares, decode_speed, prefill_speed
from twofold.core.errors import TwofoldError
from twofold.core.limits import MachineLimits
from twofold.core.record import PhaseWork
from twofold.core.report import RequestMetrics
from twofold.engine.outputs import RequestOutput
from twofold.formats.open import open_model
from twofold.models.read import read_model
from twofold.planner.count.memory import streamed_bytes
from twofold.planner.explain.lines import explain_request
from twofold.planner.predict.phase import PhaseCost, PhaseLimit, decode_limit, local_steps, prefill_limit
from twofold.planner.predict.steps import StepPredictor


class Roofline:
    """The limits of a model on this machine. Made after the first completion, which measuring must not delay."""

    def __init__(self, generator: Generator) -> None:
        self._config = generator.llm.config
        with open_model(generator.path) as file:
            self._shape, _ = read_model(file)
        self._probe = CpuBackend(self._config.options.isa, self._config.options.threads).probe(
            streamed_bytes(self._shape)
        )
        self._steps = self._with(self._probe.limits())

    @classmethod
    def measured(cls, generator: Generator) -> Self | None:
        """The limits, or None if they cannot be measured."""
        try:
            return cls(generator)
        except (TwofoldError, OSError):
            return None

    def explain(self, report: RequestMetrics) -> list[str]:
        """Where the time of a request went, in lines."""
        return explain_request(report, self._steps)

    def cost(self, work: PhaseWork) -> PhaseCost:
        """Bytes and FLOPs of a phase of a request."""
        return PhaseCost.of(work, self._steps.cost)

    def shares(self, metrics: RequestMetrics) -> RooflineShares:
        """Shares of the limits. A share above 1 shows that the limit was measured on a busy machine: repeat it."""
        shares = self._shares(metrics)
        if shares.highest > 1:
            with suppress(TwofoldError, OSError):
                self._steps = self._with(self._probe.again())
            shares = self._shares(metrics)
        return shares

    def _shares(self, metrics: RequestMetrics) -> RooflineShares:
        chunk = self._config.limits.rows
        prefill = prefill_limit(self._steps, metrics.fresh_tokens, cached=metrics.cached_tokens, chunk=chunk)
        decode = decode_limit(self._steps, metrics.prompt_tokens, metrics.output_tokens)
        done = metrics.first_token is not None
        return RooflineShares(_reached(prefill, metrics.prefill_s if done else 0.0), _reached(decode, metrics.decode_s))

    def _with(self, machine: MachineLimits) -> StepPredictor:
        return local_steps(self._shape, machine, self._config.options.kv_type)


def _reached(limit: PhaseLimit, measured_s: float) -> PhaseShare | None:
    share = limit.share(measured_s)
    return None if share is None else PhaseShare(share, limit.bound)


def as_json(
    generator: Generator, output: RequestOutput, report: RequestMetrics, roofline: Roofline | None
) -> dict[str, Any]:
    """The completion as JSON. Times are seconds; phases that did not run are null."""
    answer, metrics, loaded = output.outputs[0], output.metrics, generator.llm.loaded
    return {
        "model": generator.name,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "usage": {
            "prompt_tokens": metrics.prompt_tokens,
            "completion_tokens": metrics.output_tokens,
            "total_tokens": metrics.prompt_tokens + metrics.output_tokens,
            "prompt_tokens_details": {"cached_tokens": metrics.cached_tokens},
        },
        "timing": {
            "load_s": loaded.load_s,
            "compile_s": loaded.compile_s,
            "queue_s": metrics.queue_s,
            "ttft_s": metrics.ttft_s,
            "prefill_s": metrics.prefill_s,
            "decode_s": metrics.decode_s,
            "prefill_tok_s": prefill_speed(metrics),
            "decode_tok_s": decode_speed(metrics),
        },
        "stalls": {cause.name.lower(): seconds for cause, seconds in report.record.stalls.items()},
        "limit": None if roofline is None else asdict(roofline.shares(metrics)),
        "work": None if roofline is None else _work(report, roofline),
    }


def _work(report: RequestMetrics, roofline: Roofline) -> dict[str, Any]:
    """Measured and predicted cost of each phase; bytes are the request's part of those of its steps."""
    phases = (("prefill", report.record.prefill), ("decode", report.record.decode))
    return {
        name: {
            "rows": work.rows,
            "steps": work.steps,
            **asdict(roofline.cost(work)),
            "steps_s": work.seconds,
            "predicted_s": work.predicted_s,
        }
        for name, work in phases
    }

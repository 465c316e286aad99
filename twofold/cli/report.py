"""What is reported about an answer of the engine here: shares of this machine's limits, and JSON."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Any, Self

from twofold.cli.generate import Generator
from twofold.cli.phases import PhaseShare, RooflineShares, decode_speed, prefill_speed
from twofold.core.errors import TwofoldError
from twofold.core.kv_layout import KV_FORMATS
from twofold.core.report import RequestReport
from twofold.cost.explain.lines import explain_request
from twofold.cost.machine import MachineLimits, limits_for, probe_size, remeasured
from twofold.cost.model import ModelCost
from twofold.cost.request import RequestCost
from twofold.cost.roofline import PhaseLimit, decode_limit, prefill_limit
from twofold.engine.outputs import RequestMetrics, RequestOutput
from twofold.formats.gguf import GGUFFile
from twofold.host.cpu import read_cpu
from twofold.host.paths import CacheFolders
from twofold.kernels.isa import choose
from twofold.kernels.jit import CodegenTarget, Compiler, host_features
from twofold.models.read import read_model


class Roofline:
    """The limits of a model on this machine. Made after the first answer: measuring must not delay it."""

    def __init__(self, generator: Generator) -> None:
        self._config = generator.llm.config
        self._cache = CacheFolders.of()
        self._isa = choose(host_features(), self._config.isa)
        self._threads = self._config.threads or read_cpu().usable_cores
        with GGUFFile.open(generator.path) as file:
            spec, _ = read_model(file.metadata, file.tensors, file.data)
            self._cost = ModelCost.of(spec, file.tensors)
        self._value_bytes = KV_FORMATS[self._config.kv_type].nbytes(1, 1)
        compiler = Compiler(CodegenTarget.of(self._isa), self._cache.kernels)
        self._machine = limits_for(compiler, self._threads, self._cache.root, self._cost.weight_bytes)

    @classmethod
    def measured(cls, generator: Generator) -> Self | None:
        """The limits, or None where the machine does not let itself be measured."""
        try:
            return cls(generator)
        except (TwofoldError, OSError):
            return None

    def explain(self, report: RequestReport) -> list[str]:
        """Where the time of a request went, in lines."""
        return explain_request(report, self._cost, self._machine, self._value_bytes)

    def cost(self, report: RequestReport) -> RequestCost:
        """Bytes and multiply-adds of a request."""
        return RequestCost.of(report.record, self._cost, self._value_bytes)

    def shares(self, metrics: RequestMetrics) -> RooflineShares:
        """Shares of the limits. More than all of one shows that it was measured on a busy machine: it is done again."""
        shares = self._shares(metrics)
        if shares.highest > 1:
            with suppress(TwofoldError, OSError):
                self._machine = self._probed()
            shares = self._shares(metrics)
        return shares

    def _shares(self, metrics: RequestMetrics) -> RooflineShares:
        prefill = prefill_limit(
            self._cost,
            self._machine,
            metrics.fresh_tokens,
            cached=metrics.cached_tokens,
            chunk=self._config.limits.rows,
        )
        decode = decode_limit(
            self._cost, self._machine, metrics.prompt_tokens, metrics.output_tokens, value_bytes=self._value_bytes
        )
        done = metrics.first_token is not None
        return RooflineShares(_reached(prefill, metrics.prefill_s if done else 0.0), _reached(decode, metrics.decode_s))

    def _probed(self) -> MachineLimits:
        compiler = Compiler(CodegenTarget.of(self._isa), self._cache.kernels)
        return remeasured(compiler, self._threads, self._cache.root, (probe_size(self._cost.weight_bytes),))


def _reached(limit: PhaseLimit, measured_s: float) -> PhaseShare | None:
    share = limit.share(measured_s)
    return None if share is None else PhaseShare(share, limit.bound)


def as_json(
    generator: Generator, output: RequestOutput, report: RequestReport, roofline: Roofline | None
) -> dict[str, Any]:
    """The answer for machines. Times are seconds; what did not happen is null."""
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
        "work": None if roofline is None else _work(report, roofline.cost(report)),
    }


def _work(report: RequestReport, cost: RequestCost) -> dict[str, Any]:
    """What each phase took, and was expected to take; bytes are its part of what its steps moved."""
    phases = (("prefill", report.record.prefill, cost.prefill), ("decode", report.record.decode, cost.decode))
    return {
        name: {
            "rows": work.rows,
            "steps": work.steps,
            "flops": done.flops,
            "weight_bytes": done.weight_bytes,
            "kv_read_bytes": done.kv_read_bytes,
            "kv_written_bytes": done.kv_written_bytes,
            "steps_s": work.seconds,
            "predicted_s": work.predicted_s,
        }
        for name, work, done in phases
    }

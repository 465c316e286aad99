"""A model that runs in this process, and the shares of this machine's limits that its completions reached."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from twofold.cli.chat.base import ChatCompletion, Message, PromptRequest
from twofold.cli.chat.phases import (
    PhaseShare,
    RooflineShares,
    decode_speed,
    draw_timeline,
    phase_line,
    prefill_speed,
)
from twofold.cli.console import DownloadProgress, Write, interrupts
from twofold.cli.loading import loaded_model
from twofold.cli.options import ModelOptions
from twofold.core.errors import ContextLengthError, TwofoldError, UsageError
from twofold.core.limits import MachineLimits
from twofold.core.report import RequestMetrics
from twofold.core.sampling_defaults import SamplingDefaults
from twofold.core.units import count
from twofold.engine.llm import LLM
from twofold.engine.load import LoadedModel
from twofold.engine.outputs import RequestOutput
from twofold.formats.fetch import sources
from twofold.host.paths import CacheFolders
from twofold.planner.count.memory import streamed_bytes
from twofold.planner.predict.phase import PhaseCost, PhaseLimit, decode_limit, local_steps, prefill_limit
from twofold.planner.predict.steps import StepPredictor


class LocalModel:
    """``ChatModel`` with an engine in this process. Downloads the model if needed, and loads it.

    trace   file for a trace of all steps
    limits  whether to compare completions with the limits of this machine
    """

    def __init__(self, options: ModelOptions, trace: Path | None = None, *, limits: bool = False) -> None:
        self._options = options
        self._trace = trace
        self._limits = limits
        self._last: RequestOutput | None = None
        self._open()

    @property
    def name(self) -> str:
        return self._found.name

    @property
    def context(self) -> int:
        return self._llm.config.context

    @property
    def has_template(self) -> bool:
        return self._llm.get_tokenizer().has_chat_template

    @property
    def defaults(self) -> SamplingDefaults:
        return self._llm.loaded.sampling

    def complete(self, request: PromptRequest, write: Write) -> ChatCompletion:
        """``ChatModel.complete``. Ctrl-C ends it between two steps; a second Ctrl-C raises KeyboardInterrupt."""
        prompt, params = request.prompt, request.sampling.params(request.structure, self.defaults)
        given = self._llm.engine.request(
            prompt if isinstance(prompt, str) else self._rendered(prompt, request.room), params
        )
        with interrupts() as interrupted, closing(self._llm.client.stream(given, interrupted.is_set)) as deltas:
            for delta in deltas:
                write(delta.text)
        output = delta.request
        assert output is not None, "the last delta carries the whole request"
        stopped, completion = delta.finish_reason == "abort", output.outputs[0]
        self._last = output
        self._roofline = _measure_roofline(self._llm.loaded) if self._limits and not stopped else None
        return ChatCompletion(
            completion.text,
            None if stopped else completion.finish_reason,
            output.metrics.prompt_tokens,
            output.metrics.output_tokens,
            output.metrics.repeats,
        )

    def statistics(self) -> str:
        if self._last is None:
            return ""
        metrics = self._last.metrics
        return phase_line(metrics, None if self._roofline is None else self._roofline.shares(metrics))

    def explain(self) -> list[str]:
        if self._last is None:
            return []
        from twofold.planner.explain.lines import explain_request  # noqa: PLC0415 - start-up time

        metrics = self._last.metrics
        roofline = self._roofline or _measure_roofline(self._llm.loaded)
        drawn = draw_timeline(metrics, get_terminal_size().columns).splitlines()
        return drawn if roofline is None else [*drawn, *explain_request(metrics, roofline.steps)]

    def loading(self) -> str:
        """Load times, context and threads."""
        loaded, config = self._llm.loaded, self._llm.config
        given = config.options.backend_options.get("threads")
        threads = "" if given is None else f", {count(given, 'thread')}"
        return (
            f"{self.name}: loaded in {loaded.load_s:.2f} s, kernels in {loaded.compile_s:.2f} s; "
            f"context {config.context:,} tokens{threads}"
        )

    def as_json(self) -> dict[str, Any]:
        """``ChatModel.as_json``. Times are seconds; phases that did not run are null."""
        assert self._last is not None, "there is a completion"
        completion, metrics, loaded = self._last.outputs[0], self._last.metrics, self._llm.loaded
        return {
            "model": self.name,
            "text": completion.text,
            "token_ids": completion.token_ids,
            "finish_reason": completion.finish_reason,
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
            "repeats": None if metrics.repeats is None else metrics.repeats._asdict(),
            "stalls": {cause.name.lower(): seconds for cause, seconds in metrics.record.stalls.items()},
            "speculation": {
                "drafted_tokens": metrics.record.drafted,
                "accepted_tokens": metrics.record.accepted,
                "saved_s": metrics.record.saved_s,
            },
            "limit": None if self._roofline is None else asdict(self._roofline.shares(metrics)),
            "work": None if self._roofline is None else self._roofline.work(metrics),
        }

    def models(self) -> list[str]:
        """``ChatModel.models``: the downloaded models."""
        return [model.name for model in sources.installed(CacheFolders.of().models)]

    def use(self, name: str) -> None:
        """``ChatModel.use``. Closes the current model first: two models may not fit into memory."""
        if self._trace is not None:
            raise UsageError("A chat with --trace keeps its model.", hint="Start another chat.")
        sources.resolve(name, cache=CacheFolders.of().create().models, progress=DownloadProgress())
        before = self._options
        self.close()
        self._options = replace(before, model=name)
        try:
            self._open()
        except TwofoldError:
            self._options = before
            self._open()
            raise

    def close(self) -> None:
        self._stack.close()

    def _open(self) -> None:
        self._last, self._roofline = None, None
        with ExitStack() as stack:
            self._llm: LLM
            self._found: sources.ResolvedModel
            self._llm, self._found = stack.enter_context(loaded_model(self._options, self._trace))
            self._stack = stack.pop_all()

    def _rendered(self, messages: Sequence[Message], room: int) -> tuple[int, ...]:
        """The token ids of a conversation. Raises ContextLengthError, and TemplateError if the template rejects it."""
        ids = self._llm.chat_prompt(messages)
        if len(ids) + room > self.context:
            raise ContextLengthError(
                f"The prompt has {len(ids):,} tokens; it does not fit the context of {self.context:,}.",
                hint="Shorten the prompt, or raise the context with -c if the model allows it.",
            )
        return ids


class Roofline:
    """The limits of a model on this machine. Create it after a completion, since the measurement would delay one."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._config, self._shape = loaded.config, loaded.spec
        self._probe = self._config.options.open_backend().probe(streamed_bytes(self._shape))
        self.steps = self._predictor(self._probe.limits())

    def shares(self, metrics: RequestMetrics) -> RooflineShares:
        """Shares of the limits. A share above 1 shows that the limit was measured on a busy machine: repeat it."""
        shares = self._shares(metrics)
        if shares.highest > 1:
            with suppress(TwofoldError, OSError):
                self.steps = self._predictor(self._probe.again())
            shares = self._shares(metrics)
        return shares

    def work(self, metrics: RequestMetrics) -> dict[str, Any]:
        """Measured and predicted cost of each phase; bytes are the request's part of the bytes of its steps."""
        phases = (("prefill", metrics.record.prefill), ("decode", metrics.record.decode))
        return {
            name: {
                "rows": work.rows,
                "steps": work.steps,
                **asdict(PhaseCost.of(work, self.steps.cost)),
                "steps_s": work.seconds,
                "predicted_s": work.predicted_s,
            }
            for name, work in phases
        }

    def _shares(self, metrics: RequestMetrics) -> RooflineShares:
        chunk = self._config.limits.rows
        prefill = prefill_limit(self.steps, metrics.fresh_tokens, cached=metrics.cached_tokens, chunk=chunk)
        decode = decode_limit(self.steps, metrics.prompt_tokens, metrics.output_tokens)
        done = metrics.first_token is not None
        return RooflineShares(_share(prefill, metrics.prefill_s if done else 0.0), _share(decode, metrics.decode_s))

    def _predictor(self, machine: MachineLimits) -> StepPredictor:
        return local_steps(self._shape, machine, self._config.options.kv_type)


def _measure_roofline(loaded: LoadedModel) -> Roofline | None:
    """The roofline, or None if the limits cannot be measured."""
    try:
        return Roofline(loaded)
    except (TwofoldError, OSError):
        return None


def _share(limit: PhaseLimit, measured_s: float) -> PhaseShare | None:
    share = limit.share(measured_s)
    return None if share is None else PhaseShare(share, limit.bound)

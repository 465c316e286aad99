"""Flags of ``twofold bench``: requests, load, measurement and output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter

from twofold.cli.options import DURATION, FLAG, LIST
from twofold.core.errors import ParameterError

if TYPE_CHECKING:
    from twofold.bench.load.base import Prompt
    from twofold.bench.load.replay import TraceReplay, TraceScale
    from twofold.bench.load.synthetic import LoadPlan

    MakeReplay: TypeAlias = Callable[[Prompt, TraceScale, int | None, int | None], TraceReplay]

EndpointName: TypeAlias = Literal["chat", "completions", "messages"]
ArrivalName: TypeAlias = Literal["poisson", "constant", "gamma"]
TraceFormat: TypeAlias = Literal["azure", "mooncake", "twofold"]


@Parameter(name="*", group="Request")
@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequestOptions:
    """Endpoint, fields and headers of each request."""

    endpoint: Annotated[
        EndpointName, Parameter(help="API endpoint: OpenAI chat or completions, or Anthropic messages.")
    ] = "chat"
    stream: Annotated[bool, Parameter(help="Stream responses; without it there is no TPOT.")] = True
    temperature: Annotated[
        float | None, Parameter(name=("--temperature", "--temp"), help="Sampling temperature (default: the server's).")
    ] = None
    ignore_eos: Annotated[
        bool | None, Parameter(help="Generate the full length (vLLM's ignore_eos; OpenAI rejects it).")
    ] = None
    max_completion_tokens: Annotated[
        bool, FLAG, Parameter(help="Send the output limit as max_completion_tokens, as OpenAI's models require.")
    ] = False
    extra_body: Annotated[str | None, Parameter(help="JSON object merged into each request body.")] = None
    header: Annotated[list[str], LIST, Parameter(help="Additional header, NAME:VALUE; repeatable.")] = field(
        default_factory=list
    )
    tokenizer: Annotated[
        str | None,
        Parameter(help="Tokenizer for token counts: a model, tokenizer.json or folder (default: the server's)."),
    ] = None


InputTokens: TypeAlias = Annotated[
    str,
    Parameter(
        name=("--input-tokens", "--random-input-len"),
        help="Prompt tokens: 512, 256-1024, normal:512,64 or lognormal:512,0.8.",
    ),
]
OutputTokens: TypeAlias = Annotated[
    str, Parameter(name=("--output-tokens", "--random-output-len"), help="Max output tokens, as --input-tokens.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthOptions:
    """Lengths of synthetic requests, and shared prefixes of their prompts."""

    input_tokens: InputTokens = "512"
    output_tokens: OutputTokens = "128"
    shared_prefix: Annotated[float, Parameter(help="Share of each prompt that is a shared prefix.")] = 0.0
    prefix_groups: Annotated[int, Parameter(help="Number of different shared prefixes.")] = 1

    def lengths(self) -> dict[str, Any]:
        """Fields of ``LoadPlan``. Raises ParameterError for invalid values."""
        from twofold.bench.load.lengths import parse_lengths  # noqa: PLC0415 - start-up time
        from twofold.bench.load.synthetic import SharedPrefix  # noqa: PLC0415

        if not self.shared_prefix and self.prefix_groups != 1:
            raise ParameterError("prefix-groups needs a --shared-prefix.", param="prefix-groups")
        return {
            "input_tokens": parse_lengths(self.input_tokens, "input-tokens"),
            "output_tokens": parse_lengths(self.output_tokens, "output-tokens"),
            "shared": SharedPrefix(self.shared_prefix, groups=self.prefix_groups) if self.shared_prefix else None,
        }


@Parameter(name="*", group="Load")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions(LengthOptions):
    """A synthetic load. --rate: open loop. --concurrency: closed loop. Both: open loop with limited concurrency."""

    rate: Annotated[
        float | None, Parameter(name=("--rate", "--request-rate"), help="Request (or session) rate per second.")
    ] = None
    concurrency: Annotated[
        int | None, Parameter(name=("--concurrency", "--max-concurrency"), help="Max concurrent requests.")
    ] = None
    duration: Annotated[float | None, DURATION, Parameter(help="Duration in seconds (default: 60).")] = None
    requests: Annotated[
        int | None, Parameter(name=("--requests", "--num-prompts"), help="Number of requests, instead of a duration.")
    ] = None
    arrivals: Annotated[ArrivalName, Parameter(help="Arrival process.")] = "poisson"
    burstiness: Annotated[
        float | None, Parameter(help="Burstiness of gamma arrivals: 1 is Poisson, below 1 bursty, above 1 even.")
    ] = None
    ramp: Annotated[float, DURATION, Parameter(help="Ramp-up time of a closed loop in seconds.")] = 0.0
    turns: Annotated[str, Parameter(help="Turns per session; each turn resends the conversation.")] = "1"
    think_time: Annotated[str, Parameter(help="Seconds between a reply and the next turn, as --input-tokens.")] = "0"
    seed: Annotated[
        int | None,
        Parameter(
            name=("--seed", "-s"),
            help="Seed for arrival times, lengths and prompt text (default: 0, with new prompt text each run).",
        ),
    ] = None

    def plan(self) -> LoadPlan:
        """The plan of the load. Raises ParameterError for invalid values."""
        from twofold.bench.load.lengths import parse_lengths, parse_pauses  # noqa: PLC0415 - start-up time
        from twofold.bench.load.synthetic import LoadPlan  # noqa: PLC0415

        return LoadPlan(
            rate=self.rate,
            concurrency=self.concurrency,
            duration_s=self.duration,
            requests=self.requests,
            kind="gamma" if self.burstiness is not None and self.arrivals == "poisson" else self.arrivals,
            burstiness=1.0 if self.burstiness is None else self.burstiness,
            ramp_s=self.ramp,
            turns=parse_lengths(self.turns, "turns"),
            pauses=parse_pauses(self.think_time, "think-time"),
            **self.lengths(),
        )


@Parameter(name="*", group="Trace")
@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Recorded requests, instead of a synthetic load."""

    trace: Annotated[
        Path | None, Parameter(help="Trace file: Azure CSV, Mooncake JSONL or Twofold JSONL; .gz too.")
    ] = None
    trace_format: Annotated[TraceFormat | None, Parameter(help="Trace format (default: detected).")] = None
    time_scale: Annotated[
        float, Parameter(help="Replay speed; 2 is twice as fast. --rate scales to a mean rate instead.")
    ] = 1.0
    input_scale: Annotated[float, Parameter(help="Factor on prompt lengths.")] = 1.0
    output_scale: Annotated[float, Parameter(help="Factor on output lengths.")] = 1.0
    trace_from: Annotated[float, DURATION, Parameter(help="Skip this many seconds of the trace.")] = 0.0
    trace_until: Annotated[float | None, DURATION, Parameter(help="Stop at this second of the trace.")] = None
    block_tokens: Annotated[int, Parameter(help="Tokens per block in Mooncake's format.")] = 512
    skip_bad: Annotated[bool, FLAG, Parameter(help="Skip and count invalid lines of the trace.")] = False

    def scale(self, rate: float | None) -> TraceScale:
        """The scale of the trace: to a mean ``rate``, or by --time-scale if it is None. Raises ParameterError."""
        from twofold.bench.load.replay import TraceScale  # noqa: PLC0415 - start-up time

        return TraceScale(self.time_scale, rate, self.input_scale, self.output_scale)

    def replay(self) -> MakeReplay:
        """Reads the trace. The result takes the prompt function, scale, number of requests and limit of open ones.

        Raises ParameterError for invalid lines and values.
        """
        from twofold.bench.load.replay import TracePart, TraceReplay  # noqa: PLC0415
        from twofold.bench.load.trace import read_trace  # noqa: PLC0415 - start-up time

        assert self.trace is not None, "there is a trace"
        trace = read_trace(self.trace, form=self.trace_format, skip_bad=self.skip_bad, block_tokens=self.block_tokens)

        def make(prompt: Prompt, scale: TraceScale, requests: int | None, max_open: int | None) -> TraceReplay:
            part = TracePart(self.trace_from, self.trace_until, requests)
            return TraceReplay(trace, prompt, part=part, scale=scale, max_open=max_open)

        return make


@Parameter(name="*", group="Measurement")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """Objectives, sweeps, searches, and the measured part of a run."""

    slo: Annotated[
        str | None,
        Parameter(
            help="Objective, e.g. ttft=500ms,tpot=50ms,e2e=10s; without a load, find the highest rate that meets it."
        ),
    ] = None
    attainment: Annotated[float, Parameter(help="Share of requests that must meet the objective.")] = 0.9
    confidence: Annotated[float, Parameter(help="Confidence of the search's decisions.")] = 0.9
    precision: Annotated[float, Parameter(help="Precision of the search, relative to the rate.")] = 0.05
    rates: Annotated[str | None, Parameter(help="Sweep over rates: 1,2,4 or 1..16x2.")] = None
    concurrencies: Annotated[str | None, Parameter(help="Sweep over concurrencies, as --rates.")] = None
    warmup: Annotated[float, DURATION, Parameter(help="Warm-up: ignore requests of the first seconds.")] = 0.0
    cooldown: Annotated[float, DURATION, Parameter(help="Cool-down: ignore requests of the last seconds.")] = 0.0
    drain: Annotated[float, DURATION, Parameter(help="Seconds to wait for open requests at the end.")] = 60.0
    request_timeout: Annotated[float, DURATION, Parameter(help="Request timeout in seconds.")] = 600.0
    reuse_connections: Annotated[bool, Parameter(help="Reuse connections.")] = True


@Parameter(name="*", group="Output")
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Output of the result."""

    json: Annotated[bool, FLAG, Parameter(help="Print the result as JSON, without individual requests.")] = False
    output: Annotated[
        list[Path],
        Parameter(
            name=("--output", "-o"),
            negative=(),
            show_default=False,
            help="Output file: .json, .csv, .html, or .jsonl (the requests as a trace); repeatable.",
        ),
    ] = field(default_factory=list)
    chunks: Annotated[bool, Parameter(help="Store every gap between chunks in the JSON file.")] = True
    quiet: Annotated[bool, FLAG, Parameter(help="Hide progress.")] = False

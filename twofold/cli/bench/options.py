"""Flags of ``twofold bench``: whom to ask, what and when, what to find out, and where to write it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter

from twofold.cli.options import DURATION, FLAG, LIST

EndpointName: TypeAlias = Literal["chat", "completions", "messages"]
ArrivalName: TypeAlias = Literal["poisson", "constant", "gamma"]
TraceFormat: TypeAlias = Literal["azure", "mooncake", "twofold"]


@Parameter(name="*", group="Request")
@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What each request says."""

    endpoint: Annotated[EndpointName, Parameter(help="OpenAI's chat or completions, or Anthropic's messages.")] = "chat"
    stream: Annotated[bool, Parameter(help="Asks for the answer as it comes; else it has no TPOT.")] = True
    temperature: Annotated[
        float | None, Parameter(name=("--temperature", "--temp"), help="Left to the server if left out.")
    ] = None
    ignore_eos: Annotated[
        bool | None, Parameter(help="Asks for answers of the full length: vLLM's field, which OpenAI does not know.")
    ] = None
    max_completion_tokens: Annotated[
        bool, FLAG, Parameter(help="Says the length as max_completion_tokens, as OpenAI's own models want it.")
    ] = False
    extra_body: Annotated[str | None, Parameter(help="A JSON object that is added to each request.")] = None
    header: Annotated[list[str], LIST, Parameter(help="NAME:VALUE of a header; may be repeated.")] = field(
        default_factory=list
    )
    tokenizer: Annotated[
        str | None,
        Parameter(help="A model, tokenizer.json or folder to count tokens with; the server's own if left out."),
    ] = None


@Parameter(name="*", group="Load")
@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Who asks when. A rate is an open loop; a concurrency alone is a closed one; both cap what is open."""

    rate: Annotated[
        float | None, Parameter(name=("--rate", "--request-rate"), help="Requests (or sessions) a second.")
    ] = None
    concurrency: Annotated[
        int | None, Parameter(name=("--concurrency", "--max-concurrency"), help="Most requests open at once.")
    ] = None
    duration: Annotated[
        float | None, DURATION, Parameter(help="Seconds in which requests become due; 60 if left out.")
    ] = None
    requests: Annotated[
        int | None, Parameter(name=("--requests", "--num-prompts"), help="How many requests, instead of how long.")
    ] = None
    arrivals: Annotated[ArrivalName, Parameter(help="How the gaps between requests vary.")] = "poisson"
    burstiness: Annotated[
        float | None, Parameter(help="Of gamma arrivals: 1 is Poisson, less comes in bursts, more is even.")
    ] = None
    ramp: Annotated[float, DURATION, Parameter(help="Seconds over which a closed loop starts.")] = 0.0
    input_tokens: Annotated[
        str,
        Parameter(
            name=("--input-tokens", "--random-input-len"), help="512, 256-1024, normal:512,64, lognormal:512,0.8."
        ),
    ] = "512"
    output_tokens: Annotated[
        str, Parameter(name=("--output-tokens", "--random-output-len"), help="Most tokens of an answer, likewise.")
    ] = "128"
    shared_prefix: Annotated[float, Parameter(help="Share of each prompt that it has in common with others.")] = 0.0
    prefix_groups: Annotated[int, Parameter(help="How many different beginnings there are.")] = 1
    turns: Annotated[str, Parameter(help="Turns of a session: each says again what was said before.")] = "1"
    think_time: Annotated[str, Parameter(help="Seconds between an answer and the next turn, likewise.")] = "0"
    seed: Annotated[
        int | None,
        Parameter(
            name=("--seed", "-s"),
            help="Equal seeds ask the same at equal times. Left out, times are those of 0, and prompts are new.",
        ),
    ] = None


@Parameter(name="*", group="Trace")
@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Requests as they came to somebody: instead of the load."""

    trace: Annotated[Path | None, Parameter(help="Azure's CSV, Mooncake's JSONL, or our own JSONL; .gz too.")] = None
    trace_format: Annotated[TraceFormat | None, Parameter(help="Which of them; seen from the file if left out.")] = None
    time_scale: Annotated[float, Parameter(help="2 replays twice as fast. --rate does so to reach a mean rate.")] = 1.0
    input_scale: Annotated[float, Parameter(help="Multiplies the lengths of prompts.")] = 1.0
    output_scale: Annotated[float, Parameter(help="Multiplies the lengths of answers.")] = 1.0
    trace_from: Annotated[float, DURATION, Parameter(help="Seconds of the trace to leave out at its start.")] = 0.0
    trace_until: Annotated[float | None, DURATION, Parameter(help="Seconds of the trace at which to stop.")] = None
    block_tokens: Annotated[int, Parameter(help="Tokens of a block in Mooncake's format.")] = 512
    skip_bad: Annotated[bool, FLAG, Parameter(help="Leaves bad lines of the trace out, and counts them.")] = False


@Parameter(name="*", group="Measurement")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """What counts, and what to find out."""

    slo: Annotated[
        str | None,
        Parameter(help="ttft=500ms,tpot=50ms,e2e=10s: without a load, finds the highest rate that meets it."),
    ] = None
    attainment: Annotated[float, Parameter(help="Share of requests that must meet it.")] = 0.9
    confidence: Annotated[float, Parameter(help="Of the search's decisions.")] = 0.9
    precision: Annotated[float, Parameter(help="How near the search comes, as a share of the rate.")] = 0.05
    rates: Annotated[str | None, Parameter(help="1,2,4 or 1..16x2: measures each, and draws the curve.")] = None
    concurrencies: Annotated[str | None, Parameter(help="The same for closed loops.")] = None
    warmup: Annotated[float, DURATION, Parameter(help="Seconds at the start whose requests do not count.")] = 0.0
    cooldown: Annotated[float, DURATION, Parameter(help="Seconds at the end whose requests do not count.")] = 0.0
    drain: Annotated[float, DURATION, Parameter(help="Seconds to wait for what is open after the last was due.")] = 60.0
    request_timeout: Annotated[float, DURATION, Parameter(help="Seconds after which a request counts as failed.")] = (
        600.0
    )
    reuse_connections: Annotated[bool, Parameter(help="Keeps connections open for further requests.")] = True


@Parameter(name="*", group="Output")
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Where the result goes."""

    json: Annotated[bool, FLAG, Parameter(help="Prints the result as JSON, for machines, without single requests.")] = (
        False
    )
    output: Annotated[
        list[Path],
        Parameter(
            name=("--output", "-o"),
            negative=(),
            show_default=False,
            help="A .json, .csv or .html file to write, or .jsonl: the requests as a trace; may be repeated.",
        ),
    ] = field(default_factory=list)
    chunks: Annotated[bool, Parameter(help="Keeps every gap between chunks in the JSON file.")] = True
    quiet: Annotated[bool, FLAG, Parameter(help="Shows no progress.")] = False

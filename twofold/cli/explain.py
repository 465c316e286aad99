"""``twofold explain``: the phases of a request, the floor of each, and the levers that reduce its time."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Final

from cyclopts import Parameter

from twofold.bench.draw.chart import Chart
from twofold.bench.draw.form import duration
from twofold.bench.draw.svg import svg as draw
from twofold.bench.draw.terminal import plot
from twofold.cli.console import note, print_json, print_lines, write_file, write_out
from twofold.cli.hardware import LocalNames
from twofold.cli.options import LIST, Json
from twofold.core.errors import AccessError, NotFoundError, ParameterError
from twofold.planner.explain import report
from twofold.planner.explain.question import ExplainQuestion
from twofold.planner.explain.scenario import Goal, Observed
from twofold.planner.explain.sources import DocumentFields, read_observed
from twofold.planner.predict.speculation import TextClass

TIMEOUT_S: Final = 30.0
RECORDS: Final = "/v1/twofold/requests/"
LISTED: Final = 10
"""Requests of a server that are listed."""
SVG_HEIGHT: Final = 380
MIN_WIDTH, MAX_WIDTH = 80, 120


@Parameter(name="*", group="Scenario")
@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOptions:
    """A model on a machine, and the sizes of a request. With a source, sizes default to those of its request."""

    model: Annotated[
        str | None,
        Parameter(
            name=("--model", "-m"),
            help="Model: GGUF file, config.json or its folder, alias of a cached model, or known name: llama-3-70b.",
        ),
    ] = None
    hardware: Annotated[
        str | None, Parameter(help='Hardware: h100, epyc-9654 (default: "this", the local machine).')
    ] = None
    input_tokens: Annotated[int | None, Parameter(help="Prompt tokens per request (default: 512).")] = None
    cached: Annotated[int | None, Parameter(help="Prompt tokens served from the prefix cache (default: 0).")] = None
    output_tokens: Annotated[int | None, Parameter(help="Output tokens per request (default: 128).")] = None
    batch: Annotated[
        int | None, Parameter(name=("--batch", "--concurrency"), help="Concurrent requests (default: 1).")
    ] = None
    loaded: Annotated[
        int | None,
        Parameter(help="Prompt tokens after the cached ones whose KV cache is loaded from disk (default: 0)."),
    ] = None
    disk_gbs: Annotated[
        float | None, Parameter(help="Bandwidth of the disk in GB/s (default: the machine's, or 1.2).")
    ] = None
    chunk: Annotated[
        int | None,
        Parameter(name=("--chunk", "--max-num-batched-tokens"), help="Max tokens per step (default: whole prompts)."),
    ] = None
    tp: Annotated[int, Parameter(name=("--tp", "--tensor-parallel-size"), help="Tensor-parallel size.")] = 1
    weights: Annotated[
        str | None, Parameter(help="Weight format: bf16, fp8, int4, Q4_K (default: the model's own).")
    ] = None
    kv: Annotated[
        str | None,
        Parameter(name=("--kv", "--kv-cache-dtype"), help="KV cache format, such as q8, k8v4 or fp8 (default: bf16)."),
    ] = None


@Parameter(name="*", group="Levers")
@dataclass(frozen=True, slots=True, kw_only=True)
class LeverOptions:
    """The metric by which levers are ranked, and assumptions about them."""

    goal: Annotated[
        Goal,
        Parameter(name=("--for", "--goal"), help="Metric to rank levers by."),
    ] = "e2e"
    top: Annotated[int, Parameter(help="Number of levers to describe in full.")] = 6
    text: Annotated[TextClass, Parameter(help="Class of the outputs, which says how many draft tokens are right.")] = (
        "prose"
    )
    acceptance: Annotated[
        float | None, Parameter(help="Acceptance rate of draft tokens (default: that of the class of text).")
    ] = None
    draft_cost: Annotated[
        float | None,
        Parameter(help="Time to draft a token, as a share of a step (default: none, or that of the draft model)."),
    ] = None
    keep: Annotated[float, Parameter(help="Share of the prompt that compression keeps.")] = 0.5
    scorer: Annotated[
        str | None, Parameter(help="Model that scores prompts for compression (default: a much smaller one).")
    ] = None
    levers: Annotated[
        list[str] | None,
        LIST,
        Parameter(name="--lever", help="Lever to apply first, by its name in the list; repeatable."),
    ] = None
    shared: Annotated[
        float, Parameter(help="Share of the uncached prompt that a prefix cache or a store could hold.")
    ] = 0.5


def explain(
    source: Annotated[
        str | None,
        Parameter(
            help="Request record, response with one, or output of `run --json` or `bench --json`: file, - or URL."
        ),
    ] = None,
    /,
    *,
    request: Annotated[
        str | None,
        Parameter(help="Request to explain: index or percentile (p99) of a bench, or request id of a server."),
    ] = None,
    api_key: Annotated[str | None, Parameter(help="API key of the server.")] = None,
    svg: Annotated[Path | None, Parameter(help="Write the roofline as SVG.")] = None,
    json: Json = False,
    scenario: ScenarioOptions = ScenarioOptions(),
    levers: LeverOptions = LeverOptions(),
) -> None:
    """Explain where a request's time goes, and what would make it faster."""
    _check_svg(svg)
    if source is not None and _is_url(source) and not _record_of(source, request)[1]:
        _list_requests(source, api_key, json=json)
        return
    fields = asdict(scenario) | asdict(levers)
    top = fields.pop("top")
    question = ExplainQuestion(**fields)
    observed = None if source is None else _read(source, request, api_key, levers.goal)
    explanation = question.answer(LocalNames(), observed)
    chart = explanation.chart
    if svg is not None:
        _draw(chart, svg)
    if json:
        print_json(explanation.document)
        return
    width = min(max(get_terminal_size().columns, MIN_WIDTH), MAX_WIDTH)
    print_lines(report.lines(explanation, levers=top, width=width))
    if chart is not None:
        write_out("\n" + plot(chart, width=width) + "\n")


def _read(source: str, request: str | None, api_key: str | None, goal: Goal) -> Observed:
    if _is_url(source):
        return read_observed(_fetch(*_record_of(source, request), api_key), source)
    if source == "-":
        return read_observed(sys.stdin.buffer.read(), "standard input", request, goal)
    try:
        text = Path(source).expanduser().read_bytes()
    except OSError as error:
        raise ParameterError(
            f"{source} cannot be read: {error.strerror or error}.",
            param="source",
            hint="Give a file, a server's URL, or - for standard input.",
        ) from None
    return read_observed(text, source, request, goal)


def _is_url(source: str) -> bool:
    return re.match(r"https?://|[\w.-]+:\d+(/|$)", source) is not None


def _record_of(url: str, request: str | None) -> tuple[str, str]:
    """A server, and the id of one of its requests: from the URL, or else ``request``; empty if neither has one."""
    base, _, request_id = url.partition(RECORDS)
    return base, request_id.strip("/") or request or ""


def _fetch(server: str, request_id: str, api_key: str | None) -> bytes:
    """The record of a request from a server; without an id the list of its last requests."""
    from twofold.bench.client.target import ServerTarget, exchange  # noqa: PLC0415

    target = ServerTarget.of(server)
    key = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    path = f"{RECORDS}{request_id}" if request_id else f"{RECORDS.rstrip('/')}?limit={LISTED}"
    status, _, body = exchange(target, "GET", path, None, key, TIMEOUT_S)
    if status in {401, 403}:
        raise AccessError(f"{target} denies access to the record.", hint="Give the key with --api-key.")
    if status != 200:
        raise NotFoundError(
            f"{target} has no record of {request_id or 'requests'!r:.80} (status {status}).",
            hint="A running `twofold serve` keeps records of its most recent requests.",
        )
    return body


def _list_requests(url: str, api_key: str | None, *, json: bool) -> None:
    """Prints the last requests of a server, the slowest first: id, seconds and tokens."""
    base, _ = _record_of(url, None)
    found = DocumentFields.parse(_fetch(base, "", api_key), "the list of requests", "").parts("data")
    requests = [each for each in found if each.count("prompt_tokens")]  # others, such as live views, have no phases
    requests.sort(key=lambda each: -each.number("seconds"))
    if json:
        print_json([each.values for each in requests])
        return
    for each in requests:
        prompt, output = each.count("prompt_tokens"), each.count("output_tokens")
        model = each.optional_text("model") or "no model"
        seconds = duration(each.number("seconds"))
        write_out(f"{each.text('id')}  {seconds}, {prompt:,} → {output:,} tokens, {model}\n")
    note(f"To explain one: twofold explain {base} --request ID" if requests else "The server has no requests yet.")


def _check_svg(svg: Path | None) -> None:
    if svg is not None and svg.suffix.lower() not in {".svg", ""}:
        raise ParameterError(
            f"The roofline is written as SVG, not as {svg.suffix}.", param="svg", hint="Name it roofline.svg."
        )


def _draw(chart: Chart | None, path: Path) -> None:
    if chart is None:
        raise ParameterError(
            "A roofline needs a model and a machine.", param="svg", hint="Name them with --model and --hardware."
        )
    write_file(path, draw(chart, height=SVG_HEIGHT, standalone=True) + "\n")

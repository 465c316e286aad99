"""``twofold explain``: the phases of a request, the floor of each, and the levers that reduce its time."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Final

from cyclopts import Parameter

from twofold.bench.draw.form import duration
from twofold.bench.draw.svg import svg as draw
from twofold.bench.draw.terminal import plot
from twofold.cli.console import note, print_json, print_lines, write_file, write_out
from twofold.cli.hardware import HERE, local_machine
from twofold.cli.options import LIST, Json
from twofold.core.errors import AccessError, ModelNotFoundError, NotFoundError, ParameterError
from twofold.core.kv_layout import find_kv_format
from twofold.core.model import ModelSpec
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.explain import report
from twofold.planner.explain.lever import Assumptions
from twofold.planner.explain.picture import roofline
from twofold.planner.explain.scenario import Goal, Observed, UniformScenario
from twofold.planner.explain.sources import DocumentFields, read_observed
from twofold.planner.machines.known import find_machine
from twofold.planner.machines.machine import engine_setting
from twofold.planner.predict.request import Case
from twofold.planner.predict.speculation import TextClass
from twofold.planner.shapes.known import resolve_shape

TIMEOUT_S: Final = 30.0
RECORDS: Final = "/v1/twofold/requests/"
LISTED: Final = 10
"""Requests of a server that are listed."""
SVG_HEIGHT: Final = 380
MIN_WIDTH, MAX_WIDTH = 80, 120


@Parameter(name="*", group="Scenario")
@dataclass(frozen=True, slots=True, kw_only=True)
class WhatOptions:
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

    def how(self, base: Setting = PLAIN) -> Setting:
        """``base`` with the KV format and tensor-parallel size of the flags."""
        kv = base.kv if self.kv is None else find_kv_format(self.kv)
        return replace(base, tp=self.tp, kv=kv)

    def case(self, like: Case | None = None) -> Case:
        """The sizes of the flags; others are from ``like``, or else 512 prompt and 128 output tokens."""
        given = {
            "prompt": self.input_tokens,
            "output": self.output_tokens,
            "cached": self.cached,
            "concurrency": self.batch,
            "chunk": self.chunk,
            "loaded": self.loaded,
        }
        base = like or Case(prompt=512, output=128)
        return replace(base, **{name: value for name, value in given.items() if value is not None})


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
    lever: Annotated[
        list[str] | None, LIST, Parameter(help="Lever to apply first, by its name in the list; repeatable.")
    ] = None
    shared: Annotated[
        float, Parameter(help="Share of the uncached prompt that a prefix cache or a store could hold.")
    ] = 0.5

    def assumptions(self) -> Assumptions:
        return Assumptions(
            text=self.text,
            acceptance=self.acceptance,
            draft=self.draft_cost,
            keeps=self.keep,
            scorer=None if self.scorer is None else resolve_shape(self.scorer),
            shared=self.shared,
        )


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
    what: WhatOptions = WhatOptions(),
    levers: LeverOptions = LeverOptions(),
) -> None:
    """Explain where a request's time goes, and what would make it faster."""
    _check_svg(svg)
    if source is not None and _is_url(source) and not _record_of(source, request)[1]:
        _list_requests(source, api_key, json=json)
        return
    found = _explanation(source, request, api_key, what, levers)
    if svg is not None:
        _draw(found, svg)
    if json:
        print_json(report.data(found))
        return
    width = min(max(get_terminal_size().columns, MIN_WIDTH), MAX_WIDTH)
    print_lines(report.lines(found, levers=levers.top, width=width))
    if found.scenario is not None:
        write_out("\n" + plot(roofline(found.scenario, found.waterfall), width=width) + "\n")


def _explanation(
    source: str | None, request: str | None, api_key: str | None, what: WhatOptions, levers: LeverOptions
) -> report.Explanation:
    if source is None:
        if what.model is None:
            raise ParameterError(
                "There is nothing to explain.",
                param="model",
                hint="Name a model: twofold explain --model llama-3-70b --hardware h100 --tp 4, or give a record.",
            )
        scenario = _scenario(resolve_shape(what.model, what.weights), what, what.case())
        return report.explain(scenario, None, levers.goal, levers.assumptions(), levers.lever or ())
    seen = _read(source, request, api_key, levers.goal)
    shape = _shape_of(seen, what)
    if shape is None:
        return report.explain(None, seen, levers.goal)
    scenario = _scenario(shape, what, what.case(report.case_of(seen)))
    return report.explain(scenario, seen, levers.goal, levers.assumptions(), levers.lever or ())


def _shape_of(seen: Observed, what: WhatOptions) -> ModelSpec | None:
    """The shape of --model, or else of the model in the record if --hardware is given; otherwise None."""
    if what.model is not None:
        return resolve_shape(what.model, what.weights)
    if what.hardware is None or seen.model is None:
        return None
    try:
        return resolve_shape(seen.model, what.weights)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"The model of the request, {seen.model!r:.80}, is not a known model.",
            hint=f"Name it with --model. {error.hint}",
        ) from None


def _scenario(shape: ModelSpec, what: WhatOptions, case: Case) -> UniformScenario:
    if what.hardware is None or what.hardware == HERE:
        here = local_machine(shape, what.model)
        machine = here.machine.with_disk(what.disk_gbs)
        return report.scenario_of(shape, machine, case, what.how(engine_setting()), here.fitted)
    return report.scenario_of(shape, find_machine(what.hardware).with_disk(what.disk_gbs), case, what.how())


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


def _draw(found: report.Explanation, path: Path) -> None:
    if found.scenario is None:
        raise ParameterError(
            "A roofline needs a model and a machine.", param="svg", hint="Name them with --model and --hardware."
        )
    picture = roofline(found.scenario, found.waterfall)
    write_file(path, draw(picture, height=SVG_HEIGHT, standalone=True) + "\n")

"""``twofold plan`` finds configurations that serve traffic within an SLO; ``twofold plan fit``: what fits in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from twofold.bench.draw.svg import svg as draw
from twofold.cli.bench.options import InputTokens, LengthOptions, OutputTokens, TraceOptions
from twofold.cli.console import print_json, print_lines, write_file
from twofold.cli.hardware import HERE, local_machine, named_machine
from twofold.cli.options import LIST, Json
from twofold.core.errors import ParameterError, closest_match, describe_name
from twofold.core.kv_layout import find_kv_format
from twofold.core.values import ValueFormat, find_format
from twofold.planner.machines.known import find_machine
from twofold.planner.machines.machine import THIS_MACHINE, Machine
from twofold.planner.plan import fitting
from twofold.planner.plan.plan import Choices
from twofold.planner.plan.report import fit_document, fit_lines, frontier_chart, study_document, study_lines
from twofold.planner.plan.search import Facts, nothing_found, search
from twofold.planner.plan.traffic import Slo, Traffic
from twofold.planner.predict.speculation import ACCEPTANCE, TextClass
from twofold.planner.shapes.known import resolve_shape

if TYPE_CHECKING:
    from twofold.bench.load.base import Load
    from twofold.planner.calibrate.here import LocalMachine
    from twofold.planner.plan.tails import MakeLoad

SAMPLES: Final = 4096
"""Number of requests that represent a synthetic load."""
STORED: Final = "stored"
MLPERF: Final = "mlperf:"
P99: Final = 0.99
ATTAINMENT: Final = 0.9


@Parameter(name="*", group="Traffic")
@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOptions(LengthOptions):
    """The requests to serve. A --trace replaces all of these options but --rate, to which it is scaled."""

    rate: Annotated[float | None, Parameter(name=("--rate", "--request-rate"), help="Requests per second.")] = None
    input_tokens: InputTokens = "1024"
    output_tokens: OutputTokens = "256"

    def load(self, trace: TraceOptions) -> MakeLoad:
        """Makes loads by rate and number of requests; 0 keeps the trace's own value. Raises ParameterError."""
        from twofold.bench.load.synthetic import LoadPlan  # noqa: PLC0415 - start-up time
        from twofold.planner.simulate.jobs import prompt_history  # noqa: PLC0415

        if trace.trace is not None:
            replay, plain = trace.replay(), replace(trace, time_scale=1.0)

            def make(rate: float, requests: int) -> Load:
                scale = plain.scale(rate) if rate else trace.scale(None)
                return replay(prompt_history, scale, requests or None, None)

            return make
        if self.rate is None:
            raise ParameterError("A plan needs a rate.", param="rate", hint="Give --rate 10, or --trace FILE.")
        lengths = self.lengths()
        return lambda rate, requests: LoadPlan(rate=rate, requests=requests, **lengths).load(prompt_history, 0)

    def traffic(self, trace: TraceOptions, make: MakeLoad) -> Traffic:
        """The traffic of the load at --rate, or else at the trace's own rate."""
        return Traffic.of(make(self.rate or 0.0, SAMPLES if trace.trace is None else 0), self.rate)


@Parameter(name="*", group="Choices")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """Alternatives that the planner compares, separated by commas."""

    tp: Annotated[str, Parameter(name=("--tp", "--tensor-parallel-size"), help="Tensor-parallel sizes to try.")] = (
        "1,2,4,8"
    )
    weights: Annotated[str, Parameter(help="Weight formats to try; stored is the model's own.")] = "stored,fp8,int4"
    kv: Annotated[str, Parameter(name=("--kv", "--kv-cache-dtype"), help="KV cache formats to try.")] = "bf16,fp8"
    chunk: Annotated[
        str, Parameter(name=("--chunk", "--max-num-batched-tokens"), help="Max tokens per step to try.")
    ] = "512,2048,8192"
    split: Annotated[bool, Parameter(help="Also try separate replicas for prefill and decode.")] = True
    text: Annotated[
        TextClass | None,
        Parameter(help="Class of the outputs: also try speculative decoding, with its acceptance rate."),
    ] = None
    acceptance: Annotated[float | None, Parameter(help="Acceptance rate: also try speculative decoding.")] = None
    drafts: Annotated[str, Parameter(help="Draft tokens per step to try.")] = "1,3,5"
    draft: Annotated[str | None, Parameter(help="Draft model (default: drafts cost nothing).")] = None
    max_devices: Annotated[int, Parameter(help="Max devices in total.")] = 4096
    price: Annotated[list[str] | None, LIST, Parameter(help="NAME=DOLLARS per device and hour; repeatable.")] = None

    def choices(self, models: str, hardware: str) -> tuple[Choices, LocalMachine | None]:
        """Also this machine running the first of the models, if it is named.

        Raises ParameterError and ModelNotFoundError for unknown names.
        """
        names, shapes = _parts(models), tuple(map(resolve_shape, _parts(models)))
        here = local_machine(shapes[0], names[0]) if shapes and HERE in _parts(hardware) else None
        draft = None if self.draft is None else resolve_shape(self.draft)
        rate = self.acceptance
        if rate is None and self.text is not None:
            rate = float(ACCEPTANCE[self.text].lookup if draft is None else ACCEPTANCE[self.text].model)
        found = Choices(
            models=shapes,
            machines=tuple(here.machine if here and name == HERE else find_machine(name) for name in _parts(hardware)),
            tp=_numbers("tp", self.tp),
            weights=tuple(map(_weights, _parts(self.weights))),
            kv=tuple(map(find_kv_format, _parts(self.kv))),
            chunks=_numbers("chunk", self.chunk),
            split=self.split,
            acceptance=rate,
            drafts=_numbers("drafts", self.drafts),
            draft=draft,
            devices=self.max_devices,
        )
        return found, here

    def prices(self, machines: tuple[Machine, ...]) -> dict[str, float]:
        """Dollars per device and hour by machine name. Raises ParameterError for a machine not in --hardware."""
        found = {}
        for text in self.price or ():
            name, _, value = text.rpartition("=")
            here = next((each for each in machines if name == HERE and each.name == THIS_MACHINE), None)
            machine = here or (find_machine(name) if name else machines[0])
            if machine not in machines:
                raise ParameterError(f"{machine.name} has a price but is not in --hardware.", param="price")
            found[machine.name] = _price(value)
        return found


@Parameter(name="*", group="Memory")
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions:
    """How a model is stored in memory."""

    tp: Annotated[int, Parameter(name=("--tp", "--tensor-parallel-size"), help="Tensor-parallel size.")] = 1
    weights: Annotated[str, Parameter(help="Weight format, such as fp8 or int4; stored is the model's own.")] = STORED
    kv: Annotated[str, Parameter(name=("--kv", "--kv-cache-dtype"), help="KV cache format.")] = "bf16"
    rows: Annotated[
        int, Parameter(name=("--rows", "--max-num-batched-tokens"), help="Max tokens per step, for activations.")
    ] = 2048
    share: Annotated[
        float, Parameter(name=("--share", "--gpu-memory-utilization"), help="Share of the memory to use.")
    ] = 0.9


def plan(
    *,
    model: Annotated[str, Parameter(name=("--model", "-m"))],
    hardware: str = "h100",
    slo: str = "ttft=1s,tpot=50ms",
    attainment: float | None = None,
    show: int = 10,
    simulate: bool = True,
    svg: Path | None = None,
    json: Json = False,
    traffic: TrafficOptions = TrafficOptions(),
    trace: TraceOptions = TraceOptions(),  # noqa: B008 - frozen
    choice: ChoiceOptions = ChoiceOptions(),
) -> None:
    """Find the cheapest configurations that serve given traffic within an SLO.

    Parameters
    ----------
    model
        One or more models: known names such as llama-3-70b, GGUF files or config.json files.
    hardware
        One or more machines, such as h100,h200; this: the local machine.
    slo
        Objective, such as ttft=500ms,tpot=50ms,e2e=10s, or an MLPerf scenario: mlperf:llama2-70b-interactive.
    attainment
        Share of requests that must meet the objective (default: 0.9; MLPerf scenarios 0.99).
    show
        Number of configurations to show.
    simulate
        Simulate the best three instead of estimating them.
    svg
        Write the chart of TPOT against cost as SVG.
    """
    limits = read_slo(slo, attainment)
    choices, here = choice.choices(model, hardware)
    prices = choice.prices(choices.machines)
    facts = Facts(prices=prices) if here is None else Facts(here.constants, prices)
    make = traffic.load(trace)
    wanted = traffic.traffic(trace, make)
    study = search(choices, wanted, limits, facts)
    if study.plans and simulate:
        from twofold.planner.plan.tails import simulated  # noqa: PLC0415

        study = simulated(study, choices, wanted, limits, facts, make)
    if not study.plans:
        raise nothing_found(study, choices, wanted, limits, facts)
    if svg is not None:
        chart = frontier_chart(study, limits, priced=study.plans[0].cost is not None)
        write_file(svg, draw(chart, standalone=True))
    if json:
        print_json(study_document(study, wanted, limits, max(1, show)))
    else:
        print_lines(study_lines(study, wanted, limits, max(1, show)))


def fit(
    *,
    model: Annotated[str, Parameter(name=("--model", "-m"))],
    hardware: str = "h100",
    context: Annotated[int | None, Parameter(name=("--context", "--max-model-len", "-c"))] = None,
    concurrency: Annotated[int, Parameter(name=("--concurrency", "--max-num-seqs"))] = 1,
    json: Json = False,
    how: MemoryOptions = MemoryOptions(),
) -> None:
    """Show whether a model fits in memory, up to which context and concurrency.

    Parameters
    ----------
    model
        Known name such as llama-3-70b, GGUF file or config.json.
    hardware
        Hardware, such as h100; this: the local machine.
    context
        Context length, prompt and output (default: the model's maximum).
    concurrency
        Concurrent sequences.
    """
    shape = resolve_shape(model)
    question = fitting.Question(
        shape=shape,
        machine=named_machine(hardware, shape, model),
        context=shape.context_length if context is None else context,
        concurrency=concurrency,
        tp=how.tp,
        weights=_weights(how.weights),
        kv=find_kv_format(how.kv),
        rows=how.rows,
        share=how.share,
    )
    found, others = fitting.fit(question), list(fitting.ways(question))
    if json:
        print_json(fit_document(found, others))
    else:
        print_lines(fit_lines(found, others))


def read_slo(text: str, attainment: float | None) -> Slo:
    """Parses limits, or mlperf: and a scenario. Raises ParameterError for invalid text and unknown scenarios."""
    from twofold.bench.metrics.goodput import SCENARIOS, Objectives  # noqa: PLC0415 - start-up time

    if text.startswith(MLPERF):
        name = text.removeprefix(MLPERF)
        scenario = next((each for each in SCENARIOS if each.name == name), None)
        if scenario is None:
            known = [each.name for each in SCENARIOS]
            close = closest_match(name, known)
            hint = f"Did you mean {MLPERF}{close}?" if close else f"Known: {', '.join(known)}."
            raise ParameterError(f"MLPerf has no scenario {describe_name(name)}.", param="slo", hint=hint)
        share = P99 if attainment is None else attainment
        return Slo(ttft=scenario.ttft_p99_s, tpot=scenario.tpot_p99_s, attainment=share)
    limits = Objectives.parse(text)
    if limits.itl is not None:
        raise ParameterError(
            "itl is not supported: gaps between tokens are not predicted.", param="slo", hint="Limit ttft, tpot or e2e."
        )
    share = ATTAINMENT if attainment is None else attainment
    return Slo(ttft=limits.ttft, tpot=limits.tpot, e2e=limits.e2e, attainment=share)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in _parts(text))
    except ValueError:
        raise ParameterError(
            f"{describe_name(text)} is not a list of whole numbers.", param=name, hint="Write them with commas: 1,2,4."
        ) from None


def _weights(name: str) -> ValueFormat | None:
    return None if name == STORED else find_format(name)


def _price(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ParameterError(
            f"{describe_name(text)} is not a price.", param="price", hint="Write NAME=DOLLARS: h100=2.50."
        )
    return value


app = App(name="plan", help="Finds configurations that meet objectives, cheapest first.")
app.default(plan)
app.command(fit, name="fit")

"""``twofold plan`` finds configurations that serve traffic within an SLO; ``twofold plan fit``: what fits in memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter

from twofold.bench.draw.svg import svg as draw
from twofold.cli.bench.options import InputTokens, LengthOptions, OutputTokens, TraceOptions
from twofold.cli.console import print_json, print_lines, write_file
from twofold.cli.hardware import LocalNames
from twofold.cli.options import LIST, Json
from twofold.core.errors import ParameterError, closest_match, describe_name
from twofold.core.kv_layout import find_kv_format
from twofold.core.values import find_format
from twofold.planner.machines.known import find_machine
from twofold.planner.names import HERE
from twofold.planner.plan import fitting
from twofold.planner.plan.document import PlanReply, fit_document
from twofold.planner.plan.question import SAMPLES, STORED, PlanQuestion
from twofold.planner.plan.report import fit_lines
from twofold.planner.plan.traffic import PlanSlo
from twofold.planner.predict.speculation import TextClass

if TYPE_CHECKING:
    from twofold.bench.load.base import Load
    from twofold.planner.plan.tails import MakeLoad

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


@Parameter(name="*", group="Choices")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """Alternatives that the planner compares, separated by commas."""

    tp: Annotated[str, Parameter(name=("--tp", "--tensor-parallel-size"), help="Tensor-parallel sizes to try.")] = (
        "1,2,4,8"
    )
    weights: Annotated[str, Parameter(help="Weight formats to try; stored is the model's own.")] = "stored,fp8,int4"
    kv: Annotated[str, Parameter(name=("--kv", "--kv-cache-dtype"), help="KV cache formats to try.")] = "bf16,fp8"
    chunks: Annotated[
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

    def values(self, hardware: list[str]) -> dict[str, Any]:
        """Fields of the question for machines of these names. Raises ParameterError for texts that are no lists."""
        fields = asdict(self) | {"weights": _parts(self.weights), "kv": _parts(self.kv)}
        for name, flag in (("tp", "tp"), ("chunks", "chunk"), ("drafts", "drafts")):
            fields[name] = _numbers(flag, fields[name])
        return fields | {"prices": _prices(fields.pop("price"), hardware)}


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
    models, machines, limits = _parts(model), _parts(hardware), read_slo(slo, attainment)
    fields = choice.values(machines) | {"slo": limits, "show": show, "simulate": simulate}
    make = traffic.load(trace)
    question = PlanQuestion(models=models, hardware=machines, rate=traffic.rate or 0.0, **fields)
    answer = question.answer(LocalNames(), make, SAMPLES if trace.trace is None else 0)
    if svg is not None:
        write_file(svg, draw(answer.chart(), standalone=True))
    if json:
        print_json(PlanReply.of(answer))
    else:
        print_lines(answer.lines())


def fit(
    *,
    model: Annotated[str, Parameter(name=("--model", "-m"))],
    hardware: str = "h100",
    context: Annotated[int | None, Parameter(name=("--context", "--max-model-len", "-c"))] = None,
    concurrency: Annotated[int, Parameter(name=("--concurrency", "--max-num-seqs"))] = 1,
    json: Json = False,
    stored: MemoryOptions = MemoryOptions(),
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
    names = LocalNames()
    spec = names.spec(model)
    question = fitting.Question(
        shape=spec,
        machine=names.machine(hardware, spec, model).machine,
        context=spec.context_length if context is None else context,
        concurrency=concurrency,
        tp=stored.tp,
        weights=None if stored.weights == STORED else find_format(stored.weights),
        kv=find_kv_format(stored.kv),
        rows=stored.rows,
        share=stored.share,
    )
    found, others = fitting.fit(question), list(fitting.ways(question))
    if json:
        print_json(fit_document(found, others))
    else:
        print_lines(fit_lines(found, others))


def read_slo(text: str, attainment: float | None) -> PlanSlo:
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
        return PlanSlo(ttft=scenario.ttft_p99_s, tpot=scenario.tpot_p99_s, attainment=share)
    limits = Objectives.parse(text)
    if limits.itl is not None:
        raise ParameterError(
            "itl is not supported: gaps between tokens are not predicted.", param="slo", hint="Limit ttft, tpot or e2e."
        )
    share = ATTAINMENT if attainment is None else attainment
    return PlanSlo(ttft=limits.ttft, tpot=limits.tpot, e2e=limits.e2e, attainment=share)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in _parts(text)]
    except ValueError:
        raise ParameterError(
            f"{describe_name(text)} is not a list of whole numbers.", param=name, hint="Write them with commas: 1,2,4."
        ) from None


def _prices(texts: list[str] | None, hardware: list[str]) -> dict[str, float]:
    """Dollars per device and hour by machine name. Raises ParameterError for a machine not in --hardware."""
    known = [name if name == HERE else find_machine(name).name for name in hardware]
    prices = {}
    for text in texts or ():
        name, _, value = text.rpartition("=")
        name = name or "".join(hardware[:1])
        machine = HERE if name == HERE in hardware else find_machine(name).name
        if machine not in known:
            raise ParameterError(f"{machine} has a price but is not in --hardware.", param="price")
        prices[machine] = _price(value)
    return prices


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

"""``twofold simulate``: the scheduler and the KV cache on a virtual clock, for any machine and load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from cyclopts import Parameter

from twofold.cli.bench.options import LoadOptions, TraceOptions
from twofold.cli.console import print_json, print_lines, write_file
from twofold.cli.options import BYTES, FLAG, Json, RouterFlag
from twofold.cli.plan import read_slo
from twofold.core.errors import ParameterError
from twofold.core.kv_layout import INTEGER_TYPES, find_kv_format
from twofold.core.units import count
from twofold.formats.fetch.sources import locate
from twofold.host.paths import CacheFolders
from twofold.planner.count.setting import Setting
from twofold.planner.explain.measured import benchmark
from twofold.planner.machines.known import find_machine
from twofold.planner.names import HERE
from twofold.planner.predict.speculation import ACCEPTANCE, MAX_DRAFTS, TEXT_CLASSES, TextClass, text_of
from twofold.planner.shapes.known import resolve_shape
from twofold.planner.simulate.kv_store import simulated_store
from twofold.planner.simulate.layerwise import LayerKV, layer_kv
from twofold.planner.simulate.lever_steps import SimulatedCompression, SimulatedDrafts
from twofold.planner.simulate.scenario import Scenario, Split
from twofold.planner.simulate.setting import DEFAULT_ROWS, DEFAULT_SEQUENCES, EngineSetting, PredictedSteps, groups_for

if TYPE_CHECKING:
    from twofold.bench.load.base import Load
    from twofold.core.model import ModelSpec
    from twofold.engine.config import EngineKeywords
    from twofold.engine.kv.manager import GroupSize
    from twofold.planner.machines.machine import Machine
    from twofold.planner.simulate.figures import SimulatedFigures
    from twofold.planner.simulate.jobs import Jobs

NEED_HARDWARE: Final = (*("tp", "weights", "kv", "replicas", "router", "prediction_error", "disaggregate", "link_gbs"),)
"""Options of other machines: this one runs a model file on one replica, as its engine does."""


@Parameter(name="*", group="Simulation")
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """A model on replicas of a machine."""

    model: Annotated[
        str | None,
        Parameter(name=("--model", "-m"), help="GGUF file, config.json or its folder, or known name: llama-3-8b."),
    ] = None
    hardware: Annotated[
        str,
        Parameter(help='Hardware: h100, epyc-9654; h100,l40s for both; "this": the local machine, once calibrated.'),
    ] = HERE
    tp: Annotated[int, Parameter(name=("--tp", "--tensor-parallel-size"), help="Tensor-parallel devices.")] = 1
    weights: Annotated[str | None, Parameter(help="Weight format: bf16, fp8, int4 (default: the model's own).")] = None
    kv: Annotated[str, Parameter(name=("--kv", "--kv-cache-dtype"), help="KV-cache format.")] = "bf16"
    replicas: Annotated[int, Parameter(help="Number of replicas, the same on each machine of --hardware.")] = 1
    router: Annotated[RouterFlag, Parameter(help="Routing policy.")] = "predicted"
    prediction_error: Annotated[
        float, Parameter(help="σ of a log-normal error in each prediction of the router, e.g. 0.35.")
    ] = 0.0
    disaggregate: Annotated[str | None, Parameter(help="Prefill:decode replicas, e.g. 1:3, instead of --replicas.")] = (
        None
    )
    link_gbs: Annotated[float, Parameter(help="KV transfer bandwidth per device in GB/s.")] = 50.0
    exact: Annotated[
        bool, FLAG, Parameter(help="Simulate every step with the real scheduler instead of jumping between events.")
    ] = False


@Parameter(name="*", group="Levers")
@dataclass(frozen=True, slots=True, kw_only=True)
class LeverFlags:
    """Levers of each replica."""

    text: Annotated[TextClass | None, Parameter(help="Speculate, with the acceptance measured for such outputs.")] = (
        None
    )
    acceptance: Annotated[float | None, Parameter(help="Speculate, with this acceptance rate of draft tokens.")] = None
    draft: Annotated[str | None, Parameter(help="Draft model (default: drafts are looked up in the text).")] = None
    drafts: Annotated[int, Parameter(help="Max draft tokens per step; as many are made as pay.")] = MAX_DRAFTS
    keep: Annotated[float | None, Parameter(help="Compress prompts to this share of their own tokens.")] = None
    scorer: Annotated[str | None, Parameter(help="Model that scores prompts for --keep (default: --model).")] = None

    kv_store_bytes: Annotated[
        int | None,
        BYTES,
        Parameter(help="Size of a KV store on each replica's disk, empty at first."),
    ] = None
    disk_gbs: Annotated[
        float | None, Parameter(help="Read bandwidth of that disk in GB/s (default: the machine's, or 1.2).")
    ] = None

    def drafting(self) -> SimulatedDrafts | None:
        """Raises ParameterError for options of drafts without a rate."""
        if self.text is None and self.acceptance is None:
            if self.draft is not None or self.drafts != MAX_DRAFTS:
                raise ParameterError(
                    "How many draft tokens are right depends on the text.",
                    param="acceptance",
                    hint=f"Add --acceptance 0.5, or --text {', '.join(TEXT_CLASSES)}.",
                )
            return None
        draft = None if self.draft is None else resolve_shape(self.draft)
        rate = self.acceptance
        if rate is None and self.text is not None:
            known = ACCEPTANCE[self.text]
            rate = float(known.lookup if draft is None else known.model)
        assert rate is not None, "a rate or a class was given"
        return SimulatedDrafts(rate, self.drafts, draft)

    def compression(self, model: ModelSpec) -> SimulatedCompression | None:
        """Raises ParameterError for a scorer without a share."""
        if self.keep is not None:
            return SimulatedCompression(self.keep, model if self.scorer is None else resolve_shape(self.scorer))
        if self.scorer is not None:
            raise ParameterError("--scorer needs --keep.", param="scorer", hint="Add --keep 0.5, or remove it.")
        return None

    def with_store(self, scenario: Scenario) -> Scenario:
        """The scenario with the KV store of the flags, if there is one. Raises ParameterError for a disk without it."""
        if self.kv_store_bytes is None:
            if self.disk_gbs is not None:
                raise ParameterError(
                    "--disk-gbs is the disk of a KV store, which is not given.",
                    param="disk-gbs",
                    hint="Add --kv-store-bytes 100GiB, or remove it.",
                )
            return scenario
        setting, machine = scenario.setting, scenario.machine.with_disk(self.disk_gbs)
        size = setting.block_size
        store = simulated_store(scenario.shape, machine, self.kv_store_bytes, scenario.setup, block_size=size)
        return replace(scenario, machine=machine, setting=replace(setting, kv_store=store))


@Parameter(name="*", group="Engine")
@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFlags:
    """Settings of each replica. Default for this machine: as `twofold serve`."""

    max_num_seqs: Annotated[
        int | None, Parameter(help="Max concurrent sequences (default: 256; this machine: 32).")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, Parameter(help="Max tokens computed in one step (default: 2048; this machine: 512).")
    ] = None
    max_model_len: Annotated[
        int | None, Parameter(help="Context length, prompt and output (default: the model's, or what memory holds).")
    ] = None
    block_size: Annotated[int, Parameter(help="Tokens per KV-cache block.")] = 16
    kv_cache_memory_bytes: Annotated[int | None, BYTES, Parameter(help="KV-cache memory per device.")] = None
    memory_share: Annotated[float, Parameter(help="Share of device memory to use.")] = 0.9
    threads: Annotated[
        int | None, Parameter(name=("--threads", "-t"), help="Compute threads (default: one per core).")
    ] = None
    enable_prefix_caching: Annotated[bool, Parameter(help="Reuse the KV cache of shared prompt prefixes.")] = True
    tpot_target_ms: Annotated[
        float | None,
        Parameter(help="TPOT target of the live budget; exact mode only (default: 50 on this machine, else none)."),
    ] = None
    layer_kv: Annotated[
        int | None,
        BYTES,
        Parameter(help="Host memory per device for prompts that are computed layer by layer when KV blocks run out."),
    ] = None
    layer_kv_tpot_ms: Annotated[
        float | None, Parameter(help="TPOT that open requests keep while --layer-kv computes prompts.")
    ] = None


def simulate(
    *,
    check: Annotated[Path | None, Parameter(help="Result file of `twofold bench` to compare with.")] = None,
    slo: Annotated[str | None, Parameter(help="Objective, e.g. ttft=500ms,tpot=50ms,e2e=10s.")] = None,
    attainment: Annotated[float, Parameter(help="Share of requests that must meet the objective.")] = 0.9,
    repeat: Annotated[int, Parameter(help="Replay the trace this many times.")] = 1,
    live: Annotated[
        Path | None,
        Parameter(help="With --exact: write the steps as a live stream (.jsonl), for the page's Engine view."),
    ] = None,
    json: Json = False,
    server: ServerOptions = ServerOptions(),
    engine: EngineFlags = EngineFlags(),
    levers: LeverFlags = LeverFlags(),
    load: LoadOptions = LoadOptions(),  # noqa: B008 - frozen
    trace: TraceOptions = TraceOptions(),  # noqa: B008 - frozen
) -> None:
    """Simulate traffic through the scheduler and KV cache on a virtual clock, with predicted step times."""
    limits = None if slo is None else read_slo(slo, attainment)
    if check is not None:
        if levers != LeverFlags():
            raise ParameterError(
                "A measured run is compared as it was.", param="check", hint="Remove --check, or the levers."
            )
        _check(check, server, engine, json=json)
        return
    from twofold.planner.simulate.figures import SCHEMA, figures, lever_effect, lines, store_effect  # noqa: PLC0415
    from twofold.planner.simulate.jobs import Jobs, repeated  # noqa: PLC0415

    scenario = _with_levers(server, engine, levers)

    def run(scenario: Scenario) -> tuple[SimulatedFigures, dict[str, Any]]:
        requests = _requests(load, trace)
        jobs = Jobs(requests)
        found = scenario.run(jobs if repeat == 1 else repeated(jobs, repeat))
        return figures(found, limits), {**requests.describe(), "repeat": repeat}

    if live is not None:
        _record(scenario, Jobs(_requests(load, trace)), live, repeat)
    found, described = run(scenario)
    without = {name: run(_with_levers(*options))[0] for name, options in _without_each(server, engine, levers)}
    if json:
        document = {"schema": SCHEMA, **_described(scenario), "load": described, "figures": found.plain()}
        print_json({**document, "figures_without": {name: each.plain() for name, each in without.items()}})
        return
    print_lines([_load_line(found, described), *lines(found)])
    drafts = scenario.drafts
    text = text_of(drafts.acceptance, draft_model=drafts.draft is not None) if drafts else None
    for name, each in without.items():
        effect = store_effect(found, each) if name == "KV store" else lever_effect(name, found, each)
        known = benchmark(name, text)
        print_lines([*effect, *([f"Benchmarks measured {known}."] if known else ())])


def _load_line(found: SimulatedFigures, load: Mapping[str, Any]) -> str:
    """What was asked, as drawn: the lengths may be defaults, and arrivals are random."""
    rate, seconds = load.get("arrivals", {}).get("rate"), load.get("duration_s")
    asked = f"{rate:g} requests/s asked, " if rate else ""
    drawn = f" ({found.requests / seconds:.3g}/s)" if rate and seconds else ""
    prompt, output = (tokens / max(1, found.requests) for tokens in (found.prompt_tokens, found.output_tokens))
    return (
        f"load     {asked}{count(found.requests, 'request')} drawn{drawn}; "
        f"on average {prompt:,.0f} prompt tokens and {output:,.0f} output tokens"
    )


def _with_levers(server: ServerOptions, engine: EngineFlags, levers: LeverFlags) -> Scenario:
    scenario = _scenario(server, engine, levers.drafting())
    compression = levers.compression(scenario.shape)
    return scenario.on_each(lambda each: levers.with_store(replace(each, compression=compression)))


def _without_each(
    server: ServerOptions, engine: EngineFlags, levers: LeverFlags
) -> Iterator[tuple[str, tuple[ServerOptions, EngineFlags, LeverFlags]]]:
    """Each lever of the flags by its name in ``explain``, and the flags without it alone."""
    if levers.drafting() is not None:
        name = "speculation" if levers.draft is None else "draft model"
        plain = replace(levers, text=None, acceptance=None, draft=None, drafts=MAX_DRAFTS)
        yield name, (server, engine, plain)
    if levers.keep is not None:
        yield "prompt compression", (server, engine, replace(levers, keep=None, scorer=None))
    if server.kv in INTEGER_TYPES:
        yield f"KV {server.kv}", (replace(server, kv="bf16"), engine, levers)
    if engine.layer_kv is not None:
        yield "LayerKV", (server, replace(engine, layer_kv=None, layer_kv_tpot_ms=None), levers)
    if levers.kv_store_bytes is not None:
        yield "KV store", (server, engine, replace(levers, kv_store_bytes=None, disk_gbs=None))


def _record(scenario: Scenario, jobs: Jobs, path: Path, repeat: int) -> None:
    """Runs a scenario once and writes its steps. Raises ParameterError for one that has no single real scheduler."""
    from twofold.planner.predict.steps import StepPredictor  # noqa: PLC0415 - start-up time
    from twofold.planner.simulate.live import LiveRecording  # noqa: PLC0415

    if not scenario.exact or scenario.all_replicas > 1 or scenario.split is not None or repeat > 1:
        raise ParameterError(
            "A live stream has the steps of one engine.",
            param="live",
            hint="Add --exact, and remove --replicas, --disaggregate and --repeat.",
        )
    steps = StepPredictor.of(scenario.shape, scenario.machine, scenario.setup)
    lines: list[str] = []
    recording = LiveRecording(scenario.shape.name, scenario.setting, steps, lines.append)
    scenario.run(jobs, recording)
    recording.end()
    write_file(path, "".join(lines))


def _requests(load: LoadOptions, trace: TraceOptions) -> Load:
    """The load of the flags, from its start."""
    from twofold.planner.simulate.jobs import prompt_history  # noqa: PLC0415 - start-up time

    if trace.trace is None:
        return load.plan().load(prompt_history, load.seed or 0)
    return trace.replay()(prompt_history, trace.scale(load.rate), load.requests, load.concurrency)


def _scenario(server: ServerOptions, engine: EngineFlags, drafts: SimulatedDrafts | None = None) -> Scenario:
    """The scenario of the flags. Raises ParameterError without a model, and for unknown names or invalid values."""
    if server.model is None:
        raise ParameterError(
            "There is no model to simulate.",
            param="model",
            hint="Name one: twofold simulate --model llama-3-8b --hardware h100 --rate 4",
        )
    if server.hardware == HERE:
        hint = "Name a machine with --hardware, such as h100."
        _refuse_changed(server, NEED_HARDWARE, "this machine", hint)
        _refuse_changed(engine, ("memory_share", "layer_kv", "layer_kv_tpot_ms"), "this machine", hint)
        return replace(_scenario_here(server, engine), drafts=drafts)
    _refuse_changed(engine, ("threads",), "other machines", "Omit --threads.")
    machines = [find_machine(name.strip()) for name in server.hardware.split(",")]
    _check_mixed(server, machines)
    count = server.replicas // len(machines)
    first, *others = (_scenario_on(machine, replace(server, replicas=count), engine, drafts) for machine in machines)
    return replace(first, others=tuple(others))


def _check_mixed(server: ServerOptions, machines: Sequence[Machine]) -> None:
    """Raises ParameterError for machines that cannot share the replicas."""
    if len(machines) == 1:
        return
    if server.disaggregate is not None:
        raise ParameterError(
            "Disaggregation is simulated on one kind of machine.",
            param="hardware",
            hint="Name one machine, or remove --disaggregate.",
        )
    if server.replicas % len(machines):
        raise ParameterError(
            f"{count(server.replicas, 'replica')} cannot be the same number on each of {len(machines)} machines.",
            param="replicas",
            hint=f"Write --replicas {-(-server.replicas // len(machines)) * len(machines)}.",
        )


def _scenario_on(
    machine: Machine, server: ServerOptions, engine: EngineFlags, drafts: SimulatedDrafts | None
) -> Scenario:
    assert server.model is not None, "a model was named"
    shape = resolve_shape(server.model, server.weights)
    setup = Setting(tp=server.tp, kv=find_kv_format(server.kv))
    sequences = DEFAULT_SEQUENCES if engine.max_num_seqs is None else engine.max_num_seqs
    rows = DEFAULT_ROWS if engine.max_num_batched_tokens is None else engine.max_num_batched_tokens
    groups = groups_for(
        shape,
        machine,
        setup,
        sequences=sequences,
        rows=rows,
        block_size=engine.block_size,
        share=engine.memory_share,
        memory=engine.kv_cache_memory_bytes,
        draft=drafts.draft if drafts else None,
    )
    lever, groups = _layer_kv(shape, machine, groups, setup, rows, engine)
    setting = EngineSetting(
        groups,
        sequences=sequences,
        rows=rows,
        block_size=engine.block_size,
        context=shape.context_length if engine.max_model_len is None else engine.max_model_len,
        prefix_caching=engine.enable_prefix_caching,
        tpot_target_s=None if engine.tpot_target_ms is None else engine.tpot_target_ms / 1000,
        layer_kv=lever,
    )
    return Scenario(
        shape=shape,
        machine=machine,
        setting=setting,
        setup=setup,
        replicas=server.replicas,
        split=_split(server),
        router=server.router,
        exact=server.exact,
        drafts=drafts,
        error=server.prediction_error,
    )


def _layer_kv(
    shape: ModelSpec, machine: Machine, groups: tuple[GroupSize, ...], setup: Setting, rows: int, engine: EngineFlags
) -> tuple[LayerKV | None, tuple[GroupSize, ...]]:
    """The lever that the flags ask for, and the blocks that remain. Raises ParameterError for a target without it."""
    target = engine.layer_kv_tpot_ms
    if engine.layer_kv is None:
        if target is not None:
            raise ParameterError(
                "--layer-kv-tpot-ms limits --layer-kv, which is not given.",
                param="layer-kv-tpot-ms",
                hint="Add --layer-kv 64GiB, or remove the limit.",
            )
        return None, groups
    tpot_s = None if target is None else target / 1000
    return layer_kv(
        shape, machine, groups, engine.layer_kv, setup, rows=rows, block_size=engine.block_size, tpot_s=tpot_s
    )


def _refuse_changed(options: ServerOptions | EngineFlags, names: Sequence[str], where: str, hint: str) -> None:
    """Raises ParameterError for the first of these options that is not at its default."""
    defaults = type(options)()
    for name in names:
        if getattr(options, name) != getattr(defaults, name):
            raise ParameterError(f"--{name.replace('_', '-')} is not possible on {where}.", param=name, hint=hint)


def _scenario_here(server: ServerOptions, engine: EngineFlags) -> Scenario:
    """The scenario of the local engine on this machine, as calibrated."""
    from twofold.engine.config import EngineOptions  # noqa: PLC0415
    from twofold.planner.simulate.here import this_machine  # noqa: PLC0415

    assert server.model is not None, "a model was named"
    given = asdict(engine)
    for name in ("memory_share", "layer_kv", "layer_kv_tpot_ms"):
        del given[name]
    keywords = cast("EngineKeywords", {name: value for name, value in given.items() if value is not None})
    return this_machine(locate(server.model, cache=CacheFolders.of().models).path, EngineOptions(**keywords))


def _split(server: ServerOptions) -> Split | None:
    if server.disaggregate is None:
        return None
    prefill, colon, decode = server.disaggregate.partition(":")
    if not (colon and prefill.isdecimal() and decode.isdecimal()):
        raise ParameterError(
            f"{server.disaggregate!r:.40} is not a split of replicas into prefill and decode.",
            param="disaggregate",
            hint="For one prefill and three decode replicas, write 1:3.",
        )
    return Split(int(prefill), int(decode), server.link_gbs * 1e9)


def _described(scenario: Scenario) -> dict[str, Any]:
    setting, split = scenario.setting, scenario.split
    return {
        "model": scenario.shape.name,
        "machine": ",".join(each.machine.name for each in (scenario, *scenario.others)),
        "tp": scenario.setup.tp,
        "replicas": split.prefill + split.decode if split else scenario.all_replicas,
        "disaggregated": None if split is None else f"{split.prefill}:{split.decode}",
        "router": scenario.router,
        "prediction_error": scenario.error,
        "mode": "exact" if scenario.exact else "fast",
        "max_num_seqs": setting.sequences,
        "max_num_batched_tokens": setting.rows,
        "block_size": setting.block_size,
        "kv_blocks": setting.blocks,
        "prefix_caching": setting.prefix_caching,
        "speculation": _drafts_document(scenario.drafts),
        "compression": scenario.compression
        and {"keep": scenario.compression.keep, "scorer": scenario.compression.scorer.name},
        "layer_kv": None if setting.layer_kv is None else asdict(setting.layer_kv),
        "kv_store": None if setting.kv_store is None else asdict(setting.kv_store),
    }


def _drafts_document(drafts: SimulatedDrafts | None) -> dict[str, Any] | None:
    if drafts is None:
        return None
    name = drafts.draft.name if drafts.draft else None
    return {"acceptance": drafts.acceptance, "max_drafts": drafts.most, "draft": name}


def _check(path: Path, server: ServerOptions, engine: EngineFlags, *, json: bool) -> None:
    from twofold.planner.simulate.check import check, compared_lines, read_bench  # noqa: PLC0415

    document, runs = read_bench(path)
    if server.model is None:
        server = replace(server, model=document.inner("target").text("model"))
    scenario = _scenario(server, engine)
    steps = PredictedSteps(scenario.shape, scenario.machine, scenario.constants, scenario.setup)
    compared: list[dict[str, Any]] = []
    for run in runs:
        if not run.jobs:
            continue
        found = check(run, scenario.make_replicas(steps, 1)[0], steps.first_s)
        compared.append(
            {"requests": len(run.jobs), "compared": [asdict(each) | {"error": each.error} for each in found]}
        )
        if not json:
            omitted = f", {run.left_out} omitted" if run.left_out else ""
            print_lines([f"{count(len(run.jobs), 'request')}{omitted}", *compared_lines(found)])
    if json:
        print_json({"schema": "twofold.simulate-check/1", **_described(scenario), "runs": compared})

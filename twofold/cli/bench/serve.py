"""``twofold bench serve`` benchmarks a running server, ``twofold bench run`` a new one."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

from cyclopts import Parameter

from twofold.cli.bench.options import BenchRequestOptions, LoadOptions, MeasureOptions, OutputOptions, TraceOptions
from twofold.cli.console import INTERRUPTED, note, rich_console, write_out
from twofold.cli.options import FLAG, MODEL_HELP, changed_fields
from twofold.core.errors import ParameterError, ResourceError
from twofold.formats.fetch.names import DEFAULT_MODEL

if TYPE_CHECKING:
    from twofold.bench.client.loop import Watcher
    from twofold.bench.client.target import ServerTarget
    from twofold.bench.load.base import Prompt
    from twofold.bench.load.replay import TraceReplay
    from twofold.bench.report.live import Goal
    from twofold.bench.search import Trial
    from twofold.bench.study import MakeLoad, Setup, Study

SEED_BITS: Final = 48
MAX_ROUNDS: Final = 7
"""Maximum length of a trial of a search, as a multiple of --duration: rounds of one, two and four."""
DOCUMENT_KINDS: Final = (".json", ".csv", ".html")
"""Suffixes of the files that ``write_document`` writes."""

Mode: TypeAlias = Literal["trace", "rates", "concurrencies", "search", "load"]

SHAPE: Final = ("input_tokens", "output_tokens", "shared_prefix", "prefix_groups", "turns", "think_time")
ARRIVALS: Final = ("arrivals", "burstiness")
DECISIONS: Final = ("attainment", "confidence", "precision")
WHY_UNUSED: Final[Mapping[Mode, str]] = {
    "trace": "a --trace replaces it",
    "rates": "a sweep over --rates does not use it",
    "concurrencies": "a sweep over --concurrencies does not use it",
    "search": "a search for the highest rate does not use it",
    "load": "a single load does not use it",
}
UNUSED: Final[Mapping[Mode, tuple[str, ...]]] = {
    "trace": ("duration", "ramp", *ARRIVALS, *SHAPE, *DECISIONS),
    "rates": ("rate", "requests", "ramp", *DECISIONS),
    "concurrencies": ("rate", "concurrency", *ARRIVALS, *DECISIONS),
    "search": ("requests", "ramp"),
    "load": DECISIONS,
}
"""Flags that a mode does not use."""

REQUEST, LOAD, TRACE = BenchRequestOptions(), LoadOptions(), TraceOptions()
MEASURE, OUTPUT = MeasureOptions(), OutputOptions()


def serve(
    *,
    url: Annotated[
        str, Parameter(name=("--url", "--base-url", "-u"), help="Base URL of the server, with or without /v1.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, Parameter(name=("--model", "-m"), help="Model name on the server (default: its only model).")
    ] = None,
    api_key: Annotated[str | None, Parameter(help="API key; never printed.")] = None,
    ca_file: Annotated[Path | None, Parameter(help="CA certificates (PEM) to trust instead of the system's.")] = None,
    insecure: Annotated[bool, FLAG, Parameter(help="Do not verify the server's certificate.")] = False,
    request: BenchRequestOptions = REQUEST,
    load: LoadOptions = LOAD,
    trace: TraceOptions = TRACE,
    measure: MeasureOptions = MEASURE,
    output: OutputOptions = OUTPUT,
) -> int:
    """Benchmark a server with an OpenAI or Anthropic API.

    --rate is an open loop, --concurrency a closed one; --trace replays recorded requests; --rates measures a curve;
    --slo alone searches for the highest rate that meets it.
    """
    from twofold.bench.client.target import ServerTarget  # noqa: PLC0415 - start-up time

    benchmark = Benchmark(request, load, trace, measure, output, ignore_eos=False)
    target = ServerTarget.of(url, verify=not insecure, ca_file=ca_file)
    return benchmark.study(benchmark.setup(target, model, api_key), "serve")


def run(
    *flags: Annotated[str, Parameter(help="Flags of `twofold serve`, after --.", allow_leading_hyphen=True)],
    model: Annotated[str, Parameter(name=("--model", "-m"), help=MODEL_HELP)] = DEFAULT_MODEL,
    request: BenchRequestOptions = REQUEST,
    load: LoadOptions = LOAD,
    trace: TraceOptions = TRACE,
    measure: MeasureOptions = MEASURE,
    output: OutputOptions = OUTPUT,
) -> int:
    """Start `twofold serve` with a model and benchmark it. Completions have their full length.

    Flags after -- are those of the server: twofold bench run --rate 2 -- --max-num-seqs 16
    """
    from twofold.bench.client.target import ServerTarget  # noqa: PLC0415
    from twofold.bench.own_server import own_server  # noqa: PLC0415

    benchmark = Benchmark(request, load, trace, measure, output, ignore_eos=request.endpoint != "messages")
    note(f"Starting twofold serve {' '.join((model, *flags))}")
    with own_server(model, flags) as url:
        return benchmark.study(benchmark.setup(ServerTarget.of(url), None, None), "run")


class Benchmark:
    """The benchmark that the flags describe. Raises ParameterError for invalid flags, before any request."""

    def __init__(
        self,
        request: BenchRequestOptions,
        load: LoadOptions,
        trace: TraceOptions,
        measure: MeasureOptions,
        output: OutputOptions,
        *,
        ignore_eos: bool,
    ) -> None:
        from twofold.bench.metrics.goodput import Objectives  # noqa: PLC0415 - start-up time
        from twofold.bench.metrics.requests import MeasurementRule  # noqa: PLC0415
        from twofold.bench.search import parse_rates  # noqa: PLC0415

        self.request, self.load, self.trace, self.options, self.output = request, load, trace, measure, output
        self.ignore_eos = ignore_eos if request.ignore_eos is None else request.ignore_eos
        self.rule = MeasurementRule(measure.warmup, measure.cooldown)
        self.objectives = None if measure.slo is None else Objectives.parse(measure.slo)
        self.rates = None if measure.rates is None else parse_rates(measure.rates)
        self.concurrencies = None if measure.concurrencies is None else _whole(parse_rates(measure.concurrencies))
        self.plan = load.plan()
        self._check_output()
        self.mode = self._selected_mode()
        _check_all_apply(self.mode, load, trace, measure)
        if self.mode == "load":
            self.plan.load(_no_messages, 0)
        self.replay = None if trace.trace is None else self._trace_load()

    def _trace_load(self) -> MakeLoad:
        """Makes the load of the trace, equal for all seeds. Raises ParameterError for invalid values."""
        make, load, scale = self.trace.replay(), self.load, self.trace.scale(self.load.rate)

        def replay(prompt: Prompt, _seed: int) -> TraceReplay:
            return make(prompt, scale, load.requests, load.concurrency)

        replay(_no_messages, 0)
        return replay

    def setup(self, target: ServerTarget, model: str | None, api_key: str | None) -> Setup:
        """The server and the requests to it. ``model`` None is the only model of the server."""
        from twofold.bench.client.loop import ClientOptions  # noqa: PLC0415
        from twofold.bench.endpoints.endpoint import EndpointOptions  # noqa: PLC0415
        from twofold.bench.study import Setup  # noqa: PLC0415

        request, measure = self.request, self.options
        options = EndpointOptions(
            model=model or "",
            api_key=api_key,
            stream=request.stream,
            ignore_eos=self.ignore_eos,
            temperature=request.temperature,
            length="max_completion_tokens" if request.max_completion_tokens else "max_tokens",
            headers=dict(map(_header, request.header)),
            extra=_extra(request.extra_body),
        )
        client = ClientOptions(
            request_timeout_s=measure.request_timeout,
            drain_s=measure.drain,
            reuse_connections=measure.reuse_connections,
        )
        prompts = secrets.randbits(SEED_BITS) if self.load.seed is None else self.load.seed
        return Setup(target, request.endpoint, model, options, client, self.load.seed or 0, prompts)

    def study(self, setup: Setup, command: str) -> int:
        """Runs the load and writes the result, also after an error. Returns the exit code."""
        from twofold.bench.prompts.local import local_counter  # noqa: PLC0415
        from twofold.bench.study import Study, connect  # noqa: PLC0415
        from twofold.host.paths import CacheFolders  # noqa: PLC0415

        counter = None
        if self.request.tokenizer is not None:
            chat = self.request.endpoint != "completions"
            counter = local_counter(self.request.tokenizer, chat=chat, models=CacheFolders.of().models)
        with connect(setup, counter, self._lengths()) as session:
            show = None if self.output.quiet else _show
            study = Study(setup, session, self.rule, self.objectives, chunks=self.output.chunks, show=show)
            try:
                self._run(study)
            finally:
                if study.runs:
                    self._write(study, command)
        return INTERRUPTED if study.interrupted else 0

    def _run(self, study: Study) -> None:
        match self.mode:
            case "trace":
                self._replay(study)
            case "rates":
                assert self.rates is not None
                study.sweep_rates(self.plan, self.rates)
            case "concurrencies":
                assert self.concurrencies is not None
                study.sweep_concurrencies(self.plan, self.concurrencies)
            case "search":
                self._search(study)
            case "load":
                study.measure_plan(self.plan)

    def _selected_mode(self) -> Mode:
        """The mode of the flags. Objectives without a load select a search. Raises ParameterError for several modes."""
        modes: dict[Mode, Any] = {"trace": self.trace.trace, "rates": self.rates, "concurrencies": self.concurrencies}
        selected = [mode for mode, value in modes.items() if value is not None]
        if len(selected) > 1:
            names = " and ".join(f"--{mode}" for mode in selected)
            raise ParameterError(f"{names} exclude each other.", param="rates", hint="Run them separately.")
        if selected:
            return selected[0]
        searched = self.objectives is not None and self.plan.rate is None and self.plan.concurrency is None
        return "search" if searched else "load"

    def _search(self, study: Study) -> None:
        from twofold.bench.search import SearchOptions  # noqa: PLC0415

        default = SearchOptions()
        seconds = self.load.duration
        options = SearchOptions(
            start=study.rate_one_by_one(self.plan),
            seconds=seconds or default.seconds,
            max_seconds=MAX_ROUNDS * seconds if seconds else default.max_seconds,
            confidence=self.options.confidence,
            precision=self.options.precision,
        )
        study.search_rate(self.plan, self.options.attainment, options, _print_trial)

    def _replay(self, study: Study) -> None:
        from twofold.bench.report.live import Goal  # noqa: PLC0415

        assert self.replay is not None
        requests = self.replay(_no_messages, 0).describe()["requests"]
        study.measure(self.replay, Goal(study.session.facts.model, requests=requests))

    def _lengths(self) -> tuple[int, int]:
        """The maximum lengths of prompt and completion; 0 for a trace, and for a distribution without a maximum."""
        from twofold.bench.load.base import MAX_TOKENS  # noqa: PLC0415

        lengths = (self.plan.input_tokens.most, self.plan.output_tokens.most)
        prompt, output = (0 if self.replay is not None or length == MAX_TOKENS else length for length in lengths)
        return prompt, output

    def _write(self, study: Study, command: str) -> None:
        from twofold.bench.report.words import print_report  # noqa: PLC0415
        from twofold.host.versions import twofold_version  # noqa: PLC0415

        document = study.document(command, self._settings(), twofold_version())
        for path in self.output.output:
            if path.suffix == ".jsonl":
                study.write_trace(path)
                note(f"Wrote {path}.")
            else:
                write_document(document, path)
        if self.output.json:
            write_out(document.without_requests().to_json().decode() + "\n")
        else:
            print_report(document, rich_console())

    def _settings(self) -> Mapping[str, Any]:
        """The flags and their values, without headers and values of --extra-body, which may be secret."""
        request = asdict(self.request)
        del request["header"]
        request["extra_body"] = sorted(_extra(self.request.extra_body))
        flags = {**request, **asdict(self.load), **asdict(self.trace), **asdict(self.options)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in flags.items()}

    def _check_output(self) -> None:
        """Raises ParameterError for files that cannot be written."""
        for path in self.output.output:
            check_kind(path, (*DOCUMENT_KINDS, ".jsonl"))
            if not path.parent.is_dir():
                raise ParameterError(f"There is no folder {path.parent}.", param="output", hint="Create it first.")


def check_kind(path: Path, kinds: Sequence[str]) -> None:
    """Raises ParameterError for an output file whose suffix is not in ``kinds``."""
    if path.suffix not in kinds:
        hint = f"Name it {' or '.join(filter(None, (', '.join(kinds[:-1]), kinds[-1])))}."
        raise ParameterError(f"{path.name} is not of a supported file type.", param="output", hint=hint)


def write_document(document: Any, path: Path) -> None:
    """Writes a document in the format of the suffix. Raises ResourceError."""
    from twofold.bench.report.document import to_csv  # noqa: PLC0415
    from twofold.bench.report.html import html  # noqa: PLC0415

    try:
        if path.suffix == ".json":
            document.write(path)
        else:
            path.write_text(to_csv(document) if path.suffix == ".csv" else html(document), "utf-8")
    except OSError as error:
        hint = "Choose another place with --output."
        raise ResourceError(f"{path} cannot be written: {error.strerror or error}.", hint=hint) from error
    note(f"Wrote {path}.")


def _show(goal: Goal) -> AbstractContextManager[Watcher]:
    from twofold.bench.report.live import live  # noqa: PLC0415

    return live(rich_console(stderr=True), goal)


def _print_trial(trial: Trial) -> None:
    verdict = f"{'pass' if trial.passed else 'fail'}{'' if trial.sure else ' (inconclusive)'}"
    note(f"{trial.rate:.4g} requests/s, {trial.judged:,} requests: {verdict}; {trial.why}")


def _no_messages(_ask: Any) -> tuple[Any, ...]:
    return ()


def _whole(values: tuple[float, ...]) -> tuple[int, ...]:
    if any(value != int(value) for value in values):
        raise ParameterError("Concurrencies must be whole numbers.", param="concurrencies", hint="Write 1,2,4.")
    return tuple(int(value) for value in values)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ParameterError("A header is NAME:VALUE.", param="header", hint="Such as --header X-Team:search.")
    return name.strip(), value.strip()


def _extra(text: str | None) -> Mapping[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ParameterError(f"extra-body is not valid JSON: {error}.", param="extra-body") from None
    if not isinstance(found, dict):
        raise ParameterError("extra-body must be a JSON object.", param="extra-body", hint="Such as '{\"top_k\": 1}'.")
    return found


def _check_all_apply(mode: Mode, load: LoadOptions, trace: TraceOptions, measure: MeasureOptions) -> None:
    """Raises ParameterError for a flag that ``mode`` does not use."""
    given = {*changed_fields(load), *changed_fields(measure)}
    for name in UNUSED[mode]:
        if name in given:
            raise _unused_flag(name, WHY_UNUSED[mode])
    of_trace = set(changed_fields(trace)) - {"trace"}
    if mode != "trace" and of_trace:
        raise _unused_flag(min(of_trace), "it needs a --trace")
    if mode != "trace" and "think_time" in given and "turns" not in given:
        raise _unused_flag("think_time", "it needs --turns")


def _unused_flag(name: str, why: str) -> ParameterError:
    flag = name.replace("_", "-")
    return ParameterError(f"--{flag} has no effect: {why}.", param=flag, hint="Remove it.")

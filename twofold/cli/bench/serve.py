"""``twofold bench serve`` and ``twofold bench run``: benchmarks of a running server, or of a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from twofold.cli.bench.measure import Measuring
from twofold.cli.bench.options import BenchRequestOptions, LoadOptions, MeasureOptions, OutputOptions, TraceOptions
from twofold.cli.console import note
from twofold.cli.options import FLAG
from twofold.formats.fetch.names import DEFAULT_MODEL

REQUEST, LOAD, TRACE = BenchRequestOptions(), LoadOptions(), TraceOptions()
MEASURE, OUTPUT = MeasureOptions(), OutputOptions()


def serve(
    *,
    url: Annotated[
        str, Parameter(name=("--url", "--base-url", "-u"), help="Base URL of the server, with or without /v1.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, Parameter(name=("--model", "-m"), help="Model name on the server. Default: its only model.")
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

    measuring = Measuring(request, load, trace, measure, output, ignore_eos=False)
    target = ServerTarget.of(url, verify=not insecure, ca_file=ca_file)
    return measuring.study(measuring.setup(target, model, api_key), "serve")


def run(
    *flags: Annotated[str, Parameter(help="Flags of `twofold serve`, after --.", allow_leading_hyphen=True)],
    model: Annotated[
        str, Parameter(name=("--model", "-m"), help="A path, an alias, hf.co/user/model[:QUANT] or pypi:package.")
    ] = DEFAULT_MODEL,
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

    measuring = Measuring(request, load, trace, measure, output, ignore_eos=request.endpoint != "messages")
    note(f"Starting twofold serve {' '.join((model, *flags))}")
    with own_server(model, flags) as url:
        return measuring.study(measuring.setup(ServerTarget.of(url), None, None), "run")

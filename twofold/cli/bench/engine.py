"""``twofold bench engine``: the speed of the engine by phase, compared with the limits of the machine."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from twofold.bench.phases.cases import BATCHES, CONTEXTS, INPUT_TOKENS, OUTPUT_TOKENS, ROUNDS, Sizes, parse_sizes
from twofold.cli.console import INTERRUPTED, interrupts, print_json, write_out
from twofold.cli.options import FLAG, ModelOptions, changed_fields
from twofold.core.errors import ParameterError

UNUSED = ("backend", "chat_template", "kv_store", "kv_store_bytes")
"""Options of a model that measuring its steps has no use for: they are refused, not ignored."""


def engine(
    *,
    input_tokens: Annotated[str, Parameter(name=("--input-tokens", "-p"))] = ",".join(map(str, INPUT_TOKENS)),
    context: Annotated[str, Parameter(name=("--context", "-d"))] = ",".join(map(str, CONTEXTS)),
    batch: Annotated[str, Parameter(name=("--batch", "-b"))] = ",".join(map(str, BATCHES)),
    output_tokens: Annotated[int, Parameter(name=("--output-tokens", "-n"))] = OUTPUT_TOKENS,
    rounds: Annotated[int, Parameter(name=("--rounds", "-r"))] = ROUNDS,
    json: Annotated[bool, FLAG] = False,
    model: ModelOptions = ModelOptions(),  # noqa: B008 - frozen
) -> int:
    """Benchmark the engine by phase, without HTTP: first the limits of this machine, then the measurements.

    Parameters
    ----------
    input_tokens
        Prompt lengths, comma-separated.
    context
        Context lengths before decode, comma-separated.
    batch
        Batch sizes of decode, comma-separated.
    output_tokens
        Decode steps per round.
    rounds
        Measurements of each case.
    json
        Print one JSON object at the end.
    """
    sizes = Sizes(
        input_tokens=parse_sizes("input_tokens", input_tokens),
        context=parse_sizes("context", context),
        batch=parse_sizes("batch", batch),
        output_tokens=output_tokens,
        rounds=rounds,
    )
    keywords = _keywords(model)
    model.check()
    # These imports load the engine, so flags are checked before.
    from twofold.bench.phases.bench import MeasuredModel, run  # noqa: PLC0415
    from twofold.bench.phases.report import TablePrinter  # noqa: PLC0415
    from twofold.cli.loading import resolved_files  # noqa: PLC0415
    from twofold.engine.config import EngineOptions  # noqa: PLC0415

    found, tokenizer = resolved_files(model)
    subject = MeasuredModel(found.path, found.name, tokenizer)
    printer = TablePrinter((lambda _text: None) if json else write_out)
    with interrupts() as stop:
        try:
            report = run(subject, EngineOptions(**keywords), sizes, printer, stop.is_set)
        finally:
            printer.close()
    if json:
        print_json(report.to_json())
    return INTERRUPTED if report.interrupted else 0


def _keywords(model: ModelOptions) -> dict[str, Any]:
    """The options of the engine. Raises ParameterError for one that changes no measured step and no limit."""
    keywords = model.engine_keywords()
    drafting = keywords["speculative_config"] or {}
    unused = [name for name in changed_fields(model) if name in UNUSED]
    if drafting and drafting.get("method") != "draft_model":
        unused.append("speculative_config")
    if "num_speculative_tokens" in drafting:
        unused.append("num_speculative_tokens")
    if unused:
        raise ParameterError(
            f"bench engine measures plain steps of the cpu backend, so {unused[0]} has no effect.",
            param=unused[0],
            hint="Remove it; bench serve measures a running server with its options.",
        )
    return keywords

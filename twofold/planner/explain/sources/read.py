"""From a JSON text to the request that it tells of, whoever wrote it."""

from __future__ import annotations

import json

from twofold.core.errors import ParameterError
from twofold.planner.explain.observed import Observed
from twofold.planner.explain.scenario import Goal
from twofold.planner.explain.sources.bench import read_bench
from twofold.planner.explain.sources.engine import read_record, read_run
from twofold.planner.explain.sources.fields import HINT, SourceFields

RECORD = "twofold.request"
BENCH = "twofold.bench/"


def read_observed(text: bytes | str, label: str, pick: str | None = None, goal: Goal = "e2e") -> Observed:
    """The request of a record, a reply with one, a run or a bench; ``label`` names the text in errors.

    ``pick`` is an index or a percentile of a bench's requests (p50 if left out), or the number of a record's prompt.
    Raises ParameterError for anything else.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"{label} is not valid JSON: {error!s:.200}.", param="source", hint=HINT) from None
    found = SourceFields({}, label).within("document", value)
    document = SourceFields(found.values, label)
    inner = document.values.get("twofold")
    if isinstance(inner, dict) and inner.get("object") == RECORD:
        document = SourceFields(inner, label)
    if document.values.get("object") == RECORD:
        return read_record(document, _number(pick))
    if str(document.values.get("schema")).startswith(BENCH):
        return read_bench(document, pick or "p50", goal)
    if "timing" in document and "usage" in document:
        return read_run(document)
    raise ParameterError(f"{label} contains no request.", param="source", hint=HINT)


def _number(pick: str | None) -> int:
    if pick is None:
        return 0
    if not pick.isdecimal():
        raise ParameterError(
            f"{pick!r:.60} is not a prompt number.", param="request", hint="Prompt numbers start at 0."
        )
    return int(pick)

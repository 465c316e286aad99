"""Explores a live server with schemathesis, by the document that it publishes.

    examples    the document's examples, which must succeed
    coverage    values at the bounds of each field and just outside of them
    fuzzing     any values that fit the schemas, and any that do not
    stateful    operations one after another, along the document's links

What schemathesis calls an acceptable answer is held to the document, with two differences:

- valid data may be refused with a 400 where the operation has a rule beyond its schema; ``documented_refusal`` wants
  the error to be that of such a rule
- an answer of 5xx is never acceptable, and an error has at most 4 KiB
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

MAX_ERROR_BYTES: Final = 4096
ACCEPTED: Final = ("2xx", "400", "401", "403", "404", "409", "429")
"""Without 5xx, which schemathesis takes for fair; with 400, which ``documented_refusal`` looks at."""


Counts: TypeAlias = Counter[tuple[str, str, int]]
"""Counts of replies by operation, whether the request was valid, and status."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a check had against an answer."""

    check: str
    operation: str
    says: str
    request: str
    answer: str

    def __str__(self) -> str:
        return f"{self.check} {self.operation}: {self.says}\n  asked {self.request}\n  answer {self.answer}"


@schemathesis.check
def documented_refusal(ctx: Any, response: Any, case: Any) -> None:  # noqa: ARG001 - the shape of a check
    """Valid data are refused with 400 only by a rule of the operation."""
    meta = case.meta
    if response.status_code != 400 or meta is None or not meta.generation.mode.is_positive:
        return
    rules = case.operation.definition.raw.get("x-rules", ())
    error = json.loads(response.content)["error"]
    assert any(breaks(error, rule) for rule in rules), f"no rule says: {str(error)[:300]}"


@schemathesis.check
def short_error(ctx: Any, response: Any, case: Any) -> None:  # noqa: ARG001
    """The body of an error is at most 4 KiB."""
    if response.status_code >= 400:
        size = len(response.content)
        assert size <= MAX_ERROR_BYTES, f"the error has {size} bytes"


def breaks(error: Any, rule: dict[str, Any]) -> bool:
    """Whether the error is what breaking the rule gives; Anthropic's and Ollama's, which is text, name it in the
    message."""
    if isinstance(error, str):
        error = {"message": error}
    if "code" not in error:
        return rule["param"] is None or rule["param"] in error["message"]
    if error["code"] != rule["code"] or (rule["param"] is None) != (error["param"] is None):
        return False
    return rule["param"] is None or error["param"].startswith(rule["param"])


def settings(url: str, key: str | None, *, examples: int, seed: int, phases: tuple[str, ...], seconds: float) -> Any:
    """What schemathesis runs with."""
    whole: dict[str, Any] = {
        "base-url": url,
        "seed": seed,
        "max-time": seconds,
        "continue-on-failure": True,
        "request-timeout": 20,
        "output": {"truncation": {"enabled": False}},
        "generation": {
            "max-examples": examples,
            "no-shrink": True,
            "database": "none",
            "with-security-parameters": False,  # ignored_auth looks at keys; these would spoil what is valid otherwise
        },
        "checks": {"positive_data_acceptance": {"expected-statuses": list(ACCEPTED)}},
        "phases": {name: {"enabled": name in phases} for name in ("examples", "coverage", "fuzzing", "stateful")},
    }
    if key is not None:
        whole["auth"] = {"openapi": {"bearer": {"bearer": key}}}
    return SchemathesisConfig.from_dict(whole)


def explore(document: dict[str, Any], config: Any, counts: Counts | None = None) -> Iterator[Found]:
    """What the checks found, each kind of fault once for each operation."""
    whole = schemathesis.openapi.from_dict(document, config=config)
    schema = whole.exclude(operation_id="stopServer")  # nothing could be explored afterwards
    schema = schema.exclude(operation_id=["scaleModel", "restartReplicas"])  # they start many processes
    schema = schema.exclude(operation_id="watchEngine")  # its stream does not end; tests/server/test_live.py has it
    seen: set[tuple[str, str, str]] = set()
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            yield Found(
                "error", str(getattr(event, "label", "")), str(event.info if hasattr(event, "info") else event), "", ""
            )
        if not isinstance(event, events.ScenarioFinished):
            continue
        if counts is not None:
            counts.update(_answers(event.recorder))
        for found in _faults(event.recorder):
            identity = (found.check, found.operation, found.says[:60])
            if identity not in seen:
                seen.add(identity)
                yield found


def _answers(recorder: Any) -> Iterator[tuple[str, str, int]]:
    """Operation, whether the request was valid, and the status of the reply."""
    for case_id, interaction in recorder.interactions.items():
        node = recorder.cases.get(case_id)
        if node is not None and interaction.response is not None and node.value.meta is not None:
            mode = "valid" if node.value.meta.generation.mode.is_positive else "invalid"
            yield node.value.operation.label, mode, interaction.response.status_code


def _faults(recorder: Any) -> Iterator[Found]:
    for case_id, checks in recorder.checks.items():
        node = recorder.cases[case_id]
        for check in checks:
            if check.failure_info is None or (
                check.name == "ensure_resource_availability" and _unstored(recorder, node)
            ):
                continue
            case = node.value
            interaction = recorder.interactions.get(case_id)
            failure = check.failure_info.failure
            response = interaction.response if interaction is not None else None
            answer = "" if response is None else f"{response.status_code} {response.content[:600]!r}"
            request = "" if interaction is None else f"{interaction.request.uri} {interaction.request.body!r:.1500}"
            yield Found(check.name, case.operation.label, f"{failure.title}: {failure.message}", request, answer)


def _unstored(recorder: Any, node: Any) -> bool:
    """Whether a case follows a response that was created with ``store`` false: its 404 cannot be declared by a link."""
    parent = recorder.cases.get(node.parent_id)
    body = None if parent is None else parent.value.body
    return isinstance(body, dict) and body.get("store") is False

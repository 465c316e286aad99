"""What Anthropic's two endpoints say beside system, messages and tools: thinking, effort, form, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from twofold.api.conversation import AS_BEFORE, Thinking
from twofold.api.fields import FieldError, Fields, impossible
from twofold.core.params import MAX_TOKEN_ID, StructuredOutputsParams

EFFORTS: Final[dict[str, int | None]] = {"low": 1024, "medium": 4096, "high": None, "xhigh": None, "max": None}
"""Most tokens that a model may think for an effort; "high" is what leaving it out means."""

ELSEWHERE: Final[dict[str, tuple[object, ...]]] = {
    "billing_policy": (),
    "compaction": (),
    "container": (),
    "fallback_credit_token": (),
    "fallbacks": ([],),
    "inference_geo": (),
    "mcp_servers": ([],),
    "speed": ("standard",),
    "thread": (),
    "user_profile_id": (),
    "workspace_id": (),
}
"""Fields of services that only Anthropic runs, with the only values that can be honoured here."""


@dataclass(frozen=True, slots=True)
class MessageSettings:
    """What was read. ``omits_thinking``: the reply shall show that the model thought, but not what."""

    thinking: Thinking
    omits_thinking: bool
    form: StructuredOutputsParams | None


def read_settings(fields: Fields) -> MessageSettings:
    """Raises FieldError for what is impossible, or cannot be honoured here."""
    for name, possible in ELSEWHERE.items():
        fields.only(name, *possible)
    _labels(fields)
    _context_management(fields)
    thinking, omits = _thinking(fields)
    effort, form = _output_config(fields)
    limits = [limit for limit in (effort, thinking.budget) if limit is not None]
    if limits and thinking.mode != "off":
        thinking = replace(thinking, budget=min(limits))
    return MessageSettings(thinking, omits, form)


def _labels(fields: Fields) -> None:
    """What concerns no answer: whose request it is, and which betas the client knows."""
    metadata = fields.inner("metadata")
    if metadata is not None:
        metadata.text("user_id")
        metadata.close()
    betas = fields.take("betas")
    if betas is not None and not (isinstance(betas, list) and all(isinstance(beta, str) for beta in betas)):
        raise impossible("betas", betas, "a list of texts")


def _thinking(fields: Fields) -> tuple[Thinking, bool]:
    """A budget is an upper limit, so models that do not think keep to it too."""
    chosen = fields.inner("thinking")
    if chosen is None:
        return AS_BEFORE, False
    kind = chosen.choice("type", ("enabled", "adaptive", "disabled"))
    if kind == "disabled":
        chosen.close()
        return Thinking("off"), False
    budget = None
    if kind == "enabled":
        chosen.require("budget_tokens")
        budget = chosen.whole("budget_tokens", 1, MAX_TOKEN_ID)
    omits = chosen.take("display") is not None and chosen.choice("display", ("summarized", "omitted")) == "omitted"
    chosen.close()
    return Thinking("on", budget), omits


def _output_config(fields: Fields) -> tuple[int | None, StructuredOutputsParams | None]:
    """Most tokens to think, and the form of the answer; ``output_format`` is what the form was called before."""
    before = fields.inner("output_format")
    form = None if before is None else _form(before)
    config = fields.inner("output_config")
    if config is None:
        return None, form
    budget = EFFORTS[config.choice("effort", EFFORTS)] if config.take("effort") is not None else None
    config.only("task_budget")
    now = config.inner("format")
    if now is not None and before is not None:
        raise FieldError(
            "output_config.format and output_format both set the output format.",
            param="output_format",
            hint="Remove output_format.",
        )
    config.close()
    return budget, form if now is None else _form(now)


def _form(described: Fields) -> StructuredOutputsParams:
    described.choice("type", ("json_schema",))
    schema = described.require("schema")
    if not isinstance(schema, dict):
        raise impossible(described.name("schema"), schema, "a JSON schema")
    described.close()
    return StructuredOutputsParams(json=schema)


def _context_management(fields: Fields) -> None:
    """Only what leaves the messages as they are."""
    managed = fields.inner("context_management")
    if managed is None:
        return
    edits = managed.take("edits")
    if edits is not None and not isinstance(edits, list):
        raise impossible("context_management.edits", edits, "a list of edits")
    for index, given in enumerate(edits or ()):
        edit = Fields(given, f"context_management.edits[{index}]")
        edit.choice("type", ("clear_thinking_20251015",))
        edit.require("keep")
        edit.only("keep", "all", {"type": "all"})
        edit.close()
    managed.close()

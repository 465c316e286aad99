"""Fields of Anthropic's two endpoints beside system, messages and tools: cache control, thinking and output format.

Rules of ``cache_control``: at most four controls; in the order tools, system, messages, those of one hour come before
those of five minutes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from twofold.api.body import IGNORED, RequestObject, only
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import CacheControl, Count, JsonSchema
from twofold.api.prompts import DEFAULT_THINKING, Thinking
from twofold.core.params import StructuredOutputsParams
from twofold.core.request import MAX_PINS, TimeToLive


class CacheControls:
    """Checks the controls of one body; ``take`` is called in the order in which they count."""

    def __init__(self) -> None:
        self._count = 0
        self._shortened = False

    def take(self, control: CacheControl | None, owner: str) -> TimeToLive | None:
        """The time for which the prompt up to the end of the object at ``owner`` stays cached; None without a control.

        Raises FieldError for more than MAX_PINS controls, and for one hour after five minutes.
        """
        if control is None:
            return None
        name, ttl = f"{owner}.cache_control".lstrip("."), control.ttl
        self._count += 1
        if self._count > MAX_PINS:
            raise FieldError(f"There are more than {MAX_PINS} cache_control blocks.", param=name)
        if ttl == "1h" and self._shortened:
            raise FieldError(
                f"{name} has ttl 1h, but one before it has 5m.",
                param=name,
                hint="Put 1h blocks first; the order is tools, system, messages.",
            )
        self._shortened = ttl == "5m"
        return ttl


EFFORTS: Final[dict[str, int | None]] = {"low": 1024, "medium": 4096, "high": None, "xhigh": None, "max": None}
"""Maximum tokens of thinking by effort; "high" is the default."""

Display: TypeAlias = Literal["summarized", "omitted"]


class ThinkingEnabled(RequestObject):
    """The model thinks within a budget. It is an upper limit, so models that do not think are allowed, too."""

    type: Literal["enabled"]
    budget_tokens: Count
    display: Display = "summarized"


class ThinkingAdaptive(RequestObject):
    """The model thinks as long as it needs to."""

    type: Literal["adaptive"]
    display: Display = "summarized"


class ThinkingDisabled(RequestObject):
    """The model does not think."""

    type: Literal["disabled"]


ThinkingConfig: TypeAlias = ThinkingEnabled | ThinkingAdaptive | ThinkingDisabled


class SchemaOutput(RequestObject):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    schema: JsonSchema


class OutputConfig(RequestObject):
    """How much the model thinks, and the format of the output."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    task_budget: None = None
    format: SchemaOutput | None = None


class ContextEdit(RequestObject):
    """An edit that leaves the messages as they are."""

    type: Literal["clear_thinking_20251015"]
    keep: Annotated[Any, only("all", {"type": "all"})]


class ContextManagement(RequestObject):
    """Edits of the context."""

    edits: list[ContextEdit] | None = None


class ThreadCreate(RequestObject):
    """Asks the server to keep the conversation. It does not: it says so when the conversation is continued."""

    type: Literal["create"]


class ThreadContinue(RequestObject):
    """The messages continue a conversation that the server keeps."""

    type: Literal["continue"]
    previous_message_id: str


class MessageMetadata(RequestObject):
    """Whose request it is; the label changes no output."""

    user_id: Annotated[str, IGNORED] | None = None


def thinking_of(config: ThinkingConfig | None, output: OutputConfig) -> Thinking:
    """Whether the model thinks, and for how many tokens at most: the lower of the budget and the effort's limit."""
    match config:
        case None:
            thinking = DEFAULT_THINKING
        case ThinkingDisabled():
            return Thinking("off")
        case ThinkingEnabled(budget_tokens=budget):
            thinking = Thinking("on", budget)
        case _:
            thinking = Thinking("on")
    effort = EFFORTS[output.effort] if output.effort is not None else None
    limits = [limit for limit in (effort, thinking.budget) if limit is not None]
    return replace(thinking, budget=min(limits)) if limits else thinking


def structured_outputs_of(output: OutputConfig, older: SchemaOutput | None) -> StructuredOutputsParams | None:
    """The format of the output; ``output_format`` is the older name of the field. Raises FieldError for both."""
    if output.format is not None and older is not None:
        raise FieldError(
            "output_config.format and output_format both set the output format.",
            param="output_format",
            hint="Remove output_format.",
        )
    chosen = output.format or older
    return None if chosen is None else StructuredOutputsParams(json=chosen.schema)

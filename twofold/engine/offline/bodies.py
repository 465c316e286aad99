"""What the bodies of OpenAI's endpoints have in common: the fields that all take, and what the reader of one gives.

Nothing here waits, reads or writes, so the offline batch and a server share it. Names and defaults are OpenAI's;
what vLLM adds (top_k, priority, cache_salt, structured_outputs, …) has vLLM's names. A field that Twofold cannot
honour is refused, never passed over; only labels, which concern no answer, are taken and dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams
from twofold.core.request import RequestOptions
from twofold.core.step import Pooling
from twofold.engine.offline.fields import FieldError, Fields, impossible, is_whole
from twofold.engine.offline.replies import ReplyHead
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import GivenPrompt
from twofold.text.tokenizer import Tokenizer

MAX_PROMPTS: Final = 2048

LABELS: Final = ("user", "metadata", "safety_identifier", "prompt_cache_key")
"""Fields by which OpenAI's customers sort their requests."""

Limits = Mapping[str, tuple[object, ...]]
"""Fields of OpenAI's with the only values that can be honoured here."""


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How a text becomes one vector of length 1; ``dimensions`` is how many numbers the caller counts on."""

    pooling: Pooling = "mean"
    dimensions: int | None = None

    def check(self, hidden_size: int) -> None:
        """Raises ParameterError where the model's vectors are of another length."""
        if self.dimensions not in (None, hidden_size):
            raise ParameterError(
                f"dimensions must be the model's {hidden_size}, not {self.dimensions}: its vectors cannot be cut.",
                param="dimensions",
                hint="Leave it out.",
            )


class OpenAIRequest(Protocol):
    """A request that was read: what to run, and how to tell what came of it.

    model    the one that was asked for, None for whichever runs
    params   what is wanted of each prompt: answers, or a vector
    options  how it is treated beside others
    """

    @property
    def model(self) -> str | None: ...

    @property
    def params(self) -> SamplingParams | PoolingParams: ...

    @property
    def options(self) -> RequestOptions: ...

    def prompts(self, tokenizer: Tokenizer) -> list[GivenPrompt]:
        """What to run, each with ``params``. Raises TemplateError where the chat template refuses the messages."""
        ...

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], tokenizer: Tokenizer) -> dict[str, Any]:
        """The body of the response. ``outputs`` are those of the prompts, in their order."""
        ...


def open_body(body: object, handled: Collection[str], limits: Limits) -> Fields:
    """The body's fields, those looked at that say nothing about what is wanted. ``handled`` ones are the caller's."""
    fields = Fields(body)
    for name in (*handled, *LABELS):
        fields.take(name)
    for name, possible in limits.items():
        if name not in handled:
            fields.only(name, *possible)
    return fields


def read_options(fields: Fields) -> RequestOptions:
    """vLLM's fields about a request beside others: ``priority``, where lower goes first, and ``cache_salt``."""
    names = ("priority", "cache_salt")
    return RequestOptions(**{name: value for name in names if (value := fields.take(name)) is not None})


def read_texts(fields: Fields, name: str) -> tuple[GivenPrompt, ...]:
    """The forms that OpenAI knows of the field ``name``: a text, token ids, or a list of either."""
    given = fields.require(name)
    if isinstance(given, str):
        return (GivenPrompt(text=given),)
    if not isinstance(given, list) or not given:
        raise _no_text(name, given)
    if all(map(is_whole, given)):
        return (GivenPrompt(token_ids=tuple(given)),)
    if len(given) > MAX_PROMPTS:
        raise FieldError(f"{name} holds {len(given)} texts, at most {MAX_PROMPTS} are possible.", param=name)
    return tuple(_one_text(name, one) for one in given)


def _one_text(name: str, given: object) -> GivenPrompt:
    if isinstance(given, str):
        return GivenPrompt(text=given)
    if not isinstance(given, list) or not given or not all(map(is_whole, given)):
        raise _no_text(name, given)
    return GivenPrompt(token_ids=tuple(given))


def _no_text(name: str, given: object) -> FieldError:
    return impossible(name, given, "text, a list of texts, token ids or a list of lists of token ids")

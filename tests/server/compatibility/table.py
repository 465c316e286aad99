"""The table of accepted and refused fields: every field that a client can send is sent to the server's readers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from tests.server.compatibility.endpoints import ENDPOINTS, Endpoint
from tests.server.compatibility.probes import Probe, fields_of, probes_of
from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from twofold.api.anthropic.errors import AnthropicDialect
from twofold.api.base import Dialect, ModelFacts
from twofold.api.body import object_of
from twofold.api.fields import LABELS, UNSUPPORTED, FieldError, ignoring
from twofold.api.ollama.replies import OllamaDialect
from twofold.api.openai.errors import OpenAIDialect
from twofold.core.errors import ParameterError, TwofoldError
from twofold.core.request import STORED_TTL
from twofold.text.parsers.format import CompletionFormat

PAGE: Final = Path(__file__).parents[3] / "docs" / "compatibility.md"
TEMPLATE: Final = (
    "{% for tool in tools or [] %}tool {{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: "
)
THINKS: Final = (
    TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
PLAIN: Final = TEMPLATE + "{% endif %}"
DIALECTS: Final[Mapping[str, Dialect]] = {
    "openai": OpenAIDialect(),
    "anthropic": AnthropicDialect(),
    "ollama": OllamaDialect(),
}
CLIENTS: Final = {"openai": "OpenAI's", "anthropic": "Anthropic's", "ollama": "Ollama's"}
MAX_LISTED: Final = 12
NEEDS_THINKING: Final = "¹"
NEEDS_STORE: Final = "²"
IGNORED: Final = "³"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a value. ``code`` is the error's status and word, None where the value was accepted.

    thinking     it is only accepted where the model thinks
    param        the field that the error names
    unsupported  the error says that the field, or this value of it, is not supported: not that the value is wrong
    ignored      the value has no effect, and a warning names it
    """

    probe: Probe
    code: str | None
    thinking: bool = False
    param: str | None = None
    unsupported: bool = False
    ignored: bool = False

    @property
    def label(self) -> str:
        store = NEEDS_STORE if STORED_TTL in self.probe.label else ""
        return self.probe.label + (NEEDS_THINKING if self.thinking else "") + store + (IGNORED if self.ignored else "")


@dataclass(frozen=True, slots=True)
class Row:
    """A field, with its accepted and refused values."""

    name: str
    outcomes: tuple[Outcome, ...]

    @property
    def verdict(self) -> str:
        refused = sum(outcome.code is not None for outcome in self.outcomes)
        return "accepted" if not refused else "refused" if refused == len(self.outcomes) else "limited"

    def line(self) -> str:
        accepted = [outcome.label for outcome in self.outcomes if outcome.code is None]
        refused: dict[str, list[str]] = {}
        for outcome in self.outcomes:
            if outcome.code is not None:
                refused.setdefault(outcome.code, []).append(outcome.label)
        told = "; ".join(f"{self._listed(labels)}: {code}" for code, labels in refused.items())
        return f"| `{self.name}` | {self.verdict} | {self._listed(accepted)} | {told} |"

    def _listed(self, labels: list[str]) -> str:
        """The labels of values; shortened if all values had the same result, or if there are many."""
        if self.verdict == "refused" and len(labels) == len(self.outcomes) > 1:
            return f"all {len(labels)} that were tried"
        shown, left = labels[:MAX_LISTED], len(labels) - MAX_LISTED
        return ", ".join(shown) + (f" and {left} more" if left > 0 else "")


class Readers:
    """Reads bodies, for a model with thinking sections and for one without."""

    def __init__(self) -> None:
        self._thinks, self._plain = _facts(THINKS), _facts(PLAIN)

    def row(self, endpoint: Endpoint, name: str, hint: Any) -> Row:
        tried = [*(endpoint.values.get(name) or probes_of(hint)), *endpoint.more.get(name, ())]
        assert tried, f"{endpoint.path}: say in endpoints.py what to try for {name}"
        return Row(name, tuple(self._outcome(endpoint, name, probe) for probe in tried))

    def accepts(self, endpoint: Endpoint, name: str, value: Any) -> bool:
        """Whether a body with this value of a field is accepted, for a model with thinking sections."""
        return self._outcome(endpoint, name, Probe("", value)).code is None

    def known(self, endpoint: Endpoint) -> set[str]:
        """The fields that the endpoint declares."""
        return set(object_of(endpoint.read.__self__).kinds)  # type: ignore[attr-defined]

    def _outcome(self, endpoint: Endpoint, name: str, probe: Probe) -> Outcome:
        body = {**endpoint.base, **endpoint.needs.get(name, {}), name: probe.value}
        with ignoring(unknown=False) as left_out:
            error = _error(endpoint, body, self._thinks)
        if error is None and any(" of type " in shown for shown in left_out.shown):
            return Outcome(probe, "omitted with a warning", param=name)
        if error is None:
            thinking = _error(endpoint, body, self._plain) is not None
            return Outcome(probe, None, thinking=thinking, ignored=bool(left_out.shown))
        dialect = DIALECTS[endpoint.client]
        told = to_builtins(dialect.error(error, "req_1"))["error"]
        word = "" if isinstance(told, str) else f" `{told.get('code') or told['type']}`"
        param = error.param if isinstance(error, ParameterError) else None
        unsupported = isinstance(error, FieldError) and error.code in (UNSUPPORTED, "unsupported_value")
        return Outcome(probe, f"{dialect.status(error)}{word}", param=param, unsupported=unsupported)


def rows(readers: Readers, endpoint: Endpoint) -> list[Row]:
    """A row for each field that the client has."""
    return [readers.row(endpoint, name, hint) for name, hint in client_fields(endpoint).items()]


def client_fields(endpoint: Endpoint) -> dict[str, Any]:
    return fields_of(endpoint.params) | dict(endpoint.also)


def page() -> str:
    """The whole page."""
    readers = Readers()
    parts = [HEAD, *(section(readers, endpoint) for endpoint in ENDPOINTS)]
    return "\n\n".join(parts) + "\n"


def section(readers: Readers, endpoint: Endpoint) -> str:
    """The part of the page about one endpoint."""
    lines = [f"## {endpoint.path}", "", "| field | | accepted | refused |", "|---|---|---|---|"]
    lines += [row.line() for row in rows(readers, endpoint)]
    beyond = sorted(readers.known(endpoint) - client_fields(endpoint).keys())
    told = ", ".join(f"`{name}`" for name in beyond)
    return "\n".join([*lines, "", f"Read too, though {CLIENTS[endpoint.client]} client has no such field: {told}."])


def _error(endpoint: Endpoint, body: dict[str, Any], facts: ModelFacts) -> TwofoldError | None:
    try:
        endpoint.read(body).prepare(facts)
    except TwofoldError as error:
        return error
    return None


def _facts(template: str) -> ModelFacts:
    tokenizer = tokenizer_of({**tokenizer_metadata(300), "tokenizer.chat_template": template})
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), context=4096, hidden_size=64)


HEAD: Final = f"""# What the server accepts

Every field that the Python clients of OpenAI, Anthropic and Ollama can send, with the values that were tried: generated
from the clients' types, and tried on the server's readers. The server refuses an unsupported field by name, with an
error in the client's format. It ignores nothing silently: the header `x-twofold-warning` names what has no effect.
Null counts as absent in every field, and objects at any depth may have the labels that clients and other servers add
({", ".join(f"`{name}`" for name in sorted(LABELS))}); they have no effect.
`python -m tests.server.compatibility` writes this page, and a test fails where it is stale.

{NEEDS_THINKING} by reasoning models; others refuse it.
{NEEDS_STORE} by servers with `--kv-store`; others refuse it.
{IGNORED} without effect, which the header says."""

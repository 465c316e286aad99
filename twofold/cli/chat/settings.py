"""Settings of a chat: sampling parameters and display options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from twofold.cli.options import DisplayOptions, SamplingOptions
from twofold.core import sampling_defaults
from twofold.core.errors import ParameterError, UsageError, closest_match
from twofold.core.sampling_defaults import SamplingDefaults

NAMES: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "seed",
    "stop",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Sampling parameters, by the names that the APIs use."""
SWITCHES: Final = ("stats", "markdown")
DEFAULT: Final = "default"
"""Resets a parameter to the default of the model or server."""
OFF: Final = ("off", "none", "no", "false", "0")
ON: Final = ("on", "yes", "true", "1")
_WHOLE: Final = frozenset({"top_k", "max_tokens", "seed"})


@dataclass(slots=True)
class ChatSettings:
    """Sampling parameters and display options of the next completion."""

    sampling: SamplingOptions
    output: DisplayOptions

    def change(self, name: str, text: str) -> None:
        """Sets ``name`` to the value in ``text``. Raises UsageError for an unknown name or invalid value."""
        name = full_name(name)
        if name in SWITCHES:
            self.output = replace(self.output, quiet=False, **{name: _switch(name, text)})
            return
        changed = replace(self.sampling, **{name: _value(name, text)})
        changed.params()
        self.sampling = changed

    def shown(self, name: str, defaults: SamplingDefaults) -> str:
        """A setting in the form that ``change`` accepts, or the model's default."""
        name = full_name(name)
        value = getattr(self.output if name in SWITCHES else self.sampling, name)
        if value is None and name in sampling_defaults.NAMES:
            default = defaults.given().get(name)
            return DEFAULT if default is None else f"{default:g} ({DEFAULT})"
        return _shown(value)

    def as_dict(self) -> dict[str, Any]:
        """The sampling parameters by name."""
        return {name: getattr(self.sampling, name) for name in NAMES}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores the result of ``as_dict``. Raises ParameterError for an invalid value and changes nothing."""
        known = {field.name for field in fields(self.sampling)} & set(NAMES)
        try:
            changed = replace(self.sampling, **{name: value for name, value in saved.items() if name in known})
            changed.params()
        except (TypeError, ValueError) as error:
            raise ParameterError("The saved settings are invalid.", param="settings") from error
        self.sampling = changed

    def lines(self, defaults: SamplingDefaults) -> list[str]:
        """All settings, one per line."""
        return [f"{name:<20}{self.shown(name, defaults)}" for name in (*NAMES, *SWITCHES)]


def full_name(given: str) -> str:
    """The setting with this name, or the only one with this prefix. Raises UsageError."""
    known = (*NAMES, *SWITCHES)
    given = given.replace("-", "_")
    found = [given] if given in known else [name for name in known if given and name.startswith(given)]
    if len(found) == 1:
        return found[0]
    close = ", ".join(found) or closest_match(given, known)
    raise UsageError(
        f"There is no setting {given!r:.60}.",
        hint=f"Did you mean {close}?" if close else f"Settings: {', '.join((*known, 'system'))}.",
    )


def _shown(value: object) -> str:
    if value is None or value == []:
        return "off"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(repr, value)) if isinstance(value, list) else str(value)


def _switch(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word in ON or word in OFF:
        return word in ON
    raise UsageError(f"{name} is on or off, not {text!r:.40}.")


def _value(name: str, text: str) -> Any:
    text = text.strip()
    if name == "stop":
        return [] if text.lower() in OFF else [text.encode().decode("unicode_escape") if "\\" in text else text]
    if name == "seed" and text.lower() in ("off", "none"):
        return None
    if name in sampling_defaults.NAMES and text.lower() == DEFAULT:
        return None
    try:
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        kind = "a whole number" if name in _WHOLE else "a number"
        raise UsageError(f"{name} must be {kind}, not {text!r:.40}.") from None

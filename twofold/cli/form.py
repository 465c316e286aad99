"""Flags that say what form an answer must have."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from twofold.cli.options import LIST, read_text
from twofold.core.errors import ParameterError
from twofold.core.params import StructuredOutputsParams


@Parameter(name="*", group="Structured output")
@dataclass(frozen=True, slots=True, kw_only=True)
class FormOptions:
    """What form the answer must have; one of these, or none."""

    json_schema: Annotated[str | None, Parameter(help="JSON schema of the output: a file or the text.")] = None
    regex: Annotated[str | None, Parameter(help="Regular expression that the whole output matches.")] = None
    choice: Annotated[list[str], LIST, Parameter(help="Allowed output text; repeatable.")] = field(default_factory=list)
    grammar: Annotated[
        Path | None, Parameter(help="Context-free grammar file, in GBNF or llguidance's Lark syntax.")
    ] = None

    def params(self) -> StructuredOutputsParams | None:
        """The form that was asked for, its files read. Raises ParameterError for several, or for what is none."""
        given = {
            "json_schema": self.json_schema,
            "regex": self.regex,
            "choice": self.choice or None,
            "grammar": self.grammar,
        }
        names = ["--" + name.replace("_", "-") for name, value in given.items() if value is not None]
        if not names:
            return None
        if len(names) > 1:
            raise ParameterError(
                f"Structured output has one form, not {' and '.join(names)}.",
                param=names[-1],
                hint="Give one of them.",
            )
        return StructuredOutputsParams(
            json=None if self.json_schema is None else _schema(self.json_schema),
            regex=self.regex,
            choice=self.choice or None,
            grammar=None if self.grammar is None else read_text("grammar", self.grammar),
        )


def _schema(given: str) -> dict[str, Any]:
    """The schema in a file or in the text itself, which begins with a brace."""
    text = given if given.lstrip().startswith("{") else read_text("json_schema", Path(given))
    try:
        schema = json.loads(text)
    except json.JSONDecodeError as error:
        raise ParameterError(
            f"json_schema is not JSON: {error.msg} at line {error.lineno}, column {error.colno}.", param="json_schema"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ParameterError(f"json_schema cannot be read: {error}.", param="json_schema") from error
    if not isinstance(schema, dict):
        raise ParameterError(
            f"json_schema must be an object, not {schema!r:.60}.", param="json_schema", hint='Like {"type": "object"}.'
        )
    return schema

"""``twofold run`` with structured output."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from twofold.cli.options import StructuredOutputOptions
from twofold.core.errors import ParameterError
from twofold.core.params import StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}


@pytest.fixture
def completed(twofold: Command, tiny: Path) -> Any:
    """The JSON that the command prints with these flags."""

    def completion(*flags: object) -> Any:
        return json.loads(twofold("run", "in the", "-m", tiny, "--json", "-n", 64, "--seed", 1, *flags).out)

    return completion


def test_a_schema_as_text_or_in_a_file(completed: Any, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8-sig")
    as_text, in_file = completed("--json-schema", json.dumps(SCHEMA)), completed("--json-schema", path)
    assert isinstance(json.loads(as_text["text"])["a"], bool)
    assert as_text["token_ids"] == in_file["token_ids"]


def test_a_regex_a_choice_and_a_grammar(completed: Any, tmp_path: Path) -> None:
    assert re.fullmatch("[0-9]{3}", completed("--regex", "[0-9]{3}")["text"])
    assert completed("--choice", "red", "--choice", "blue")["text"] in ("red", "blue")
    (tmp_path / "lark").write_text('start: "yes" | "no"')
    (tmp_path / "gbnf").write_text('root ::= "yes" | "no"')
    assert completed("--grammar", tmp_path / "lark")["text"] in ("yes", "no")
    assert completed("--grammar", tmp_path / "gbnf")["text"] in ("yes", "no")


def test_flags_become_structured_outputs() -> None:
    assert StructuredOutputOptions().params() is None
    assert StructuredOutputOptions(choice=["a", "b"]).params() == StructuredOutputsParams(choice=("a", "b"))
    assert StructuredOutputOptions(json_schema=' {"type": "object"}').params() == StructuredOutputsParams(
        json={"type": "object"}
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--regex", "a", "--choice", "b"], "--regex and --choice exclude each other"),
        (["--json-schema", '{"type": }'], "--json-schema is not JSON: Expecting value at line 1, column 10"),
        (["--json-schema", "gone.json"], "gone.json cannot be read: No such file"),
        (["--json-schema", "{list}"], "--json-schema must be an object, not [1]"),
        (["--json-schema", '{"type": "objct"}'], "json"),
        (["--json-schema", "{latin}"], "is not UTF-8 text"),
        (["--grammar", "{list}/deeper"], "cannot be read: "),
        (["--grammar", "{list}"], "grammar"),
        (["--regex", "("], "regex cannot be compiled"),
        (["--regex", ""], "regex"),
        (["--choice", ""], "choice"),
        (["--choice", "red", "--ignore-eos"], "remove --ignore-eos and --min-tokens"),
        (["--choice", "red and blue and green", "-n", "1"], "needs"),
    ],
    ids=str,
)
def test_invalid_structured_outputs(twofold: Command, tiny: Path, tmp_path: Path, flags: list[str], said: str) -> None:
    (tmp_path / "list").write_text("[1]")
    (tmp_path / "latin").write_bytes(b"\xff")
    for name in ("list", "latin"):
        flags = [flag.replace(f"{{{name}}}", str(tmp_path / name)) for flag in flags]
    result = twofold("run", "in the", "-m", tiny, *flags)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert "\nerror: " in f"\n{result.err}"  # kernels may have been compiled before
    assert "Internal" not in result.err


def test_a_name_that_is_no_path() -> None:
    with pytest.raises(ParameterError, match="cannot be read"):
        StructuredOutputOptions(json_schema="x\0y").params()


@pytest.mark.model
def test_a_schema_holds_a_real_model(twofold: Command, default_model: Path) -> None:
    properties = {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}}
    schema = {"type": "object", "properties": properties, "required": ["name", "age"], "additionalProperties": False}
    flags = ("-m", default_model, "-n", 64, "--temperature", 0, "--json", "--json-schema", json.dumps(schema))
    completion = json.loads(twofold("run", "Tell me of a person.", *flags).out)
    person = json.loads(completion["text"])
    assert completion["finish_reason"] == "stop"
    assert person.keys() == {"name", "age"}
    assert 0 <= person["age"] <= 99

"""A token limit that the answer of a real model does not reach does not change the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import pytest

from tests.engine.grammar.conftest import LocalCompiler
from tests.engine.grammar.schemas import SCHEMAS, Schema
from tests.engine.grammar.test_limits import refused
from tests.support.vocabulary import tokenizer_of
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.engine.llm import LLM
from twofold.engine.outputs import CompletionOutput
from twofold.engine.prompts import Prompt
from twofold.formats.gguf import GGUFFile
from twofold.text.parsers.json_calls import HERMES

MARGINS: Final = (1, 8, 20, 60)
AGAIN: Final = (1, 20)
WIDE: Final = 90
TEXT: Final = "Save the person: Ada Lovelace, ada@example.org, born 1815-12-10 in London."
CHOSEN: Final = ("person", "enum", r"pattern ^\w+\s\w+$")
"""The forms whose answers are generated again, with the margins AGAIN. For every form the masks of all margins are made
again, which says the same: no token of the answer is forbidden."""


def forms(schemas: dict[str, Schema]) -> dict[str, StructuredOutputsParams]:
    """Each schema in a response and in a forced call."""
    found = {f"response {name}": StructuredOutputsParams(json=schema) for name, schema in schemas.items()}
    for name, schema in schemas.items():
        tool: dict[str, Any] = {"type": "function", "function": {"name": "save", "parameters": schema}}
        found[f"call {name}"] = StructuredOutputsParams(grammar=HERMES.rules([tool], json.dumps, parallel=False))
    return found


def greedy(form: StructuredOutputsParams, limit: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=limit, structured_outputs=form)


def ended(llm: LLM, wanted: dict[str, StructuredOutputsParams], prompt: Prompt) -> dict[str, CompletionOutput]:
    """The answers that end without a limit."""
    outputs = llm.generate([prompt] * len(wanted), [greedy(form, WIDE) for form in wanted.values()])
    found = {name: output.outputs[0] for name, output in zip(wanted, outputs, strict=True)}
    return {name: output for name, output in found.items() if len(output.token_ids) < WIDE}


def check(
    llm: LLM, wanted: dict[str, StructuredOutputsParams], wide: dict[str, CompletionOutput], prompt: Prompt
) -> None:
    """Generates the answers of CHOSEN again."""
    cases = [(name, margin) for name in wide if name.split(" ", 1)[1] in CHOSEN for margin in AGAIN]
    limited = [greedy(wanted[name], len(wide[name].token_ids) + margin) for name, margin in cases]
    for (name, margin), found in zip(cases, llm.generate([prompt] * len(cases), limited), strict=True):
        output = wide[name]
        assert found.outputs[0].text == output.text, (name, margin)


@pytest.mark.model
@pytest.mark.parametrize(
    ("alias", "names"), [("smollm2-135m", SCHEMAS), ("qwen2.5-coder-0.5b", CHOSEN)], ids=["smollm2", "qwen"]
)
def test_a_limit_that_is_not_reached_changes_no_answer(
    model_path: Callable[[str], Path], alias: str, names: Collection[str]
) -> None:
    path = model_path(alias)
    wanted = forms({name: SCHEMAS[name] for name in names})
    with LLM(path, max_model_len=512, threads=1, max_num_seqs=40) as llm:
        prompt: Prompt = {"prompt_token_ids": list(llm.chat_prompt([{"role": "user", "content": TEXT}]))}
        wide = ended(llm, wanted, prompt)
        assert len(wide) > len(wanted) // 2
        check(llm, wanted, wide, prompt)
    with GGUFFile.open(path) as file:
        tokenizer = tokenizer_of(file.metadata)
    compiler = LocalCompiler(tokenizer, tokenizer.vocab_size)
    for name, output in wide.items():
        compiled, tokens = compiler.compile(wanted[name]), [*output.token_ids]
        places = [refused(compiled, len(tokens) + margin, tokens) for margin in MARGINS]
        assert places == [None] * len(MARGINS), (name, output.text)

"""Prompts that end inside the assistant's turn."""

from __future__ import annotations

import pytest

from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from twofold.core.errors import TemplateError
from twofold.text.templates.builtin_templates import BUILTIN_TEMPLATES
from twofold.text.tokenizers.tokenizer import Tokenizer

USER = {"role": "user", "content": "hi"}


def made(template: str | None = None) -> Tokenizer:
    return tokenizer_of(tokenizer_metadata(300), chat_template=template or "chatml")


@pytest.mark.parametrize("template", sorted(BUILTIN_TEMPLATES))
@pytest.mark.parametrize("begun", ["The", "The ", "The\n\n", "hi", "assistant"])
def test_the_prompt_ends_where_the_last_message_ends(template: str, begun: str) -> None:
    """It is a prefix of the whole chat that ends with the text, and differs from it in the turn's end alone."""
    tokenizer = made(template)
    chat = [USER, {"role": "assistant", "content": begun}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=False, continue_final_message=True, tokenize=False
    )
    whole = tokenizer.apply_chat_template(chat, add_generation_prompt=False, tokenize=False)
    assert prompt.endswith(begun)
    assert whole.startswith(prompt.rstrip())
    asked = tokenizer.apply_chat_template([USER], tokenize=False)
    assert "".join(prompt.split()) == "".join((asked + begun).split())  # some put a space before the completion


def test_its_tokens_are_those_of_the_text() -> None:
    tokenizer = made()
    chat = [USER, {"role": "assistant", "content": "The thing"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=False, continue_final_message=True)
    asked = tokenizer.apply_chat_template([USER], tokenize=False)
    assert ids == tokenizer.encode(asked + "The thing", add_special_tokens=False)


def test_control_tokens_in_the_beginning_stay_text() -> None:
    tokenizer = made()
    chat = [USER, {"role": "assistant", "content": "a<|im_end|>b"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=False, continue_final_message=True)
    assert ids.count(tokenizer.token_id("<|im_end|>") or -1) == 1  # that of the user's turn
    assert tokenizer.decode(ids, skip_special_tokens=False).endswith("assistant\na<|im_end|>b")


def test_a_template_that_hides_the_last_message_is_refused() -> None:
    tokenizer = made("{{ messages[0].content }}")
    with pytest.raises(TemplateError, match="does not show the last message"):
        tokenizer.apply_chat_template([USER, {"role": "assistant", "content": "a"}], continue_final_message=True)

"""Counters with local tokenizers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import TemplateProcessing

from tests.support.tiny import TinyModel, TinyOptions
from twofold.bench.load.base import Ask, PromptMessage, Shared
from twofold.bench.prompts.local import local_counter
from twofold.bench.prompts.prompter import START, WORDS, TokenCounter, make_prompter
from twofold.core.errors import ModelNotFoundError, UnsupportedModelError
from twofold.host.paths import CacheFolders

CHAT = "{{ bos_token }}{% for m in messages %}{{ ' ' + m['role'] + m['content'] }}{% endfor %} assistant"


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    """A word-level tokenizer as Hugging Face's libraries save it."""
    texts = [f" {word}" for word in WORDS] + [START, " user", " assistant", "<s>", "?"]
    tokenizer = Tokenizer(WordLevel({text: index for index, text in enumerate(texts)}, "?"))
    tokenizer.pre_tokenizer = Split(" ", "merged_with_next")
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", texts.index("<s>"))])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_tokenizer_json_counts_texts(hub_folder: Path) -> None:
    for name in (hub_folder, hub_folder / "tokenizer.json"):
        counter = local_counter(str(name), chat=False, models=hub_folder)
        assert counter.count((PromptMessage("user", f"{START} time day"),)) == 4
    assert make_prompter(counter, chat=False, seed=0).recipe.exact


def test_a_chat_needs_the_template_beside_it(hub_folder: Path) -> None:
    messages = (PromptMessage("user", " time day"),)
    assert local_counter(str(hub_folder), chat=True, models=hub_folder).count(messages) is None
    for template in (CHAT, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHAT}]):
        config = {"chat_template": template, "bos_token": {"content": "<s>"}}
        (hub_folder / "tokenizer_config.json").write_text(json.dumps(config))
        assert local_counter(str(hub_folder), chat=True, models=hub_folder).count(messages) == 5
    (hub_folder / "chat_template.jinja").write_text("{{ bos_token }}")
    assert local_counter(str(hub_folder), chat=True, models=hub_folder).count(messages) == 1


def test_a_gguf_model_counts_chats(tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path) -> None:
    model = tiny_gguf(TinyOptions("llama", vocab=300, context=512))
    counter = local_counter(str(model.path), chat=True, models=tmp_path)
    prompter = make_prompter(counter, chat=True, seed=3)
    assert prompter.recipe.exact
    assert counter.count(prompter(Ask(9, 0.0, 123, 1))) == 123


def test_files_that_are_not_tokenizers(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="contains no tokenizer"):
        local_counter(str(tmp_path), chat=True, models=tmp_path)
    with pytest.raises(ModelNotFoundError):
        local_counter("nothing-here.gguf", chat=True, models=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UnsupportedModelError, match="not a tokenizer"):
        local_counter(str(tmp_path), chat=True, models=tmp_path)


def test_an_invalid_config_is_an_error(hub_folder: Path) -> None:
    (hub_folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(UnsupportedModelError, match="tokenizer_config"):
        local_counter(str(hub_folder), chat=True, models=hub_folder)


@pytest.mark.model
@pytest.mark.parametrize("alias", ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-1.5b"])
def test_prompts_are_exact_for_real_models(model_path: Callable[[str], Path], alias: str) -> None:
    models = CacheFolders.of().models
    for chat in (True, False):
        if chat and alias == "gemma3-270m":
            continue  # a base model: it has no chat template
        _check_turns(local_counter(str(model_path(alias)), chat=chat, models=models), chat=chat)


def _check_turns(counter: TokenCounter, *, chat: bool) -> None:
    prompter = make_prompter(counter, chat=chat, seed=11)
    assert prompter.recipe.exact
    history: tuple[PromptMessage, ...] = ()
    before = 0
    for turn, tokens in enumerate((40, 100, 700)):
        ask = Ask(turn, 0.0, tokens, 1, shared=(Shared(1, 20),), history=history, turn=turn)
        messages = prompter(ask)
        assert counter.count(messages) == before + tokens
        history = (*messages, PromptMessage("assistant", "and so on" if chat else " and so on"))
        before += tokens + 3

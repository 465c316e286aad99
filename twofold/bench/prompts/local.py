"""Counts tokens with a local tokenizer: of a GGUF model, or a ``tokenizer.json`` of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer as HubTokenizer

from twofold.bench.endpoints.endpoint import plain_text, role_dicts
from twofold.bench.load.base import PromptMessage
from twofold.bench.prompts.prompter import TokenCounter
from twofold.core.errors import ModelNotFoundError, TemplateError, UnsupportedModelError
from twofold.formats.base import open_model
from twofold.formats.fetch.sources import locate
from twofold.text.templates.chat import ChatTemplate
from twofold.text.tokenizers.metadata import read_vocabulary
from twofold.text.tokenizers.tokenizer import Tokenizer

_MAX_BYTES: Final = 1 << 20
_HINT: Final = "Give a GGUF file, a name that `twofold ls` lists, a tokenizer.json, or a folder with one."


def local_counter(name: str, *, chat: bool, models: Path) -> TokenCounter:
    """A counter with the tokenizer in the file or folder ``name``, or of the downloaded model with that name.

    chat    whether the endpoint takes messages; otherwise one text
    models  folder of downloaded models

    Raises ModelNotFoundError, FormatError, and UnsupportedModelError for a file that is not a tokenizer.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
        if not path.is_file():
            raise ModelNotFoundError(f"The folder {name} contains no tokenizer.json.", hint=_HINT)
    if path.suffix == ".json" and path.is_file():
        return _hub_counter(path, chat)
    with open_model(locate(name, cache=models).path) as file:
        tokenizer = Tokenizer.of(read_vocabulary(file.tokenizer))
    render = tokenizer.apply_chat_template if tokenizer.has_chat_template else None
    return _counter(f"the tokenizer of {name}", tokenizer.encode, render, chat)


def _counter(
    source: str,
    encode: Callable[[str], list[int]],
    render: Callable[[list[dict[str, str]]], list[int]] | None,
    chat: bool,
) -> TokenCounter:
    """A counter of a tokenizer.

    encode  token ids of a text, with the special tokens around it
    render  token ids of a chat with the generation prompt; None without a chat template
    """

    def count(messages: tuple[PromptMessage, ...]) -> int | None:
        if not chat:
            return len(encode(plain_text(messages)))
        with suppress(TemplateError):
            return None if render is None else len(render(role_dicts(messages)))
        return None

    return TokenCounter(source, count)


def _hub_counter(path: Path, chat: bool) -> TokenCounter:
    try:
        tokenizer = HubTokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise UnsupportedModelError(f"{path} is not a tokenizer: {error!s:.200}", hint=_HINT) from error

    def encode(text: str, special: bool = True) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=special).ids
        return ids

    template, tokens = _template(path.parent)

    def render(messages: list[dict[str, str]]) -> list[int]:
        assert template is not None
        return encode(template.render(messages, special_tokens=tokens), special=False)

    return _counter(f"the tokenizer in {path.name}", encode, render if template is not None else None, chat)


def _template(folder: Path) -> tuple[ChatTemplate | None, Mapping[str, str]]:
    """The chat template beside a tokenizer, and the special tokens that it may use."""
    path, config = folder / "tokenizer_config.json", {}
    if path.is_file() and path.stat().st_size <= _MAX_BYTES:
        try:
            found = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            hint = "Fetch the folder again."
            raise UnsupportedModelError(f"{path.name} is not valid JSON: {error}", hint=hint) from error
        config = found if isinstance(found, dict) else {}
    beside = folder / "chat_template.jinja"
    source = beside.read_text("utf-8") if beside.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several templates: [{"name": …, "template": …}, …]
        source = next((each.get("template") for each in source if each.get("name") == "default"), None)
    tokens = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
    named = {name: text for name, text in texts.items() if isinstance(text, str)}
    return (ChatTemplate(source) if isinstance(source, str) else None), named

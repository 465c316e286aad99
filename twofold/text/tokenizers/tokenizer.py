"""Text to token ids and back, for the vocabulary of a model file.

Where implementations differ, this follows the model family's own tokenizer (the ``tokenizers`` package), with these
rules: user-defined tokens (runs of spaces, ``<tool_call>``) are part of the vocabulary and found in any text; control
tokens are found only with ``parse_special``; decoding joins the bytes of all tokens and replaces what is not UTF-8.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack, overload

from tokenizers import Tokenizer as Encoder

from twofold.core.errors import (
    FormatError,
    ParameterError,
    ResourceError,
    TemplateError,
    UnsupportedModelError,
    closest_match,
)
from twofold.text.prompt_limit import SHORT, LowerBound, PromptLimit
from twofold.text.templates.builtin_templates import BUILTIN_TEMPLATES, family_of
from twofold.text.templates.chat import ChatTemplate
from twofold.text.templates.messages import Message, changed, plain, texts_of, validated
from twofold.text.tokenizers import bytelevel, sentencepiece
from twofold.text.tokenizers.bytelevel import word_rule
from twofold.text.tokenizers.encoder import PlainEncoder
from twofold.text.tokenizers.metadata import PREFIX, TokenType, Vocabulary
from twofold.text.tokenizers.special import (
    InfillTokens,
    SpecialTokens,
    escaped,
    infill_tokens,
    names,
    unused_mark,
)

KINDS = ("gpt2", "llama")

_END_NAMES = names(
    "<|im_end|> <|eot_id|> <|eom_id|> <end_of_turn> <|end|> <|endoftext|> <|end_of_text|> <|return|> <|call|> </s> "
    "<eos> <EOT> <|END_OF_TURN_TOKEN|> <｜end▁of▁sentence｜>"
)
"""Control tokens of these names end a completion, whatever the id keys say."""

_HARMONY_NAMES = frozenset({"<|return|>", "<|call|>", "<|end|>"})
"""Where all three exist, ``<|end|>`` only ends one message of a completion."""

_TRIAL_MARK = "\ufdd0"
"""Tells whether a text needs a mark; it may occur in the text."""

_KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Phi-3's control tokens include the white space after them; these do not."""


class ChatOptions(TypedDict, total=False):
    """Keywords of ``Tokenizer.apply_chat_template`` for the end of the prompt, and the template's variables."""

    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any] | None


class TemplateOptions(ChatOptions, total=False):
    """Keywords of ``Tokenizer.apply_chat_template``."""

    tools: Sequence[Message] | None
    trust_content: bool
    exact_content: bool


class Tokenizer:
    """Encodes, decodes and renders chats for one vocabulary. Made by ``of``; safe to share among threads."""

    def __init__(self, vocabulary: Vocabulary, encoder: Encoder, *, chat_template: str | None = None) -> None:
        self._vocabulary = vocabulary
        self._encoder = PlainEncoder(encoder)
        texts = vocabulary.texts
        control = vocabulary.ids_of(TokenType.CONTROL, TokenType.UNKNOWN)
        self.special_ids: frozenset[int] = frozenset(control)
        """Control tokens: found in text only with ``parse_special``, excluded from decoded text."""
        self._bytes: dict[int, bytes] = {}
        eats_space = _eats_space(vocabulary, control)
        self._special = SpecialTokens({texts[token]: token for token in control}, eats_space)
        self.strips_first_space = vocabulary.model == "llama" and vocabulary.add_space_prefix is not False
        """Whether a decoded text loses one leading space, because encoding adds one."""
        self.bos_id, self.eos_id, self.pad_id = vocabulary.bos_id, vocabulary.eos_id, vocabulary.padding_id
        named = {"bos_token": self.bos_id, "eos_token": self.eos_id, "pad_token": self.pad_id}
        self._named_tokens = {name: "" if token is None else texts[token] for name, token in named.items()}
        self.eos_ids: frozenset[int] = _end_ids(vocabulary)
        """Every token that ends a completion."""
        bos_by_default = vocabulary.model == "llama" or word_rule(vocabulary.pre).add_bos
        self.add_bos = _adds(vocabulary.add_bos, "bos", vocabulary.bos_id, bos_by_default)
        self.add_eos = _adds(vocabulary.add_eos, "eos", vocabulary.eos_id, False)
        tool_use = vocabulary.named_templates.get("tool_use") if chat_template is None else None
        self._tool_template = ChatTemplate(tool_use) if tool_use else None
        self._chat_template = self._template(chat_template) or self._tool_template
        marks = vocabulary.ids_of(TokenType.CONTROL, TokenType.USER_DEFINED)
        self.infill: InfillTokens | None = infill_tokens(
            vocabulary.infill_ids, {texts[token]: token for token in marks}
        )
        """The tokens for filling in the middle of a text; None if the model was not trained for it."""
        self._room: PromptLimit | None = None
        self._bound = cache(lambda: LowerBound(vocabulary, eats_space=bool(eats_space)))

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, *, cache_dir: Path | None = None, chat_template: str | None = None
    ) -> Tokenizer:
        """The tokenizer of a vocabulary.

        cache_dir      keeps merge rules of large SentencePiece vocabularies; None derives them each time, which is slow
        chat_template  instead of the file's own: the name of another one in the file or of a built-in family
                       (``BUILTIN_TEMPLATES``), or Jinja source

        Raises FormatError, UnsupportedModelError, or TemplateError for a broken ``chat_template``.
        """
        if vocabulary.model == "gpt2":
            encoder = bytelevel.build_encoder(vocabulary)
        elif vocabulary.model == "llama":
            encoder = sentencepiece.build_encoder(vocabulary, cache_dir)
        else:
            raise UnsupportedModelError(
                f"The tokenizer kind {PREFIX + 'model'!r} = {vocabulary.model!r} is not implemented.",
                hint=f"Implemented kinds: {', '.join(KINDS)}.",
            )
        return cls(vocabulary, encoder, chat_template=chat_template)

    @property
    def vocab_size(self) -> int:
        """Number of ids, unused ones included."""
        return len(self._vocabulary.texts)

    @property
    def max_token_chars(self) -> int:
        """The most characters that a token adds to a text. O(tokens)."""
        return max(map(len, self._vocabulary.texts))

    @property
    def encoder_text(self) -> str:
        """The description with which ``PlainEncoder.from_description`` encodes plain text in another process."""
        return self._encoder.description

    def within(self, room: PromptLimit) -> Self:
        """This tokenizer for prompts that must fit into ``room``. Encoding raises ContextLengthError for a prompt that
        does not fit; a long text that cannot fit is refused before it is tokenised."""
        bounded = copy.copy(self)
        bounded._room = room
        return bounded

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of ``text``, with BOS and EOS if the model uses them.

        parse_special  False takes text that looks like a control token literally, for untrusted text

        Raises ParameterError for text with a lone surrogate, and ContextLengthError as in ``within``.
        """
        if not parse_special:
            self._check_long(text)
        body = self._encode_parsed(text) if parse_special else self._encode_plain(text)
        return self._fitting(self.with_special(body) if add_special_tokens else body)

    def with_special(self, ids: Sequence[int]) -> list[int]:
        """``ids`` with BOS and EOS around them, if the model uses them."""
        return [*self._bos, *ids, *([self.eos_id] if self.add_eos and self.eos_id is not None else [])]

    def _fitting(self, ids: list[int]) -> list[int]:
        if self._room is not None:
            self._room.check(len(ids))
        return ids

    def encode_infill(self, prefix: str, suffix: str) -> list[int]:
        """Ids of a prompt for the text between ``prefix`` and ``suffix``; control tokens in them are plain text.

        Raises ParameterError for a model without tokens for infilling, ContextLengthError as in ``within``.
        """
        if self.infill is None:
            raise ParameterError(
                "This model cannot fill in the middle of a text: its vocabulary has no tokens for it.",
                param="suffix",
                hint="Remove suffix, or use a model for code, such as qwen2.5-coder-1.5b.",
            )
        self._check_long(prefix + suffix)
        prefix_ids, suffix_ids = self._encode_plain(prefix), self._encode_plain(suffix)
        ids = [*self._bos, self.infill.prefix, *prefix_ids, self.infill.suffix, *suffix_ids, self.infill.middle]
        return self._fitting(ids)

    @property
    def _bos(self) -> list[int]:
        """The token before a text, if the model uses it."""
        return [self.bos_id] if self.add_bos and self.bos_id is not None else []

    def _encode_parsed(self, text: str, mark: str = "") -> list[int]:
        """Ids of a text whose control tokens are found; ``mark`` is removed from the rest of it."""
        self._check_long(_without(text, mark))
        room = self._room
        ids: list[int] = []
        for segment in self._special.split(text):
            if segment.token is not None:
                ids.append(segment.token)
            else:
                ids += self._encode_plain(_without(segment.text, mark))
            if room is not None and len(text) > SHORT:
                room.check(len(ids), at_least=True)
        return ids

    def _check_long(self, text: str) -> None:
        """Raises ContextLengthError for a long text that cannot fit, whatever its tokens are."""
        room = self._room
        if room is None or len(text) <= max(SHORT, room.tokens):
            return
        try:
            room.check(self._bound().tokens(text), at_least=True)
        except UnicodeEncodeError as error:
            raise _not_unicode() from error

    def _encode_plain(self, text: str) -> list[int]:
        try:
            return self._encoder.encode(text)
        except TypeError as error:  # the package raises it for a string that has no UTF-8
            raise _not_unicode() from error

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True, continuation: bool = False) -> str:
        """The text of ``ids``; bytes that are not UTF-8 become U+FFFD.

        continuation  the ids continue an earlier text, so the space that SentencePiece puts before the first word is
                      kept
        """
        wanted = (token for token in ids if not (skip_special_tokens and token in self.special_ids))
        text = b"".join(map(self.token_bytes, wanted)).decode(errors="replace")
        return text if continuation or not self.strips_first_space else text.removeprefix(" ")

    def token_text(self, token: int) -> str:
        """The token as it is written in the vocabulary. Raises ParameterError for an id outside of it."""
        if not 0 <= token < len(self._vocabulary.texts):
            raise ParameterError(
                f"Token id {token} is outside of the vocabulary of {self.vocab_size} tokens.",
                param="token",
                hint="Use ids that this tokenizer made.",
            )
        return self._vocabulary.texts[token]

    def token_bytes(self, token: int) -> bytes:
        """Exactly the bytes that a token adds to a text; they need not be whole characters."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._bytes_of(token)
        return known

    def _bytes_of(self, token: int) -> bytes:
        text = self.token_text(token)
        kind = TokenType(int(self._vocabulary.types[token]))
        if self._vocabulary.model == "llama":
            return sentencepiece.token_bytes(text, kind)
        plain = kind in {TokenType.NORMAL, TokenType.BYTE, TokenType.UNUSED}
        return bytelevel.token_bytes(text) if plain else text.encode()

    def token_id(self, text: str) -> int | None:
        """Id of the control token written ``text``."""
        return self._special.id_of(text)

    @property
    def has_chat_template(self) -> bool:
        """Whether messages can be rendered: the file has a template, or one was chosen."""
        return self._chat_template is not None

    def start_rendering(self) -> None:
        """Starts the process that renders chats, without waiting for it. Without this the first chat starts it."""
        if self._chat_template is not None:
            with suppress(ResourceError):
                self._chat_template.start()

    def stop_rendering(self) -> None:
        """Ends the processes that render chats, until the next chat."""
        for template in (self._chat_template, self._tool_template):
            if template is not None:
                template.close()

    @property
    def chat_template(self) -> str | None:
        """Source of the template in use."""
        return None if self._chat_template is None else self._chat_template.source

    @property
    def tool_template(self) -> str | None:
        """Source of the template that renders chats with tools, if it is another one."""
        return None if self._tool_template is None else self._tool_template.source

    def _template(self, chosen: str | None) -> ChatTemplate | None:
        if chosen is not None:
            template = ChatTemplate(_named_or_source(chosen, self._vocabulary.named_templates))
            template.check()
            return template
        source = self._vocabulary.chat_template
        return None if source is None else ChatTemplate(source)

    def _no_template(self) -> TemplateError:
        """A template is never guessed: base models have the control tokens of their family, too."""
        family = family_of(self._special.texts)
        fits = "" if family is None else f" Its control tokens are those of {family}."
        return TemplateError(
            "The model has no chat template, so it can only complete text.",
            hint="Send a plain completion, or choose a template with --chat-template: a file, or one of "
            f"{', '.join(sorted(BUILTIN_TEMPLATES))}.{fits}",
        )

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tokenize: Literal[True] = True,
        **options: Unpack[TemplateOptions],
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tokenize: Literal[False],
        **options: Unpack[TemplateOptions],
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Message] | None = None,
        continue_final_message: bool = False,
        tokenize: bool = True,
        trust_content: bool = False,
        exact_content: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int] | str:
        """The prompt that the model's chat template makes of ``messages``, as ids or as text.

        Text in messages, tools and variables that looks like a control token stays text in the ids, unless
        ``trust_content``.
        The template sees each content as one string, with ``exact_content`` as it is given: a string, a list of text
        parts, or null. With ``continue_final_message`` the prompt ends where the content of the last message ends, its
        turn left open. ``chat_template_kwargs`` become variables of the template.

        Raises TemplateError without a template, for messages that are malformed or that the template refuses, and if
        the template exceeds its limits; ParameterError for a variable whose name is reserved, ResourceError if its
        process cannot be started.
        """
        template = self._tool_template if tools and self._tool_template else self._chat_template
        if template is None:
            raise self._no_template()
        given = [validated(messages, exact_content=exact_content), plain(tools), plain(chat_template_kwargs or {})]
        mark = ""
        if tokenize and not trust_content and self._guarded(given, _TRIAL_MARK) != given:
            mark = self._unused_mark(given)
            given = self._guarded(given, mark)
        checked, checked_tools, variables = given
        end = None
        if continue_final_message:
            end = self._unused_mark(given)
            last = checked[-1]
            if isinstance(last["content"], list) and last["content"]:
                last = last["content"][-1]
            key = "content" if last is checked[-1] else "text"
            last[key] = f"{last[key] or ''}{end}"
        rendered = template.render(
            checked,
            tools=checked_tools,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self._named_tokens,
            variables=variables,
        )
        if end is not None:
            rendered = _until(rendered, end)
        return self._fitting(self._encode_parsed(rendered, mark)) if tokenize else rendered

    def _guarded(self, given: list[Any], mark: str) -> list[Any]:
        """Messages, tools and variables with ``mark`` in all that could become a control token, at any depth. Only the
        role of a message itself stays as it is: it is one of ROLES."""
        messages, *others = changed(given, lambda text, is_name: self._special.broken(text, mark, is_name=is_name))
        return [[{**new, "role": old["role"]} for new, old in zip(messages, given[0], strict=True)], *others]

    def _unused_mark(self, given: list[Any]) -> str:
        """A mark that is neither in messages, tools and variables nor in the template."""
        return unused_mark("".join(texts_of(given)) + (self.chat_template or "") + (self.tool_template or ""))


def _without(text: str, mark: str) -> str:
    return text.replace(mark, "").replace(escaped(mark), "") if mark else text


def _until(rendered: str, mark: str) -> str:
    """Returns the text before the last ``mark``. Raises TemplateError if the text has no ``mark``."""
    before, found, _ = rendered.rpartition(mark)
    if not found:
        raise TemplateError(
            "The chat template does not show the last message, so it cannot be continued.",
            hint="End with a user message.",
        )
    return before.replace(mark, "")


def _not_unicode() -> ParameterError:
    return ParameterError(
        "The text holds a lone surrogate, which is not Unicode text.",
        param="text",
        hint="Decode the input as UTF-8 before sending it.",
    )


def _named_or_source(chosen: str, named: Mapping[str, str]) -> str:
    """The source of a template: of one of the file's ``named`` ones, of a built-in one, or ``chosen`` itself."""
    known = {**BUILTIN_TEMPLATES, **named}
    if chosen in known or "{" in chosen:
        return known.get(chosen, chosen)
    close = closest_match(chosen, known)
    raise ParameterError(
        f"There is no chat template {chosen!r:.200}" + (f"; did you mean {close!r}?" if close else "."),
        param="chat_template",
        hint=f"Known ones: {', '.join(sorted(known))}. Or give Jinja source, on the command line in a file.",
    )


def _adds(given: bool | None, name: str, token: int | None, default: bool) -> bool:
    if given and token is None:
        raise FormatError(
            f"The tokenizer metadata '{PREFIX}add_{name}_token' is true, but '{PREFIX}{name}_token_id' is missing.",
            hint="The file is corrupt, or was made by a faulty converter.",
        )
    return token is not None and (default if given is None else given)


def _end_ids(vocabulary: Vocabulary) -> frozenset[int]:
    control = {token: vocabulary.texts[token] for token in vocabulary.ids_of(TokenType.CONTROL)}
    ends = _END_NAMES - ({"<|end|>"} if set(control.values()) >= _HARMONY_NAMES else set())
    named = {token for token, text in control.items() if text in ends}
    given = (vocabulary.eos_id, vocabulary.eot_id, vocabulary.eom_id)
    return frozenset(named | {token for token in given if token is not None})


def _eats_space(vocabulary: Vocabulary, control: list[int]) -> frozenset[int]:
    """The control tokens that include the white space after them."""
    if vocabulary.model != "llama" or vocabulary.architecture != "phi3":
        return frozenset()
    return frozenset(token for token in control if vocabulary.texts[token] not in _KEEPS_SPACE)

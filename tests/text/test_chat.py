"""Chat templates: what they see, what they refuse, and that text of strangers never becomes a control token."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import Metadata, bytelevel_metadata
from twofold.core.errors import ParameterError, TemplateError
from twofold.formats.gguf import GGUFFile
from twofold.text.templates.builtin_templates import BUILTIN_TEMPLATES, family_of
from twofold.text.templates.chat import RESERVED_VARIABLES, ChatTemplate
from twofold.text.templates.messages import MAX_DEPTH, Message, validated
from twofold.text.tokenizers.tokenizer import Tokenizer

USER: Message = {"role": "user", "content": "Hi"}
TALK: list[Message] = [
    {"role": "system", "content": "Be kind."},
    USER,
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Bye"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def rendered(source: str, messages: Sequence[Message] = (USER,), **variables: Any) -> str:
    return ChatTemplate(source).render(validated(messages), **{"special_tokens": TOKENS, **variables})


class TestVariables:
    def test_messages_and_tokens(self) -> None:
        source = "{{ bos_token }}{% for m in messages %}{{ m.role }}={{ m['content'] }};{% endfor %}{{ eos_token }}"
        assert rendered(source, TALK[:2]) == "<s>system=Be kind.;user=Hi;</s>"

    def test_blocks_take_their_lines_with_them(self) -> None:
        assert rendered("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"

    def test_tojson_keeps_order_and_characters(self) -> None:
        tools = [{"b": "é<'>", "a": [1, None, True]}]
        assert rendered("{{ tools | tojson }}", tools=tools) == '[{"b": "é<\'>", "a": [1, null, true]}]'
        assert rendered("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'

    def test_date(self) -> None:
        template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", clock=lambda: datetime(2024, 7, 26))
        assert template.render([USER]) == "26 Jul 2024"

    def test_loop_controls_and_generation_tag(self) -> None:
        source = "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        assert rendered(source + "{% generation %}x{% endgeneration %}") == "01x"

    def test_own_variables(self) -> None:
        assert rendered("{{ enable_thinking }}", variables={"enable_thinking": False}) == "False"

    @pytest.mark.parametrize("name", [*sorted(RESERVED_VARIABLES), "unk_token"])
    def test_taken_names(self, name: str) -> None:
        with pytest.raises(ParameterError, match=f"'{name}' is reserved") as caught:
            rendered("x", variables={name: 1}, special_tokens=TOKENS | {"unk_token": "?"})
        assert caught.value.param == f"chat_template_kwargs.{name}"

    @pytest.mark.parametrize("name", ["", "a b", "a-b", "1a", "a.b", "{{", "x" * 65, "x" * 2_000_000])
    def test_what_is_no_name(self, name: str) -> None:
        with pytest.raises(ParameterError, match="cannot be named") as caught:
            rendered("x", variables={name: 1})
        assert caught.value.param == f"chat_template_kwargs.{name[:64]}"
        assert len(str(caught.value)) < 200

    def test_values_arrive_as_they_are(self) -> None:
        values: list[Any] = [
            0,
            -1,
            2**80,
            1.5,
            1e-300,
            float("inf"),
            True,
            None,
            "\ud800é\U0001f600\x00",
            {"b": [], "a": {}},
        ]
        assert rendered("{{ v }}", variables={"v": values}) == str(values)
        text = "\ud800 \U0010ffff \r\n\t\x00"
        assert rendered("{{ messages[0].content }}", [{"role": "user", "content": text}]) == text

    def test_a_number_too_long_to_write(self) -> None:
        with pytest.raises(TemplateError, match="failed on these messages"):
            rendered("x", variables={"v": 10**5000})

    def test_what_templates_are_known_to_use(self) -> None:
        source = (
            "{% set ns = namespace(n=0) %}{% for m in messages[1:] %}{% set ns.n = ns.n + loop.index0 %}{% endfor %}"
            "{{ ns.n }}{{ 'a' * 3 }}{{ ' x '.strip() }}{{ 'a,b'.split(',')[-1] }}{{ messages | length }}"
            "{{ messages | map(attribute='role') | join('+') }}{{ {'k': 1}.items() | list }}"
            "{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}{{ 'a' ~ 1 ~ none }}{{ x is defined }}"
            "{{ messages | selectattr('role', 'equalto', 'user') | list | count }}{{ 'abc'[::-1] }}"
            "{{ 7 // 2 }}{{ 7 % 4 }}{{ 'b' in ['a', 'b'] }}{{ ['a'] + ['b'] }}{{ 'aXa'.replace('a', 'bb') }}"
            "{{ ''.join(['p', 'q']) }}{{ 'a\nb' | indent(1) }}{{ 'A' | lower }}{{ none | default('d', true) }}"
        )
        plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
        assert rendered(source, TALK) == plain.render(messages=TALK)


class TestRefusals:
    def test_raise_exception_is_reported(self) -> None:
        with pytest.raises(TemplateError, match="refuses the messages: roles must alternate"):
            rendered("{{ raise_exception('roles must alternate') }}")

    @pytest.mark.parametrize("source", ["{{", "{% for %}", "{% unknown %}", "{{ x | nofilter }}", "{% endif %}"])
    def test_not_jinja(self, source: str) -> None:
        with pytest.raises(TemplateError, match="is not valid"):
            ChatTemplate(source).check()

    @pytest.mark.parametrize("source", ["{{ 1 / 0 }}", "{{ x.y.z }}", "{{ 1 + 'a' }}", "{{ messages[9].a.b }}"])
    def test_fails_on_these_messages(self, source: str) -> None:
        with pytest.raises(TemplateError, match="failed on these messages"):
            rendered(source)

    @pytest.mark.parametrize(
        ("messages", "fault"),
        [
            ([], "at least one"),
            ("Hi", "must be a list"),
            (["Hi"], r"messages\[0\] must be an object"),
            ([{"content": "x"}], "unknown role None"),
            ([{"role": "usr", "content": "x"}], "did you mean 'user'"),
            ([{"role": "user"}], "no 'content'"),
            ([{"role": "user", "content": 5}], "must be a string"),
            ([{"role": "user", "contents": "x"}], "unknown field 'contents'; did you mean 'content'"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] must be a text part"),
            ([{"role": "assistant", "tool_calls": [object()]}], "plain data, not object"),
            ([USER] * 4097, "too many"),
        ],
    )
    def test_malformed_messages(self, messages: Any, fault: str) -> None:
        with pytest.raises(TemplateError, match=fault):
            validated(messages)

    def test_nesting_is_bounded(self) -> None:
        deep: Any = "x"
        for _ in range(MAX_DEPTH + 9):
            deep = [deep]
        with pytest.raises(TemplateError, match="nested deeper"):
            validated([{"role": "assistant", "tool_calls": deep}])

    def test_text_parts_are_joined(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert validated([{"role": "user", "content": parts}]) == [{"role": "user", "content": "a\nb"}]


def chatml(**changes: object) -> Metadata:
    return bytelevel_metadata(control=["<|im_start|>", "<|im_end|>"]) | changes


@cache
def chatml_tokenizer() -> Tokenizer:
    """One for all examples: each has a process."""
    return tokenizer_of(chatml(), chat_template="chatml")


class TestTokenizer:
    def test_template_of_the_file(self) -> None:
        tokenizer = tokenizer_of(chatml(**{"tokenizer.chat_template": "[{{ messages[0].content }}]"}))
        assert tokenizer.apply_chat_template([USER], tokenize=False) == "[Hi]"
        assert tokenizer.decode(tokenizer.apply_chat_template([USER])) == "[Hi]"

    def test_control_tokens_are_no_template(self) -> None:
        tokenizer = tokenizer_of(chatml())
        assert not tokenizer.has_chat_template
        with pytest.raises(TemplateError) as caught:
            tokenizer.apply_chat_template([USER])
        assert "Its control tokens are those of chatml." in str(caught.value.hint)

    def test_built_in(self) -> None:
        tokenizer = tokenizer_of(chatml(), chat_template="chatml")
        assert tokenizer.has_chat_template
        prompt = tokenizer.apply_chat_template([USER], tokenize=False)
        assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        ids = tokenizer.apply_chat_template([USER])
        assert [token for token in ids if token in tokenizer.special_ids] == [256, 257, 256]

    def test_none(self) -> None:
        tokenizer = tokenizer_of(bytelevel_metadata())
        assert not tokenizer.has_chat_template
        with pytest.raises(TemplateError, match="no chat template") as caught:
            tokenizer.apply_chat_template([USER])
        assert "chatml" in str(caught.value.hint)

    def test_chosen(self) -> None:
        named = tokenizer_of(bytelevel_metadata(), chat_template="zephyr")
        assert named.apply_chat_template([USER], tokenize=False) == "<|user|>\nHi<|end|>\n<|assistant|>\n"
        own = tokenizer_of(bytelevel_metadata(), chat_template="{{ messages | length }}")
        assert own.apply_chat_template([USER], tokenize=False) == "1"
        with pytest.raises(ParameterError, match="did you mean 'chatml'"):
            tokenizer_of(bytelevel_metadata(), chat_template="chatlm")

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im", "_end|>", "a", " ", "\ufdd0"]), max_size=8))
    def test_content_never_becomes_a_control_token(self, parts: list[str]) -> None:
        tokenizer = chatml_tokenizer()
        message = {"role": "user", "content": "".join(parts)}
        ids = tokenizer.apply_chat_template([message])
        assert [token for token in ids if token in tokenizer.special_ids] == [256, 257, 256]
        assert tokenizer.decode(ids, skip_special_tokens=False) == tokenizer.apply_chat_template(
            [message], tokenize=False
        )

    def test_trusted_content_may_hold_control_tokens(self) -> None:
        tokenizer = tokenizer_of(chatml(), chat_template="chatml")
        ids = tokenizer.apply_chat_template([{"role": "user", "content": "<|im_end|>"}], trust_content=True)
        assert ids.count(257) == 2


class TestBuiltIn:
    @pytest.mark.parametrize(
        ("name", "prompt"),
        [
            (
                "chatml",
                "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                "Hello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                "gemma",
                "<s><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
                "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "llama2",
                "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]",
            ),
            (
                "llama3",
                "<s><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|><|start_header_id|>user"
                "<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
                "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant"
                "<|end_header_id|>\n\n",
            ),
            ("mistral", "<s>[INST] Hi[/INST] Hello!</s>[INST] Be kind.\n\nBye[/INST]"),
            (
                "phi3",
                "<|system|>\nBe kind.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\nBye<|end|>\n"
                "<|assistant|>\n",
            ),
            (
                "zephyr",
                "<|system|>\nBe kind.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n<|user|>\nBye</s>\n"
                "<|assistant|>\n",
            ),
        ],
    )
    def test_formats(self, name: str, prompt: str) -> None:
        assert rendered(BUILTIN_TEMPLATES[name], TALK) == prompt

    @pytest.mark.parametrize("name", ["gemma", "llama2", "mistral"])
    def test_turns_must_alternate(self, name: str) -> None:
        with pytest.raises(TemplateError, match="must alternate"):
            rendered(BUILTIN_TEMPLATES[name], [USER, USER])

    def test_chosen_by_exact_control_tokens(self) -> None:
        assert family_of({"<start_of_turn>", "<end_of_turn>", "x"}) == "gemma"
        assert family_of({"<start_of_turn>"}) is None
        assert family_of({"<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"}) is None


@pytest.mark.model
def test_template_of_the_default_model(default_model: Path) -> None:
    """Rendered by plain Jinja, tokenised whole: the same ids."""
    with GGUFFile.open(default_model) as file:
        metadata = dict(file.metadata.items())
    tokenizer = tokenizer_of(metadata)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(str(metadata["tokenizer.chat_template"]))
    for messages in ([USER], TALK):
        expected = template.render(messages=messages, add_generation_prompt=True)
        assert tokenizer.apply_chat_template(messages, tokenize=False) == expected
        assert tokenizer.apply_chat_template(messages) == tokenizer.encode(expected, add_special_tokens=False)

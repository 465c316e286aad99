"""Chat templates of well-known families, for files that carry none. Chosen by name, never guessed.

The formats are facts about how each family was trained; the templates are written here anew.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SYSTEM = (
    "{% set system = '' %}"
    "{% if messages and messages[0].role in ['system', 'developer'] %}"
    "{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}"
    "{% endif %}"
)
"""Takes a first system message away from ``messages``."""

_ALTERNATE = (
    "{% if (message.role == 'user') != (loop.index0 is even) or message.role not in ['user', 'assistant'] %}"
    "{{ raise_exception('after an optional system message, user and assistant messages must alternate') }}"
    "{% endif %}"
)

_GEMMA = (
    "{{ bos_token }}" + _SYSTEM + "{% for message in messages %}" + _ALTERNATE + "<start_of_turn>"
    "{{ 'model' if message.role == 'assistant' else 'user' }}\n"
    "{% if loop.first and system %}{{ system }}\n\n{% endif %}"
    "{{ message.content | trim }}<end_of_turn>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

_LLAMA2 = (
    _SYSTEM + "{% for message in messages %}" + _ALTERNATE + "{% if message.role == 'user' %}"
    "{{ bos_token }}[INST] "
    "{% if loop.first and system %}<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}"
    "{{ message.content | trim }} [/INST]"
    "{% else %} {{ message.content | trim }} {{ eos_token }}{% endif %}"
    "{% endfor %}"
)

_LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n{{ message.content | trim }}<|eot_id|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)

_MISTRAL = (
    "{{ bos_token }}" + _SYSTEM + "{% for message in messages %}" + _ALTERNATE + "{% if message.role == 'user' %}"
    "[INST] {% if loop.last and system %}{{ system }}\n\n{% endif %}{{ message.content }}[/INST]"
    "{% else %} {{ message.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)

_PHI3 = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

_ZEPHYR = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

BUILTIN_TEMPLATES: Mapping[str, str] = MappingProxyType(
    {
        "chatml": _CHATML,
        "gemma": _GEMMA,
        "llama2": _LLAMA2,
        "llama3": _LLAMA3,
        "mistral": _MISTRAL,
        "phi3": _PHI3,
        "zephyr": _ZEPHYR,
    }
)

_MARKS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "chatml": frozenset({"<|im_start|>", "<|im_end|>"}),
        "gemma": frozenset({"<start_of_turn>", "<end_of_turn>"}),
        "llama3": frozenset({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}),
        "mistral": frozenset({"[INST]", "[/INST]"}),
        "phi3": frozenset({"<|user|>", "<|assistant|>", "<|end|>"}),
    }
)
"""Control tokens that only models of that family have. Llama 2 and Zephyr have none: their marks are plain text."""


def family_of(control_tokens: Collection[str]) -> str | None:
    """The family whose control tokens are all present; None if no family or several match."""
    present = frozenset(control_tokens)
    families = [family for family, marks in _MARKS.items() if marks <= present]
    return families[0] if len(families) == 1 else None

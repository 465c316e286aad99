"""How byte-level vocabularies cut a text into words before merging: ``tokenizer.ggml.pre`` as data.

A word never merges with its neighbour, so a wrong cut gives wrong ids. The names are those GGUF converters write; the
patterns are the published ones of each model family's own tokenizer, in the dialect of the ``tokenizers`` package.
Where a family also normalises Unicode (NFC), so do we; llama.cpp does not, and its ids differ there on decomposed text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex, normalizers, pre_tokenizers

from twofold.core.errors import UnsupportedModelError, closest_match

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}NUMBERS| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _WORDS.replace("NUMBERS", "{1,3}")
_QWEN2 = _WORDS.replace("NUMBERS", "")

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+SUFFIX|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*SUFFIX"
    rf"|\p{{N}}NUMBERS| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_GPT4O = _CASED.replace("SUFFIX", f"{_CONTRACTION}?").replace("NUMBERS", "{1,3}")
_TEKKEN = _CASED.replace("SUFFIX", "").replace("NUMBERS", "")
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class WordRule:
    """How one family cuts words: each pattern splits further what the ones before it left.

    whole_words  a word that is itself a token is not merged (``ignore_merges``)
    add_bos      whether a text starts with BOS unless the file specifies it
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_DIGITS = WordRule((r"\p{N}", _GPT2))
_PLAIN = WordRule((_GPT2,))
_LLAMA3_RULE = WordRule((_LLAMA3,), whole_words=True, add_bos=True)
_QWEN2_RULE = WordRule((_QWEN2,), nfc=True)

RULES: Mapping[str, WordRule] = MappingProxyType(
    {
        "gpt2": _PLAIN,
        "gpt-2": _PLAIN,
        "phi-2": _PLAIN,
        "smollm": _DIGITS,
        "starcoder": _DIGITS,
        "refact": _DIGITS,
        "command-r": WordRule((r"\p{N}", _GPT2), nfc=True),
        "llama-bpe": _LLAMA3_RULE,
        "llama3": _LLAMA3_RULE,
        "llama-v3": _LLAMA3_RULE,
        "qwen2": _QWEN2_RULE,
        "deepseek-r1-qwen": WordRule((_QWEN2,)),
        "tekken": WordRule((_TEKKEN,), whole_words=True, add_bos=True),
        "gpt-4o": WordRule((_GPT4O,)),
        "deepseek-coder": WordRule(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
        "deepseek-v3": WordRule((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)),
        "default": WordRule((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    }
)


def word_rule(name: str) -> WordRule:
    """The rule that a file names. Raises UnsupportedModelError for one that is not in the table."""
    rule = RULES.get(name)
    if rule is None:
        close = closest_match(name, RULES)
        raise UnsupportedModelError(
            f"The pre-tokenizer 'tokenizer.ggml.pre' = {name!r} is not known"
            + (f"; the nearest known name is {close!r}." if close else "."),
            hint=f"Known ones: {', '.join(sorted(RULES))}.",
        )
    return rule


def pre_tokenizer(rule: WordRule) -> pre_tokenizers.PreTokenizer:
    """The rule as a step of ``tokenizers``: split, then write each byte as one printable character."""
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def normalizer(rule: WordRule) -> normalizers.Normalizer | None:
    """NFC, for families that use it; otherwise None."""
    return normalizers.NFC() if rule.nfc else None

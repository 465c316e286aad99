"""Byte-level BPE (``tokenizer.ggml.model = gpt2``): every byte is a printable character, words merge by rank.

Method: Radford et al. 2019 (GPT-2), on Sennrich et al. 2016 (BPE).

How a text is cut into words before merging (``tokenizer.ggml.pre``) is data. No merge crosses the border of two words,
so a wrong cut gives wrong ids. The names are those that GGUF converters write; the patterns are the published ones of
each family's own tokenizer, in the syntax of the ``tokenizers`` package. Where a family also normalises Unicode (NFC),
Twofold does, too; llama.cpp does not, and its ids differ on decomposed text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Final

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Encoder

from twofold.core.errors import FormatError, UnsupportedModelError, closest_match
from twofold.text.tokenizers.metadata import PREFIX, TokenType, Vocabulary

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
    """How one family cuts words: each pattern splits the parts that the patterns before it left.

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


CACHED_WORDS: Final = 4096
"""Words that an encoder caches with their tokens. It caches no words above 256 bytes, so this takes at most 33 MB."""


@cache
def character_bytes() -> Mapping[str, int]:
    """The byte of each character of a byte-level token.

    Printable bytes of Latin-1 are their own characters; the other 68 have the code points from 256 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    pairs = {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
    return MappingProxyType(pairs)


def token_bytes(text: str) -> bytes:
    """The bytes of a byte-level token; a text with other characters is taken literally, as its UTF-8."""
    table = character_bytes()
    try:
        return bytes([table[character] for character in text])
    except KeyError:
        return text.encode()


def build_encoder(vocabulary: Vocabulary) -> Encoder:
    """An encoder for plain text. Control tokens are excluded, so plain text cannot become one.

    Raises FormatError for merges that do not fit the vocabulary, UnsupportedModelError for an unknown pre-tokenizer.
    """
    rule = word_rule(vocabulary.pre)
    known = vocabulary.ids_of(TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.BYTE)
    ids = {vocabulary.texts[token]: token for token in known}
    encoder = Encoder(_bpe(ids, vocabulary, rule.whole_words))
    if rule.nfc:
        encoder.normalizer = normalizers.NFC()
    encoder.pre_tokenizer = pre_tokenizer(rule)
    added = [vocabulary.texts[token] for token in vocabulary.ids_of(TokenType.USER_DEFINED)]
    encoder.add_tokens([AddedToken(text, normalized=False) for text in added])
    return encoder


def _bpe(ids: dict[str, int], vocabulary: Vocabulary, whole_words: bool) -> models.BPE:
    pairs = [merge.split(" ") for merge in vocabulary.merges]
    fit = (
        all(len(pair) == 2 for pair in pairs)
        and ids.keys() >= set(chain.from_iterable(pairs))
        and ids.keys() >= set(map("".join, pairs))
    )
    merges = [(left, right) for left, right in pairs] if fit else _usable(ids, vocabulary)
    return models.BPE(ids, merges, cache_capacity=CACHED_WORDS, ignore_merges=whole_words)


def _usable(ids: dict[str, int], vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merges between tokens that plain text may become. Raises FormatError for a merge of unknown texts."""
    known, plain = set(vocabulary.texts), ids.keys()
    usable = []
    for index, merge in enumerate(vocabulary.merges):
        left, _, right = merge.partition(" ")
        pieces = {left, right, left + right}
        if not left or not right or not pieces <= known:
            raise FormatError(
                f"The tokenizer metadata {PREFIX + 'merges'!r} holds {merge!r} at {index}, which joins no two tokens.",
                hint="The file is corrupt, or was made by a faulty converter.",
            )
        if pieces <= plain:
            usable.append((left, right))
    return usable

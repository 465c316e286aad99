"""Small vocabularies of both kinds, and BPE as slow and plain as it can be written, to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from twofold.text.tokenizers.metadata import PREFIX, TokenType
from twofold.text.tokenizers.tokenizer import Tokenizer

Metadata = dict[str, object]

REPEATS: Final = (("a", "a"), ("aa", "aa"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("1", "1"))
"""Merges of repeated characters."""


def byte_letters() -> dict[int, str]:
    """The printable character of each byte in GPT-2's alphabet."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        letters.setdefault(byte, chr(256 + len(letters) - len(printable)))
    return letters


def bytelevel_metadata(
    merges: Sequence[tuple[str, str]] = (),
    *,
    control: Sequence[str] = ("<|end|>",),
    defined: Sequence[str] = (),
    pre: str = "gpt2",
) -> Metadata:
    """All bytes, the merged tokens, then control and user-defined ones."""
    normal = list(dict.fromkeys([*byte_letters().values(), *(left + right for left, right in merges)]))
    types = [TokenType.NORMAL] * len(normal) + [TokenType.CONTROL] * len(control)
    types += [TokenType.USER_DEFINED] * len(defined)
    return {
        PREFIX + "model": "gpt2",
        PREFIX + "pre": pre,
        PREFIX + "tokens": [*normal, *control, *defined],
        PREFIX + "token_type": [int(kind) for kind in types],
        PREFIX + "merges": [f"{left} {right}" for left, right in merges],
        PREFIX + "eos_token_id": len(normal),
    }


def sentencepiece_metadata(
    pieces: Sequence[str],
    scores: Sequence[float] | None = None,
    *,
    control: Sequence[str] = ("<end>",),
    defined: Sequence[str] = (),
    space_prefix: bool = False,
    bytes_too: bool = True,
) -> Metadata:
    """<unk> <s> </s>, bytes, then control and user-defined tokens, then the pieces, best first unless scored."""
    special = ["<unk>", "<s>", "</s>"]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)] if bytes_too else []
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * len(fallback)]
    types += [TokenType.CONTROL] * len(control) + [TokenType.USER_DEFINED] * len(defined)
    before = len(types)
    types += [TokenType.NORMAL] * len(pieces)
    given = [-float(rank) for rank in range(len(pieces))] if scores is None else list(scores)
    return {
        PREFIX + "model": "llama",
        PREFIX + "tokens": [*special, *fallback, *control, *defined, *pieces],
        PREFIX + "token_type": [int(kind) for kind in types],
        PREFIX + "scores": [0.0] * before + given,
        PREFIX + "unknown_token_id": 0,
        PREFIX + "bos_token_id": 1,
        PREFIX + "eos_token_id": 2,
        PREFIX + "add_space_prefix": space_prefix,
    }


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids without BOS and EOS."""
    return tokenizer.encode(text, add_special_tokens=False)


def naive_ranked(word: Sequence[str], merges: Sequence[tuple[str, str]]) -> list[str]:
    """Sennrich's BPE: merge the best-ranked neighbours, everywhere from the left, until none is left."""
    parts = list(word)
    while candidates := [pair for pair in pairwise(parts) if pair in merges]:
        best = min(candidates, key=merges.index)
        index = 0
        while index < len(parts) - 1:
            if (parts[index], parts[index + 1]) == best:
                parts[index : index + 2] = ["".join(best)]
            index += 1
    return parts


def naive_scored(text: str, pieces: Sequence[str]) -> list[str]:
    """SentencePiece's BPE: of all neighbours whose union is a piece, merge the best, the leftmost of equals."""
    parts = list(text)
    while True:
        places = [index for index in range(len(parts) - 1) if parts[index] + parts[index + 1] in pieces]
        if not places:
            return parts
        best = min(places, key=lambda index: (pieces.index(parts[index] + parts[index + 1]), index))
        parts[best : best + 2] = [parts[best] + parts[best + 1]]

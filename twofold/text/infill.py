"""Tokens for fill-in-the-middle, in the order prefix, suffix, middle (Bavarian et al. 2022).

A GGUF file has their ids in ``tokenizer.ggml.fim_*_token_id`` or, older, ``prefix_token_id`` etc.; otherwise they are
found by their texts in the vocabularies of Qwen, StarCoder, CodeLlama, DeepSeek and others. The
names are those that llama.cpp knows (``src/llama-vocab.cpp``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from twofold.text.tokenizers.names import names

PREFIX_NAMES: Final = names("<|fim_prefix|> <fim-prefix> <fim_prefix> <PRE> ▁<PRE> <|code_prefix|> <｜fim▁begin｜>")
SUFFIX_NAMES: Final = names("<|fim_suffix|> <fim-suffix> <fim_suffix> <SUF> ▁<SUF> <|code_suffix|> <｜fim▁hole｜>")
MIDDLE_NAMES: Final = names("<|fim_middle|> <fim-middle> <fim_middle> <MID> ▁<MID> <|code_middle|> <｜fim▁end｜>")
END_NAMES: Final = names(
    "<|fim_pad|> <fim-pad> <fim_pad> <PAD> <|repo_name|> <|fim_repo|> <fim-repo> <reponame> <REPO> <|file_sep|> "
    "<EOT> ▁<EOT>"
)
"""Tokens that are followed by another file or nothing: they end the completion."""


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """Token ids. ``ends`` end the completion, in addition to the model's own."""

    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]


def infill_tokens(given: Mapping[str, int | None], marks: Mapping[str, int]) -> InfillTokens | None:
    """The tokens of a vocabulary; None if one of the three is missing.

    given   ids by the file's own names for them: prefix, suffix, middle
    marks   ids of all tokens that are not plain text, by how they are written
    """
    known = {"prefix": PREFIX_NAMES, "suffix": SUFFIX_NAMES, "middle": MIDDLE_NAMES}
    found: dict[str, int] = {}
    for part, written in known.items():
        named = given.get(part)
        token = named if named is not None else next((marks[name] for name in sorted(written & marks.keys())), None)
        if token is None:
            return None
        found[part] = token
    others = {marks[name] for name in END_NAMES & marks.keys()}
    return InfillTokens(**found, ends=tuple(sorted(others | set(found.values()))))

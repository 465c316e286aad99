"""The part of a tokenizer that cuts plain text, as it travels to another process."""

from __future__ import annotations

from tokenizers import Tokenizer as Encoder


class PlainEncoder:
    """Cuts text as ``Tokenizer.encode`` does with neither special tokens added nor parsed.

    ``text`` is what ``Tokenizer.encoder_text`` gave.
    """

    def __init__(self, text: str) -> None:
        self._encoder = Encoder.from_str(text)

    def __call__(self, text: str) -> list[int]:
        (encoding,) = self._encoder.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

"""Bodies of OpenAI's embeddings: texts whose vectors are wanted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args

from twofold.core.params import MAX_TOKEN_ID
from twofold.core.request import RequestOptions
from twofold.core.step import Pooling
from twofold.engine.offline.bodies import PoolingParams, open_body, read_options, read_texts
from twofold.engine.offline.fields import Fields
from twofold.engine.offline.replies import ReplyHead, embedding_list
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import GivenPrompt
from twofold.text.tokenizer import Tokenizer

Encoding = Literal["float", "base64"]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """The body of /v1/embeddings. ``pooling``, which OpenAI has not, is mean or last."""

    model: str | None
    given: tuple[GivenPrompt, ...]
    encoding: Encoding
    params: PoolingParams
    options: RequestOptions

    @classmethod
    def read(cls, body: object, handled: Collection[str] = ()) -> Self:
        """Reads a body; ``handled`` are fields that the caller sees to.

        Raises ParameterError for an impossible, unknown or unsupported field.
        """
        fields = open_body(body, handled, {})
        request = cls(
            model=fields.text("model"),
            given=read_texts(fields, "input"),
            encoding=cast(Encoding, _choice(fields, "encoding_format", "float", get_args(Encoding))),
            params=PoolingParams(
                cast(Pooling, _choice(fields, "pooling", "mean", get_args(Pooling))),
                fields.whole("dimensions", 1, MAX_TOKEN_ID),
            ),
            options=read_options(fields),
        )
        fields.close()
        return request

    def prompts(self, tokenizer: Tokenizer) -> list[GivenPrompt]:  # noqa: ARG002 - the engine makes tokens of text
        return list(self.given)

    def reply(
        self,
        head: ReplyHead,
        outputs: Sequence[RequestOutput],
        tokenizer: Tokenizer,  # noqa: ARG002 - vectors have no text
    ) -> dict[str, Any]:
        return embedding_list(head, outputs, base64=self.encoding == "base64")


def _choice(fields: Fields, name: str, default: str, known: tuple[str, ...]) -> str:
    return default if fields.take(name) is None else fields.choice(name, known)

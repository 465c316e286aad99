"""/v1/compress: a text without the sentences that surprise a model least, or of which a question says least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from twofold.api.base import ModelFacts, ReplyHead, Streamer
from twofold.api.body import Explanation, ModelName, NonEmptyText, NonNegativeInt, ReplyObject
from twofold.api.compression import BEHIND, CompressionReply, Force, Keep, OutputTokens, ScoredTexts
from twofold.api.openai.bodies import LabelledRequest, Priority
from twofold.api.openai.replies import PromptUsage, prompt_usage
from twofold.core.request import EngineRequest
from twofold.engine.compress import CompressionParams, CompressionReport, ReadingTime
from twofold.engine.outputs import RequestOutput
from twofold.text.spans import MAX_CHARS, Range

MAX_PROTECTED: Final = 1024

Offsets: TypeAlias = Annotated[
    list[Annotated[int, Meta(ge=0, le=MAX_CHARS)]],
    Meta(min_length=2, max_length=2, extra={"wanted": "a text, or [start, end]"}),
]


class CompressReply(ReplyObject, kw_only=True):
    """A compressed text. ``kept`` has the ranges of the original that it consists of: [start, end) in characters."""

    id: str
    object: Literal["compression"] = "compression"
    created: NonNegativeInt
    model: str
    text: str
    kept: list[list[NonNegativeInt]]
    compression: CompressionReply
    usage: PromptUsage
    twofold: Explanation | UnsetType = UNSET


class CompressRequest(LabelledRequest, kw_only=True, dict=True):
    """A text to compress. ``model`` scores it; ``target`` is the model that will read it, if it is another one."""

    text: Annotated[NonEmptyText, Meta(max_length=MAX_CHARS)]
    keep: Keep = 0.5
    question: NonEmptyText | None = None
    protect: Annotated[list[NonEmptyText | Offsets], Meta(max_length=MAX_PROTECTED)] | None = None
    target: ModelName | None = None
    output_tokens: OutputTokens = 0
    force: Force = False
    priority: Priority = BEHIND

    def __post_init__(self) -> None:
        params = CompressionParams(
            keep=self.keep, question=self.question, output_tokens=self.output_tokens, force=self.force
        )
        protect: list[Range | str] = [
            each if isinstance(each, str) else (each[0], each[1]) for each in self.protect or ()
        ]
        self.scored = ScoredTexts([(self.text, protect)], params)

    @property
    def stream(self) -> bool:
        return False

    def read_by(self, reader: ReadingTime) -> None:
        """Sets the prediction of the model that will read the text."""
        self.scored.reader = reader

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return self.scored.prepare(model, self.request_options)

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> CompressReply:  # noqa: ARG002
        (done,) = self.scored.finish(outputs)
        return CompressReply(
            id=f"compress-{head.id}",
            created=head.created,
            model=head.model,
            text=done.text,
            kept=[list(each) for each in done.kept],
            compression=CompressionReply.of(CompressionReport.of([done], done.verdict)),
            usage=prompt_usage(outputs),
        )

    def streamer(self, head: ReplyHead, model: ModelFacts) -> Streamer:  # noqa: ARG002 - see ``stream``
        raise AssertionError("compressed texts are not streamed")

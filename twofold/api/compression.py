"""Prompt compression in API protocols: texts to score, and the parts of a conversation that may be compressed.

A request for compressed texts runs one job for each window of the texts, or none if compressing does not pay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

from msgspec import Meta

from twofold.api.base import AskedTier, DialectRequest, GeneratedReply, ModelFacts, Streamer
from twofold.api.body import DraftingFields, ModelName, NonNegativeFloat, NonNegativeInt, ReplyObject, RequestObject
from twofold.api.prompts import Conversation
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.compress import (
    MAX_OUTPUT_TOKENS,
    SCORING,
    CompressedText,
    CompressionParams,
    CompressionReport,
    CompressionVerdict,
    ReadingTime,
    TextCompression,
)
from twofold.engine.outputs import RequestOutput
from twofold.text.spans import Range

MAX_MIN_TOKENS: Final = 1 << 20
BEHIND: Final = 20
"""Priority of scoring within its tier: the windows of a long text let generating requests go first."""

Keep: TypeAlias = Annotated[float, Meta(gt=0, description="Share of the tokens to keep, below 1.")]
OutputTokens: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_OUTPUT_TOKENS, description="Tokens that will be generated.")]
Force: TypeAlias = Annotated[bool, Meta(description="Compress even if it costs more time than it saves.")]


class ChatCompression(RequestObject, kw_only=True):
    """Which messages of a chat are compressed: those of ``roles``, except the last message. ``model`` scores them;
    without it the chat's own model does. With "last_message" they are compressed for what the last message asks."""

    keep: Keep = 0.5
    roles: Annotated[list[Literal["user", "assistant", "tool"]], Meta(min_length=1)]
    min_tokens: Annotated[int, Meta(ge=0, le=MAX_MIN_TOKENS, description="Shorter texts are left as they are.")] = 0
    question: Literal["last_message", "none"] = "last_message"
    model: ModelName | None = None
    output_tokens: OutputTokens = 0
    force: Force = False


class ChatFields(DraftingFields):
    """Twofold's own fields of a chat, in APIs without a field for compression."""

    compress: ChatCompression | None = None


class CompressionReply(ReplyObject):
    """What compression did. ``saving_s`` and ``cost_s`` are predicted seconds, null if they are unknown; ``seconds`` is
    how long the scoring took; ``reason`` says why the texts were compressed, or were not."""

    applied: bool
    reason: str
    tokens_before: NonNegativeInt
    tokens_after: NonNegativeInt
    saving_s: float | None
    cost_s: NonNegativeFloat | None
    seconds: NonNegativeFloat

    @classmethod
    def of(cls, report: CompressionReport) -> CompressionReply:
        verdict = report.verdict
        return cls(
            applied=verdict.applied,
            reason=verdict.reason,
            tokens_before=report.tokens_before,
            tokens_after=report.tokens_after,
            saving_s=verdict.saving_s,
            cost_s=verdict.cost_s,
            seconds=report.seconds,
        )


@dataclass(slots=True)
class ScoredTexts:
    """Texts to compress, each with its protected ranges. ``reader`` predicts the model that will read them, None if
    that is the model that scores them. Where ``lenient``, texts without anything to drop are returned unchanged."""

    texts: Sequence[tuple[str, Iterable[Range | str]]]
    params: CompressionParams
    reader: ReadingTime | None = None
    min_tokens: int = 0
    lenient: bool = False
    _work: tuple[TextCompression, CompressionVerdict] | None = None

    def prepare(self, model: ModelFacts, options: RequestOptions) -> list[EngineRequest]:
        """A request for each window; none if the texts stay unchanged. Raises ParameterError as ``TextCompression``."""
        compression = TextCompression(self.texts, self.params, model.tokenizer, model.context)
        if not self.lenient:
            compression.check_droppable()
        verdict = self._refused(compression)
        if verdict is None:
            scorer = model.reading_time()
            verdict = compression.verdict(scorer, self.reader or scorer)
        self._work = compression, verdict
        return [EngineRequest(prompt, SCORING, options) for prompt in compression.prompts if verdict.applied]

    @property
    def verdict(self) -> CompressionVerdict:
        assert self._work is not None, "prepare comes first"
        return self._work[1]

    def finish(self, outputs: Sequence[RequestOutput]) -> list[CompressedText]:
        """The compressed texts, from the outputs of the requests."""
        assert self._work is not None, "prepare comes first"
        return self._work[0].finish(outputs, self.verdict)

    def _refused(self, compression: TextCompression) -> CompressionVerdict | None:
        """The verdict against compressing, if it needs no prediction."""
        if compression.tokens < self.min_tokens:
            reason = f"The texts have {compression.tokens:,} tokens, fewer than min_tokens {self.min_tokens:,}."
        elif not compression.prompts:
            reason = "No message has a sentence that could be dropped."
        else:
            return None
        return CompressionVerdict(None, None, applied=False, reason=reason)


@dataclass(frozen=True, slots=True)
class ConversationScoring:
    """The request that scores the texts of a chat before it runs. ``places`` has the message of each text, and its part
    if there are several; ``accept`` takes the conversation with the compressed texts."""

    conversation: Conversation
    accept: Callable[[Conversation, CompressionReport], None]
    places: Sequence[tuple[int, int | None]]
    scored: ScoredTexts
    model: str | None
    tier: AskedTier
    options: RequestOptions
    stream: bool = False
    explain: bool = False
    compared: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        conversation: Conversation,
        accept: Callable[[Conversation, CompressionReport], None],
        asked: ChatCompression,
        tier: AskedTier,
        options: RequestOptions,
    ) -> ConversationScoring:
        """The scoring that a chat asks for. Raises ParameterError."""
        places = list(_places(conversation, asked.roles))
        question = _text(conversation.messages[-1]).strip() if asked.question == "last_message" else ""
        params = CompressionParams(
            keep=asked.keep, question=question or None, output_tokens=asked.output_tokens, force=asked.force
        )
        texts = [(_text_at(conversation, *place), ()) for place in places]
        scored = ScoredTexts(texts, params, None, asked.min_tokens, lenient=True)
        return cls(conversation, accept, places, scored, asked.model, tier, options)

    def read_by(self, reader: ReadingTime) -> None:
        """Sets the prediction of the chat's own model."""
        self.scored.reader = reader

    def prepare(self, model: ModelFacts) -> list[EngineRequest]:
        return self.scored.prepare(model, self.options)

    def apply(self, outputs: Sequence[RequestOutput]) -> CompressionReport:
        texts = self.scored.finish(outputs)
        messages: list[dict[str, Any]] = [dict(message) for message in self.conversation.messages]
        for (index, part), done in zip(self.places, texts, strict=True):
            if part is None:
                messages[index]["content"] = done.text
            else:
                parts = list(messages[index]["content"])
                parts[part] = {**parts[part], "text": done.text}
                messages[index]["content"] = parts
        report = CompressionReport.of(texts, self.scored.verdict)
        self.accept(replace(self.conversation, messages=messages), report)
        return report

    def reply(self, *_: object) -> GeneratedReply:
        raise AssertionError("a part of another request has no reply of its own")

    def streamer(self, *_: object) -> Streamer:
        raise AssertionError("a part of another request has no reply of its own")


def asked_scoring(
    fields: ChatFields | None,
    conversation: Conversation,
    accept: Callable[[Conversation, CompressionReport], None],
    tier: AskedTier,
) -> ConversationScoring | None:
    """The scoring that a chat asks for with these fields, if any, as in ``ConversationScoring.of``."""
    asked = None if fields is None else fields.compress
    if asked is None:
        return None
    return ConversationScoring.of(conversation, accept, asked, tier, drafting_options(fields))


class Compressible(DialectRequest, Protocol):
    """A chat whose messages may be compressed."""

    def scoring(self) -> ConversationScoring | None:
        """What must be scored first; None if the chat does not ask for compressed texts."""
        ...


def drafting_options(fields: DraftingFields | None) -> RequestOptions:
    """The options of a request that these fields ask for."""
    return RequestOptions(speculation=fields is None or fields.speculation)


def _places(conversation: Conversation, roles: Collection[str]) -> Iterable[tuple[int, int | None]]:
    """Where the texts of messages with these roles are; the last message is not among them."""
    for index, message in enumerate(conversation.messages[:-1]):
        if message["role"] not in roles:
            continue
        content = message["content"]
        if isinstance(content, str) and content.strip():
            yield index, None
        elif isinstance(content, list):
            yield from ((index, part) for part, each in enumerate(content) if each["text"].strip())


def _text_at(conversation: Conversation, index: int, part: int | None) -> str:
    content = conversation.messages[index]["content"]
    text: str = content if part is None else content[part]["text"]
    return text


def _text(message: Any) -> str:
    content = message["content"]
    return "\n".join(each["text"] for each in content) if isinstance(content, list) else content or ""

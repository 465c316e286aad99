"""The body of Anthropic's /v1/messages, and of /v1/messages/count_tokens.

Names and limits are Anthropic's. ``api/fields.py`` has the rule for fields that have no effect, and for those that are
refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from twofold.api.anthropic.errors import THREAD_NOT_FOUND
from twofold.api.anthropic.replies import (
    CacheMissReason,
    MessageReply,
    MessageTokens,
    OriginalTokens,
    ReplyDiagnostics,
    ToolUseReplyBlock,
    message_usage,
    stop_of,
)
from twofold.api.anthropic.settings import (
    CacheControls,
    ContextManagement,
    MessageMetadata,
    OutputConfig,
    SchemaOutput,
    ThinkingConfig,
    ThinkingDisabled,
    ThreadContinue,
    ThreadCreate,
    structured_outputs_of,
    thinking_of,
)
from twofold.api.anthropic.stream import MessageBlocks, MessageStreamer
from twofold.api.anthropic.turns import (
    AnthropicMessage,
    AnthropicTools,
    TextBlock,
    ToolKindChoice,
    ToolNameChoice,
    TurnReader,
    read_tools,
    tool_choice,
)
from twofold.api.base import AskedTier, ModelFacts, ReplyHead
from twofold.api.body import IGNORED, Explainable, ModelName, RequestObject, only
from twofold.api.cache_points import CachePoint
from twofold.api.compression import ChatFields, ConversationScoring, asked_scoring, drafting_options
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import CacheControl, Stop, TokenId, TopP
from twofold.api.prompts import Conversation, check_choice
from twofold.core.params import MAX_STOPS, SamplingParams, StructuredOutputsParams
from twofold.core.request import EngineRequest, RequestOptions
from twofold.core.sampling_defaults import NAMES
from twofold.engine.compress import CompressionReport
from twofold.engine.outputs import RequestOutput
from twofold.text.templates.messages import MAX_MESSAGES

BILLED_AS_USUAL: Final = {"type": "billing_policy"}


class MessagesPrompt(RequestObject, dict=True):
    """The fields of both endpoints. Fields of type None concern services that only Anthropic runs."""

    model: ModelName
    messages: Annotated[list[AnthropicMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[TextBlock] | None = None
    tools: AnthropicTools | None = None
    tool_choice: ToolKindChoice | ToolNameChoice | None = None
    cache_control: CacheControl | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: SchemaOutput | None = None
    context_management: ContextManagement | None = None
    metadata: MessageMetadata | None = None
    betas: Annotated[list[str], IGNORED] | None = None
    billing_policy: Annotated[Any, only(BILLED_AS_USUAL, BILLED_AS_USUAL | {"bill_to": "self"})] = None
    compaction: None = None
    container: None = None
    fallback_credit_token: None = None
    fallbacks: Annotated[Any, only([])] = None
    inference_geo: None = None
    mcp_servers: Annotated[Any, only([])] = None
    speed: Literal["standard"] = "standard"
    thread: Annotated[ThreadCreate | ThreadContinue, IGNORED] | None = None
    user_profile_id: Annotated[str, IGNORED] | None = None
    workspace_id: Annotated[str, IGNORED] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.thread, ThreadContinue):
            raise FieldError(
                "thread: no conversation is kept here.",
                param="thread",
                code=THREAD_NOT_FOUND,
                hint="Send all messages, with system and tools.",
            )
        self.structured_outputs  # noqa: B018 - both raise FieldError for impossible values
        self.conversation  # noqa: B018

    @cached_property
    def structured_outputs(self) -> StructuredOutputsParams | None:
        return structured_outputs_of(self.output_config or OutputConfig(), self.output_format)

    @cached_property
    def conversation(self) -> Conversation:
        """The chat. Cache controls count in this order: tools, system, messages, and then the body's own control."""
        controls = CacheControls()
        tools, tool_points = read_tools(self.tools or (), controls)
        turns = TurnReader(controls)
        turns.system(self.system)
        turns.messages(self.messages)
        thinking = thinking_of(self.thinking, self.output_config or OutputConfig())
        if turns.continues and thinking.mode == "on":
            raise FieldError(
                "The last message is the assistant's; a prefill cannot be combined with thinking.",
                param="messages",
                hint="End with a user message, or disable thinking.",
            )
        points = [point for index, turn in enumerate(turns.turns) for point in turn.points(index)]
        if (ttl := controls.take(self.cache_control, "")) is not None:
            points.append(CachePoint(ttl=ttl, message=len(turns.turns) - 1))
        choice = self.tool_choice
        check_choice(tools, tool_choice(choice))
        return Conversation(
            messages=tuple(turn.message() for turn in turns.turns),
            tools=tuple(tools),
            choice=tool_choice(choice),
            parallel=choice is None or not choice.disable_parallel_tool_use,
            thinking=thinking,
            continues=turns.continues,
            cache_points=(*tool_points, *points),
        )


class MessageDiagnostics(RequestObject):
    """Asks why the cache missed. The reply says that the reason is not known."""

    previous_message_id: str | None = None


class MessagesRequest(MessagesPrompt, Explainable, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: Annotated[TokenId, Meta(description="0 reads the prompt into the cache and samples nothing.")]
    stream: bool = False
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: TopP | None = None
    top_k: TokenId | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    service_tier: Literal["auto", "standard_only"] = "auto"
    twofold: ChatFields | None = None
    diagnostics: MessageDiagnostics | None = None

    @property
    def tier(self) -> AskedTier:
        return "auto" if self.service_tier == "auto" else "default"

    @property
    def omits_thinking(self) -> bool:
        """Whether thinking blocks of the reply are empty: they show that the model thought, not what it thought."""
        return not isinstance(self.thinking, ThinkingDisabled | None) and self.thinking.display == "omitted"

    @cached_property
    def params(self) -> SamplingParams:
        """The sampling parameters. With max_tokens 0 one token is sampled nevertheless, and dropped."""
        return SamplingParams(
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=self.top_k or 0,
            max_tokens=self.max_tokens or 1,
            stop=self.stop_sequences,
            structured_outputs=self.structured_outputs,
        )

    def scoring(self) -> ConversationScoring | None:
        return asked_scoring(self.twofold, self.conversation, self._accept, self.tier)

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        asked = [name for name in ("max_tokens", *NAMES) if getattr(self, name, None) is not None]
        params = model.sampling.fill(self.params, asked)
        options = replace(drafting_options(self.twofold), progress=self.stream)
        return [self.conversation.prepare(model, params, options)]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> MessageReply:
        (output,) = outputs
        parser = self.conversation.parser(model)
        text = output.outputs[0].text if self.max_tokens else ""
        made = MessageBlocks(head.id, omits_thinking=self.omits_thinking)
        deque(chain(made.take([*parser.push(text), *parser.flush()]), made.finish()), maxlen=0)  # no events are sent
        called = any(isinstance(block, ToolUseReplyBlock) for block in made.blocks)
        reason, sequence = stop_of(output, model, max_tokens=self.max_tokens, called=called)
        return MessageReply(
            id=f"msg_{head.id}",
            model=head.model,
            content=made.blocks,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=message_usage(head, output, model, max_tokens=self.max_tokens),
            diagnostics=self._diagnostics(),
        )

    def streamer(self, head: ReplyHead, model: ModelFacts) -> MessageStreamer:
        return MessageStreamer(
            head,
            model,
            self.conversation.parser(model),
            max_tokens=self.max_tokens,
            omits_thinking=self.omits_thinking,
            diagnostics=self._diagnostics(),
        )

    def _accept(self, conversation: Conversation, report: CompressionReport) -> None:  # noqa: ARG002 - it is recorded
        """Takes the conversation with its compressed texts."""
        self.conversation = conversation

    def _diagnostics(self) -> ReplyDiagnostics | UnsetType:
        if self.diagnostics is None or self.diagnostics.previous_message_id is None:
            return UNSET
        return ReplyDiagnostics(cache_miss_reason=CacheMissReason())


class CountTokensRequest(MessagesPrompt):
    """The body of /v1/messages/count_tokens."""

    def count(self, model: ModelFacts) -> int:
        """Tokens of the prompt, cached ones included. As slow as ``Conversation.prepare``, with the same errors."""
        conversation = replace(self.conversation, cache_points=())
        job = conversation.prepare(model.unbounded(), SamplingParams(max_tokens=1), RequestOptions())
        return len(job.token_ids)

    def reply(self, tokens: int) -> MessageTokens:
        """The body of the response."""
        return MessageTokens(tokens, UNSET if self.context_management is None else OriginalTokens(tokens))

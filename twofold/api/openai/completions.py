"""/v1/completions: request bodies and their replies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Final

from msgspec import UNSET, Meta

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.fields import UNSUPPORTED, FieldError, impossible
from twofold.api.openai.bodies import Prompts, SampledRequest, TokenId, TopLogprobs, given_prompts
from twofold.api.openai.logprobs import (
    TextLogprobs,
    TokenOffsets,
    prompt_positions,
    prompt_text,
    sampled_positions,
    text_logprobs,
)
from twofold.api.openai.replies import CompletionReply, TextChoice, chat_finish, usage
from twofold.api.openai.streams import CompletionStreamer
from twofold.api.prompts import infilled, tokenized
from twofold.core.params import MAX_N, MAX_TOKEN_ID, SamplingParams
from twofold.core.request import EngineRequest, TextOrTokens
from twofold.engine.outputs import CompletionOutput, RequestOutput

COMPLETION_TOKENS: Final = 16
"""OpenAI's default of max_tokens, where the server has none; chats have none."""


class CompletionRequest(SampledRequest, kw_only=True, dict=True):
    """Texts to continue."""

    prompt: Prompts
    suffix: Annotated[str, Meta(description="The model fills in what is between the prompt and this text.")] = ""
    echo: bool = False
    logprobs: TopLogprobs | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    max_tokens: (
        Annotated[
            TokenId,
            Meta(description="0 needs echo: then the prompt alone is sent back. Default: the server's, else 16."),
        ]
        | None
    ) = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt_only and not self.echo:
            raise impossible("max_tokens", 0, f"a whole number from 1 to {MAX_TOKEN_ID}")
        self.params  # noqa: B018 - raises FieldError for impossible values
        self._check_suffix()
        self._check_stream()

    @property
    def prompt_only(self) -> bool:
        """Whether only the prompt is sent back: the token that is sampled nevertheless is dropped."""
        return self.max_tokens == 0

    @cached_property
    def given(self) -> tuple[TextOrTokens, ...]:
        return given_prompts(self.prompt)

    @cached_property
    def params(self) -> SamplingParams:
        return SamplingParams(
            **self.sampling_keywords(),
            best_of=self.best_of,
            max_tokens=COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens or 1,
            logprobs=self.logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        options, params = self.predicted(model), model.sampling.fill(self.params, self.given_parameters)
        if self.suffix:
            return [infilled(str(given), self.suffix, model, params, options) for given in self.given]
        return [tokenized(given, model, params, options) for given in self.given]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> CompletionReply:
        choices: list[TextChoice] = []
        for given, output in zip(self.given, outputs, strict=True):
            prompt = prompt_text(given, model.tokenizer) if self.echo or self.logprobs is not None else ""
            for completion in output.outputs:
                choice = TextChoice(
                    index=len(choices),
                    text=(prompt if self.echo else "") + ("" if self.prompt_only else completion.text),
                    logprobs=self._logprobs(prompt, output, completion, model),
                    finish_reason=chat_finish(completion.finish_reason),
                )
                if self.return_token_ids:
                    choice.prompt_token_ids = output.prompt_token_ids
                    choice.token_ids = () if self.prompt_only else completion.token_ids
                choices.append(choice)
        return CompletionReply(
            id=f"cmpl-{head.id}",
            created=head.created,
            model=head.model,
            choices=choices,
            usage=usage(outputs, model, completions=not self.prompt_only),
            system_fingerprint=model.fingerprint or UNSET,
            service_tier=head.service_tier or UNSET,
        )

    def streamer(self, head: ReplyHead, model: ModelFacts) -> CompletionStreamer:
        options = {"echo": self.echo, "prompt_only": self.prompt_only}
        return CompletionStreamer(head, model, self, self.params, self.given, **options)

    def _logprobs(
        self, prompt: str, output: RequestOutput, completion: CompletionOutput, model: ModelFacts
    ) -> TextLogprobs | None:
        """Log-probabilities of the text after ``prompt``, and of ``prompt`` itself if it is repeated."""
        if completion.logprobs is None:
            return None
        tokens, offsets = [], []
        if self.echo:
            ids = output.prompt_token_ids
            tokens = prompt_positions(ids, output.prompt_logprobs or (), model.tokenizer)
            offsets = TokenOffsets.of_prompt(ids, prompt, model.tokenizer).take(ids)
        if not self.prompt_only:
            skips = self.params.skip_special_tokens
            tokens += sampled_positions(completion.token_ids, completion.logprobs)
            counted = TokenOffsets(model.tokenizer, len(prompt), skip_special_tokens=skips)
            offsets += counted.take(completion.token_ids)
        return text_logprobs(tokens, offsets)

    def _check_suffix(self) -> None:
        """Raises FieldError for fields that exclude a suffix."""
        if self.suffix and self.echo:
            raise FieldError("suffix and echo exclude each other.", param="suffix", hint="Remove echo.")
        if self.suffix and not all(isinstance(given, str) for given in self.given):
            raise FieldError("suffix needs a prompt that is text, not token ids.", param="suffix")

    def _check_stream(self) -> None:
        """Raises FieldError if all completions must be whole before one is sent."""
        if self.stream and self.params.answers > self.params.n:
            raise FieldError("best_of cannot be streamed.", param="best_of", code=UNSUPPORTED, hint="Remove stream.")

"""/v1/completions: bodies read, replies told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from twofold.api.base import HasCommon, Job, ModelFacts, ReplyHead
from twofold.api.fields import UNSUPPORTED, FieldError
from twofold.api.openai.bodies import Common, open_body, read_texts
from twofold.api.openai.completion_stream import CompletionStreamer
from twofold.api.openai.replies import text_completion
from twofold.api.openai.sampling import sampling_keywords
from twofold.api.texts import infilled, tokenized
from twofold.core.params import MAX_LOGPROBS, MAX_TOKEN_ID, SamplingParams
from twofold.core.sampling_defaults import NAMES
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import GivenPrompt

COMPLETION_TOKENS: Final = 16
"""OpenAI's default of max_tokens; a chat goes on to the end of the context."""


@dataclass(frozen=True, slots=True)
class CompletionRequest(HasCommon):
    """Texts to go on with.

    suffix        the model fills in what stands between a prompt and it; empty where there is none
    echo          puts the prompt before each answer
    prompt_only   leaves the answer away, which OpenAI writes max_tokens 0: the token that is drawn nevertheless is
                  dropped
    """

    common: Common
    given: tuple[GivenPrompt, ...]
    suffix: str
    echo: bool
    prompt_only: bool
    params: SamplingParams
    asked: frozenset[str] = frozenset()

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = open_body(body, {})
        echo = fields.flag("echo")
        logprobs = fields.whole("logprobs", 0, MAX_LOGPROBS)
        most = fields.whole("max_tokens", 0 if echo else 1, MAX_TOKEN_ID)
        request = cls(
            common=Common.read(fields),
            given=read_texts(fields, "prompt"),
            suffix=fields.text("suffix") or "",
            echo=echo,
            prompt_only=most == 0,
            params=SamplingParams(
                **sampling_keywords(fields),
                best_of=fields.take("best_of"),
                max_tokens=COMPLETION_TOKENS if most is None else most or 1,
                logprobs=logprobs,
                prompt_logprobs=logprobs if echo else None,
            ),
            asked=fields.given(NAMES),
        )
        fields.close()
        request._check_suffix()
        request._check_stream()
        return request

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        options, params = self.common.options, model.sampling.fill(self.params, self.asked)
        if self.suffix:
            return [infilled(given.text or "", self.suffix, model, params, options) for given in self.given]
        return [Job(tokenized(given, model), params, options) for given in self.given]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:
        return text_completion(
            head,
            outputs,
            model,
            echo=self.echo,
            prompt_only=self.prompt_only,
            token_ids=self.common.return_token_ids,
        )

    def streamer(self, head: ReplyHead, model: ModelFacts) -> CompletionStreamer:
        return CompletionStreamer(
            head,
            model,
            self.given,
            answers=self.params.n,
            echo=self.echo,
            include_usage=self.common.include_usage,
            logprobs=self.params.logprobs is not None,
            token_ids=self.common.return_token_ids,
        )

    def _check_suffix(self) -> None:
        """Raises FieldError for what cannot be beside a suffix."""
        if self.suffix and self.echo:
            raise FieldError("suffix and echo exclude each other.", param="suffix", hint="Leave echo out.")
        if self.suffix and any(given.text is None for given in self.given):
            raise FieldError("suffix needs a prompt that is text, not token ids.", param="suffix")

    def _check_stream(self) -> None:
        """Raises FieldError for what is only known when the whole answer is there."""
        if not self.common.stream:
            return
        whole = {
            "best_of": self.params.answers > self.params.n,
            "logprobs": self.echo and self.params.logprobs is not None,
            "max_tokens": self.prompt_only,
        }
        for name, asked in whole.items():
            if asked:
                echoed = "" if name == "best_of" else " with echo"
                raise FieldError(
                    f"{name}{echoed} cannot be streamed.", param=name, code=UNSUPPORTED, hint="Leave stream out."
                )

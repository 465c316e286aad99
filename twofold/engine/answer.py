"""A completion in progress: detokenisation and stop strings."""

from __future__ import annotations

from twofold.core.params import SamplingParams
from twofold.core.step import FinishReason, PositionLogprobs, TokenEvent, TokenLogprob
from twofold.engine.outputs import CompletionOutput, Logprob, Logprobs, OutputDelta
from twofold.engine.scheduler.sequence import Sequence
from twofold.text.detokenize import StopStrings, StreamDetokenizer
from twofold.text.tokenizers.tokenizer import Tokenizer


class SequenceCompletion:
    """The completion of one sequence. Its text is sent in whole characters, never with a stop string or its start."""

    def __init__(
        self, request_id: str, index: int, sequence: Sequence, tokenizer: Tokenizer, params: SamplingParams
    ) -> None:
        """``params`` are the caller's; those of the sequence may ask for more."""
        self.index = index
        self.sequence = sequence
        self.times: list[float] = []
        self._request_id = request_id
        self._tokenizer = tokenizer
        self._params = params
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[Logprobs] | None = None if params.logprobs is None else []
        self._cumulative = 0.0
        self._detokenizer = StreamDetokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, continuation=True
        )
        self._stops = StopStrings(params.stop_strings, include=params.include_stop_str_in_output)
        self._finish: FinishReason | None = None
        self._stop_reason: str | int | None = None

    @property
    def finished(self) -> bool:
        return self._finish is not None

    @property
    def finish(self) -> FinishReason | None:
        return self._finish

    @property
    def mean_logprob(self) -> float:
        """Mean log-probability of its tokens, if the sequence reports them."""
        return self._cumulative / max(1, len(self._tokens))

    def take(self, event: TokenEvent, now: float) -> OutputDelta:
        """Adds the event's tokens up to a stop string; the delta to send."""
        taken, text = 0, ""
        for token in event.tokens:
            taken += 1
            text += self._push(token, ends=token == event.stop_token)
            if self._stops.stopped is not None:
                break
        logprobs = self._add_logprobs(event.logprobs[:taken])
        self.times.extend([now] * taken)
        if self._stops.stopped is not None:
            self._finish, self._stop_reason = "stop", self._stops.stopped
        elif event.finish is not None:
            text += self._end(event.finish, event.stop_token)
        if text:
            self._text.append(text)
        return OutputDelta(
            self._request_id, self.index, text, event.tokens[:taken], logprobs, self._finish, self._stop_reason
        )

    def abort(self) -> None:
        """Ends it as aborted, with the text that was withheld."""
        self._text.append(self._end("abort", None))

    def output(self) -> CompletionOutput:
        """The completion so far."""
        return CompletionOutput(
            self.index,
            "".join(self._text),
            tuple(self._tokens),
            None if self._logprobs is None else tuple(self._logprobs),
            None if self._logprobs is None else self._cumulative,
            self._finish,
            self._stop_reason,
        )

    def _push(self, token: int, *, ends: bool) -> str:
        """Text to send after this token. The first ``min_tokens`` tokens are not searched for stop strings."""
        self._tokens.append(token)
        if not self._params.detokenize or (ends and not self._params.include_stop_str_in_output):
            return ""
        text = self._detokenizer.push(token) if token < self._tokenizer.vocab_size else ""
        if not text or len(self._tokens) <= self._params.min_tokens:
            return text
        return self._stops.push(text)[0]

    def _end(self, finish: FinishReason, stop_token: int | None) -> str:
        """Sets the finish reason; the text that was withheld."""
        self._finish = finish
        if stop_token is not None and stop_token in self._params.stop_tokens:
            self._stop_reason = stop_token
        rest = self._stops.push(self._detokenizer.flush())[0]
        return rest + self._stops.flush()

    def _add_logprobs(self, positions: tuple[PositionLogprobs, ...]) -> tuple[Logprobs, ...] | None:
        self._cumulative += sum(position.chosen.logprob for position in positions)
        if self._logprobs is None:
            return None
        added = tuple(readable(position, self._tokenizer) for position in positions)
        self._logprobs.extend(added)
        return added


def token_text(token: int, tokenizer: Tokenizer) -> str:
    """The text of a token alone; models may have more rows than their tokenizer has tokens."""
    if token >= tokenizer.vocab_size:
        return ""
    return tokenizer.decode([token], skip_special_tokens=False, continuation=True)


def readable(position: PositionLogprobs, tokenizer: Tokenizer) -> Logprobs:
    """One position of the output: the chosen token first, then the most likely ones."""

    def entry(token: TokenLogprob) -> Logprob:
        return Logprob(token.logprob, token.rank, token_text(token.token, tokenizer))

    return {token.token: entry(token) for token in (position.chosen, *position.top)}

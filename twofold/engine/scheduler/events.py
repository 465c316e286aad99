"""What a committed step means for a sequence, as the engine hears of it."""

from __future__ import annotations

from twofold.core.step import SequenceOutcome, TokenEvent
from twofold.engine.scheduler.sequence import Sequence, SequenceState


def event_of(sequence: Sequence, tokens: tuple[int, ...], result: SequenceOutcome) -> TokenEvent | None:
    """The event of a sequence that took ``tokens`` from its outcome; None if there is nothing to tell."""
    tells = tokens or result.prompt_logprobs or result.candidates or result.hidden is not None
    if not tells and sequence.state is not SequenceState.FINISHED:
        return None
    return TokenEvent(
        sequence.sequence_id,
        tokens,
        result.logprobs[: len(tokens)],
        result.prompt_logprobs,
        sequence.finish_reason,
        sequence.stop_token,
        result.candidates,
        result.hidden,
        result.error,
    )

"""What a runner keeps of a sequence from step to step."""

from __future__ import annotations

from array import array

from twofold.backends.sampling.base import SampleRequest
from twofold.backends.sampling.filters import changes_logits
from twofold.core.step import SAMPLED, SequenceStart, SequenceStep


class RunnerSequence:
    """The state of a sequence in a runner.

    slot      the index of its block tables
    sampling  how its tokens are sampled; None if none are
    tokens    its tokens so far, if penalties need them
    last      the token that was sampled last
    greedy    whether its samples without a mask are the largest logits
    plain     whether its steps return samples alone, without log-probabilities
    """

    __slots__ = ("greedy", "last", "plain", "sampling", "slot", "tokens")

    def __init__(self, slot: int, begin: SequenceStart) -> None:
        self.slot = slot
        self.sampling = sampling = begin.sampling
        self.last = SAMPLED
        self.tokens: array[int] | None = None
        self.greedy = False
        self.plain = sampling is not None and sampling.params.logprobs is None
        if sampling is not None and sampling.params.penalises:
            self.tokens = begin.tokens[:]
        if sampling is not None and sampling.params.greedy and not sampling.suppressed:
            self.greedy = not changes_logits(SampleRequest(sampling.params, sampling.seed, 0))

    def requests(self, step: SequenceStep, masks: tuple[bytes | None, ...]) -> list[SampleRequest]:
        """A request for each of ``masks``, which are those of the first sampled rows of a step."""
        first = step.start + len(step.tokens) - step.samples + 1
        return [self.request(position, mask, step.candidates) for position, mask in enumerate(masks, first)]

    def request(self, position: int, mask: bytes | None = None, candidates: int = 0) -> SampleRequest:
        """The request for the token at ``position``."""
        spec, known = self.sampling, self.tokens
        assert spec is not None, "a sequence that samples began with a SamplingSpec"
        return SampleRequest(
            spec.params,
            spec.seed,
            position,
            () if known is None else known[: spec.prompt_length],
            () if known is None else known[spec.prompt_length : position],
            spec.suppressed if position < spec.suppressed_until else (),
            mask,
            candidates,
        )

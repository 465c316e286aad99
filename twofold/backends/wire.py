"""The records that a model runner receives and returns, as bytes (msgpack)."""

from __future__ import annotations

from typing import Final

import msgspec

from twofold.core.step import StepInput, StepMasks, StepOutcome
from twofold.core.step_bytes import from_plain, to_plain

_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=to_plain)
_STEPS: Final = msgspec.msgpack.Decoder(StepInput, dec_hook=from_plain)
_MASKS: Final = msgspec.msgpack.Decoder(StepMasks, dec_hook=from_plain)
_OUTCOMES: Final = msgspec.msgpack.Decoder(StepOutcome, dec_hook=from_plain)


def to_bytes(record: StepInput | StepMasks | StepOutcome) -> bytes:
    """A record as bytes; of a plan only the part that a runner needs."""
    if isinstance(record, StepInput):
        record = StepInput(record.steps, record.moves, record.ended)
    return _ENCODER.encode(record)


def read_step(content: bytes) -> StepInput:
    """Raises msgspec.DecodeError for anything but the bytes of a StepInput."""
    return _STEPS.decode(content)


def read_masks(content: bytes) -> StepMasks:
    """Raises msgspec.DecodeError for anything but the bytes of StepMasks."""
    return _MASKS.decode(content)


def read_outcome(content: bytes) -> StepOutcome:
    """Raises msgspec.DecodeError for anything but the bytes of a StepOutcome."""
    return _OUTCOMES.decode(content)

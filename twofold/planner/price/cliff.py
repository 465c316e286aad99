"""What a price cliff says about a closed model: where prompts get dearer, keys and values may have got dearer to read.

If a provider puts its step at the context c where reading the cache takes as long as computing a token's matrices,

    2 · P / peak = c · kv / bandwidth      and so kv = 2 · P / (ridge · c) bytes a token
    P / peak     = c · kv / bandwidth          or kv = P / (ridge · c), if P counts multiply-adds as one operation

Both readings are published, they differ by two, and a step may be set for other reasons altogether: P is a guess,
the machine is a guess, and a round number is suspect. The answer is a range and no measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class ImpliedCache:
    """Bytes of keys and values a token, by both readings."""

    low: float
    high: float


def implied_kv(parameters: float, ridge: float, above: int) -> ImpliedCache:
    """What a cliff at ``above`` tokens implies for so many active parameters on a machine with that ridge (FLOP/B)."""
    if parameters <= 0 or ridge <= 0 or above <= 0:
        raise ParameterError(
            "Parameters, ridge and the cliff must be above 0.", param="above", hint="As 70e9, 295 and 200000."
        )
    return ImpliedCache(parameters / (ridge * above), 2 * parameters / (ridge * above))

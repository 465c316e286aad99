"""Cost of prefill and decode as the context grows, compared with the formulas of ``twofold.planner.predict.phase``."""

from __future__ import annotations

from benchmarks.figures import bar
from benchmarks.setting import Setting
from twofold.bench.phases.cases import Decode, Prefill

CONTEXTS = (512, 1024, 2048, 4096, 7936)
QUICK_CONTEXTS = (64, 128)
STEPS = 24
ROUNDS = 2


def run(setting: Setting) -> list[dict[str, float]]:
    """Prints two bars for each context: the measured time, and the formula scaled to the first row."""
    wanted = QUICK_CONTEXTS if setting.quick else CONTEXTS
    contexts = [context for context in wanted if context + 2 * STEPS <= setting.context]
    print("\nlong context: prefill s and decode ms, measured and by the formula scaled to the first row")
    prefills, decodes = map(Prefill, contexts), (Decode(1, context, STEPS) for context in contexts)
    cases = list(zip(prefills, decodes, strict=True))
    found = {row.case: row.seconds for row in setting.measure([case for pair in cases for case in pair], ROUNDS)}
    rows: list[dict[str, float]] = [
        {
            "context": prefill.tokens,
            "prefill_s": found[prefill].least,
            "decode_s": found[decode].median,
            "prefill_floor_s": setting.floor(prefill),
            "decode_floor_s": setting.floor(decode),
        }
        for prefill, decode in cases
    ]
    for row in rows:
        _print(row, rows[0], rows[-1])
    return rows


def _print(row: dict[str, float], first: dict[str, float], last: dict[str, float]) -> None:
    for phase, unit, scale in (("prefill", "s", 1.0), ("decode", "ms", 1e3)):
        slower = first[f"{phase}_s"] / first[f"{phase}_floor_s"]
        measured, floor = row[f"{phase}_s"], row[f"{phase}_floor_s"]
        top = max(last[f"{phase}_s"], last[f"{phase}_floor_s"] * slower)
        shown = f"{measured * scale:9.3f} {unit:2s} {bar(measured, top)}  ({floor / measured:.0%} of the limit)"
        print(f"  {row['context']:5.0f} {phase:7s} {shown}")
        print(f"        formula {floor * slower * scale:9.3f} {unit:2s} {bar(floor * slower, top, '·')}", flush=True)

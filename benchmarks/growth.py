"""How speed changes with context, batch and threads, beside the cost model's limits; drawn in ``growth.svg``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.figures import bar
from benchmarks.setting import Setting
from twofold.backends.cpu.backend import CpuBackend
from twofold.bench.phases.cases import Case, Decode, Prefill

CONTEXTS = (128, 512, 1024, 2048, 4096, 7936)
BATCHES = (1, 2, 4, 8, 16, 32)
BATCH_CONTEXT = 128
STEPS = 24
ROUNDS = 2
PICTURE = Path(__file__).parent / "growth.svg"

WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 190, 56, 44, 76
"""Pixels: one diagram, the space left of and above it, and the space between two."""
COLOURS = ("#d9822b", "#1f5fa8")


@dataclass(frozen=True, slots=True)
class Curve:
    """Tokens a second with a number of threads, and the limits, for each size."""

    diagram: str
    axis: str
    threads: int
    sizes: Sequence[int]
    rates: Sequence[float]
    limits: Sequence[float]


def run(setting: Setting) -> list[dict[str, Any]]:
    """Measures every curve with one thread and with all, prints them, and draws them."""
    sizes = ((64, 128), (1, 2)) if setting.quick else (CONTEXTS, BATCHES)
    contexts = [context for context in sizes[0] if context + 2 * STEPS <= setting.context]
    print(f"\ngrowth  {setting.name}: tokens a second █, the cost model's limit ·")
    curves: list[Curve] = []
    for threads in sorted({1, setting.threads}):
        curves += _measure(_with_threads(setting, threads), contexts, sizes[1])
    for curve in curves:
        _print(curve)
    if not setting.quick:
        PICTURE.write_text(draw(f"{setting.name} on {setting.ceilings.machine.cpu}", curves), "utf-8")
        print(f"  drawn in {PICTURE}", flush=True)
    return [{name: getattr(curve, name) for name in Curve.__slots__} for curve in curves]


def _with_threads(setting: Setting, threads: int) -> Setting:
    if threads == setting.threads:
        return setting
    machine = CpuBackend(threads=threads).probe().now()
    return replace(setting, ceilings=replace(setting.ceilings, machine=machine))


def _measure(setting: Setting, contexts: Sequence[int], batches: Sequence[int]) -> list[Curve]:
    prompts, after = [Prefill(n) for n in contexts], [Decode(1, n, STEPS) for n in contexts]
    together = [Decode(n, BATCH_CONTEXT, STEPS) for n in batches]
    seconds = {
        row.case: row.seconds.least if isinstance(row.case, Prefill) else row.seconds.median
        for row in setting.measure([*prompts, *after, *together], ROUNDS)
    }

    def curve(diagram: str, axis: str, sizes: Sequence[int], cases: Sequence[Case], tokens: Sequence[int]) -> Curve:
        rates = [count / seconds[case] for count, case in zip(tokens, cases, strict=True)]
        limits = [count / setting.floor(case) for count, case in zip(tokens, cases, strict=True)]
        return Curve(diagram, axis, setting.threads, sizes, rates, limits)

    return [
        curve("prefill", "tokens of the prompt", contexts, prompts, contexts),
        curve("decode of one stream", "tokens before it", contexts, after, [1] * len(contexts)),
        curve(f"decode of a batch after {BATCH_CONTEXT} tokens", "streams", batches, together, batches),
    ]


def _print(curve: Curve) -> None:
    print(f"  {curve.diagram}, threads: {curve.threads}")
    top = max(curve.limits)
    for size, rate, limit in zip(curve.sizes, curve.rates, curve.limits, strict=True):
        print(f"  {size:6d} {rate:9,.0f} {bar(rate, top)}  ({rate / limit:.0%} of the limit)")
        print(f"         {limit:9,.0f} {bar(limit, top, '·')}", flush=True)


# -- the picture ------------------------------------------------------------------------------------------------------


def draw(title: str, curves: Sequence[Curve]) -> str:
    """The curves as SVG, one diagram beside another; sizes are on a logarithmic axis, rates on a linear one."""
    diagrams = list(dict.fromkeys(curve.diagram for curve in curves))
    width, height = LEFT + len(diagrams) * (WIDTH + GAP), TOP + HEIGHT + 68
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(LEFT, 16, f"{title}: tokens a second", weight="bold"),
    ]
    for index, name in enumerate(diagrams):
        parts += _diagram(LEFT + index * (WIDTH + GAP), [curve for curve in curves if curve.diagram == name])
    return "\n".join([*parts, _legend(sorted({curve.threads for curve in curves}), height - 10), "</svg>", ""])


def _diagram(left: float, curves: Sequence[Curve]) -> list[str]:
    bottom, sizes = TOP + HEIGHT, curves[0].sizes
    step = _round_step(max(max(curve.limits) for curve in curves))
    top = step * math.ceil(max(max(curve.limits) for curve in curves) / step)
    span = math.log2(sizes[-1] / sizes[0])

    def points(rates: Sequence[float]) -> str:
        at = zip(sizes, rates, strict=True)
        return " ".join(f"{x(size):.1f},{bottom - HEIGHT * rate / top:.1f}" for size, rate in at)

    def x(size: int) -> float:
        return left + WIDTH * math.log2(size / sizes[0]) / span

    parts = [_text(left, TOP - 10, curves[0].diagram)]
    for number in range(round(top / step) + 1):
        y = bottom - HEIGHT * number * step / top
        parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(left - 6, y + 4, f"{number * step:,.0f}", anchor="end"))
    parts += [_text(x(size), bottom + 16, f"{size}", anchor="middle") for size in sizes]
    parts.append(_text(left + WIDTH / 2, bottom + 32, curves[0].axis, anchor="middle"))
    for colour, curve in zip(COLOURS, curves, strict=False):
        for rates, style in ((curve.rates, 'stroke-width="2"'), (curve.limits, 'stroke-dasharray="2 4"')):
            parts.append(f'<polyline points="{points(rates)}" fill="none" stroke="{colour}" {style}/>')
    return parts


def _round_step(top: float) -> float:
    """A round distance between lines: four to ten of them reach ``top``."""
    unit = 10.0 ** math.floor(math.log10(top))
    return unit * next(part for part in (0.2, 0.5, 1.0, 2.0) if top / (unit * part) <= 8)


def _legend(threads: Sequence[int], y: float) -> str:
    parts = []
    for index, (colour, count) in enumerate(zip(COLOURS, threads, strict=False)):
        at = LEFT + 330 * index
        parts.append(f'<line x1="{at}" x2="{at + 24}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(at + 30, y, f"{count} thread{'s' * (count > 1)}; dotted: the cost model's limit"))
    return "\n".join(parts)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'

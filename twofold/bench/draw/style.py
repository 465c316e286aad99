"""The look of charts, as CSS: light and dark by what the reader's system says, black on white in print.

Colours are those of Okabe and Ito ("Color Universal Design", 2008), told apart with any kind of colour vision, and
darkened or lightened so that each has a contrast of 3:1 or more against its background.
"""

from __future__ import annotations

from typing import Final

SERIES: Final = 7
"""How many colours there are; a series beyond them begins again with the first."""

_LIGHT: Final = ("#0072b2", "#d55e00", "#00805c", "#b0568f", "#7a6a00", "#2b8fc7", "#4d4d4d")
_DARK: Final = ("#56b4e9", "#ff9e4a", "#2ecc9b", "#e39bc6", "#f0e442", "#8fd0f5", "#c0c0c0")


def _colours(colours: tuple[str, ...], ink: str, faint: str, grid: str, paper: str) -> str:
    series = "".join(f"--tf-{index}:{colour};" for index, colour in enumerate(colours))
    return f"{series}--tf-ink:{ink};--tf-faint:{faint};--tf-grid:{grid};--tf-paper:{paper}"


_LIGHT_RULES: Final = _colours(_LIGHT, "#1c2024", "#5b636b", "#e3e6e9", "#ffffff")
_DARK_RULES: Final = _colours(_DARK, "#e8eaed", "#9aa3ab", "#32373c", "#15181b")

STYLE: Final = "\n".join(
    (
        f".tf-chart{{{_LIGHT_RULES}}}",
        f"@media (prefers-color-scheme: dark){{.tf-chart{{{_DARK_RULES}}}}}",
        f"@media print{{.tf-chart{{{_LIGHT_RULES}}}}}",
        ".tf-chart{display:block;width:100%;height:auto;font:13px system-ui,sans-serif;fill:var(--tf-ink)}",
        ".tf-chart .title{font-size:15px;font-weight:600}",
        ".tf-chart .faint,.tf-chart .tick{fill:var(--tf-faint)}",
        ".tf-chart .tick{font-size:12px;font-variant-numeric:tabular-nums}",
        ".tf-chart .halo{paint-order:stroke;stroke:var(--tf-paper);stroke-width:3px;stroke-linejoin:round}",
        ".tf-chart.alone{width:auto;max-width:100%;background:var(--tf-paper)}",
        ".tf-chart .grid{stroke:var(--tf-grid);fill:none}",
        ".tf-chart .axis{stroke:var(--tf-faint);fill:none}",
        ".tf-chart .guide{stroke:var(--tf-faint);fill:none;stroke-dasharray:2 3}",
        ".tf-chart .line{fill:none;stroke-width:1.8;stroke-linejoin:round}",
        ".tf-chart .dashed{stroke-dasharray:6 4}",
        ".tf-chart .band{fill-opacity:.18;stroke:none}",
        ".tf-chart .bar,.tf-chart .span{stroke:none;fill-opacity:.85}",
        ".tf-chart .dot{stroke:var(--tf-paper);stroke-width:.8;fill-opacity:.8}",
        *(f".tf-chart .l{index}{{stroke:var(--tf-{index})}}" for index in range(SERIES)),
        *(f".tf-chart .f{index}{{fill:var(--tf-{index})}}" for index in range(SERIES)),
    )
)
"""For a page that holds charts; ``svg(…, standalone=True)`` brings it along."""

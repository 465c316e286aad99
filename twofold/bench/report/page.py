"""The look of the page, as CSS: for screens of any width, in light and dark, and for paper."""

from __future__ import annotations

from typing import Final

_LIGHT: Final = (
    "--ink:#1c2024;--faint:#5b636b;--rule:#e3e6e9;--paper:#ffffff;--tint:#f5f7f9;--warn:#8a4b00;--soft:#fff4e2"
)
_DARK: Final = (
    "--ink:#e8eaed;--faint:#9aa3ab;--rule:#32373c;--paper:#15181b;--tint:#1d2125;--warn:#ffc078;--soft:#332612"
)

CSS: Final = "\n".join(
    (
        f":root{{color-scheme:light dark;{_LIGHT}}}",
        f"@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}",
        "*{box-sizing:border-box}",
        "body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}",
        "main{max-width:1180px;margin:0 auto;padding:24px 20px 60px}",
        "h1{font-size:26px;line-height:1.2;margin:0;overflow-wrap:anywhere}",
        "h2{font-size:17px;margin:32px 0 8px}",
        ".kind{margin:0 0 4px;color:var(--faint);font-size:13px;letter-spacing:.04em}",
        ".where{margin:6px 0 0;color:var(--faint);overflow-wrap:anywhere}",
        ".verdict{margin:22px 0 0;font-size:18px;line-height:1.45;max-width:62em}",
        ".verdict p{margin:0 0 6px}",
        ".notes{margin:16px 0 0;padding:10px 14px 10px 32px;border-radius:6px}",
        ".notes{background:var(--soft);color:var(--warn)}",
        ".scroll{overflow-x:auto}",
        "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}",
        "th,td{padding:6px 10px;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}",
        "thead th{color:var(--faint);font-weight:500;font-size:13px}",
        "tbody th{font-weight:600;position:sticky;left:0;background:var(--paper)}",
        "th:first-child,.words td,.words th{text-align:left}",
        ".words td:last-child{white-space:normal;overflow-wrap:anywhere;min-width:16em}",
        ".gallery{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr))}",
        ".gallery{gap:28px 36px;margin-top:32px;align-items:end}",
        "figure{margin:0;min-width:0}",
        "figure.wide{margin-top:32px;overflow-x:auto}",
        "figure.wide svg{min-width:640px}",
        "details{margin-top:14px;border-top:1px solid var(--rule);padding-top:12px}",
        "details.run{margin-top:20px}",
        "summary{cursor:pointer;font-weight:600}",
        "dl{display:grid;grid-template-columns:minmax(9em,max-content) 1fr;gap:4px 20px;margin:10px 0}",
        "dt{color:var(--faint)}",
        "dd{margin:0;overflow-wrap:anywhere}",
        "@media (max-width:600px){main{padding:16px 14px 40px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}",
        ".verdict{font-size:16px}}",
        f"@media print{{:root{{{_LIGHT}}}body{{font-size:11px}}main{{max-width:none;padding:0}}",
        "h1{font-size:20px}h2{font-size:13px;margin-top:18px}thead th,.kind{font-size:10px}.verdict{font-size:13px}",
        "figure,tr,dt{break-inside:avoid}.scroll{overflow:visible}th,td{padding:3px 5px}",
        ".gallery{grid-template-columns:1fr 1fr;gap:14px}details:not([open]){display:none}}",
    )
)

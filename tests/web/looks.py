"""How the page looks: on small and on large screens, light and dark; and what is wrong with it there."""

from __future__ import annotations

from typing import Final, Literal

from playwright.sync_api import Page, ViewportSize

from tests.web.browser import COLOURED, DESKTOP, accessibility_faults, picture

THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
SIZES: Final[tuple[ViewportSize, ...]] = (DESKTOP, {"width": 320, "height": 640})

CUT: Final = """() => {
    const faults = [];
    const tell = (what, e) => faults.push(`${what}: ${e.localName}.${e.className} "${e.textContent.slice(0, 40)}"`);
    const says = (e) => [...e.childNodes].some((each) => each.nodeType === Node.TEXT_NODE && each.data.trim());
    for (const e of document.querySelectorAll("html, body, body *:not(svg *)")) {
        const { overflowX, textOverflow } = getComputedStyle(e), wide = e.scrollWidth > e.clientWidth + 1;
        const exempt = ".wide, .wide *, pre, pre *, .parts, .parts *, svg, .hidden, .skip";
        if (!e.checkVisibility() || e.matches(exempt)) continue;
        if (wide && overflowX !== "visible" && textOverflow !== "ellipsis") tell(overflowX, e);
        const { left, right, width } = e.getBoundingClientRect();
        const matters = says(e) || e.matches("button, a, input, select, textarea, canvas");
        if (width && matters && (left < -1 || right > innerWidth + 1)) tell("outside", e);
    }
    return faults.slice(0, 5);
}"""
"""What is outside of the window or cut off by what it is in, and what scrolls sideways, but tables and code."""


def faults_of_looks(page: Page, name: str) -> list[str]:
    """Each fault of the page as it is now, in all looks, with the look: what axe finds, and what is cut off.

    Colours alone differ between themes, so the second one is checked by the rules about colours.
    """
    found = []
    for size in SIZES:
        page.set_viewport_size(size)
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            look = f"{name} {size['width']} {theme}"
            first = theme == THEMES[0]
            told = accessibility_faults(page, None if first else COLOURED) + (page.evaluate(CUT) if first else [])
            found += [f"{look}: {each}" for each in told]
            picture(page, look.replace(" ", "_"))
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme=THEMES[0])
    return found

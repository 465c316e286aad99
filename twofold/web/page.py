"""The web page: its files, read once, as responses to send, and the policy that binds it.

The sources are ES modules and style sheets; the server joins them into a few files when it starts. Paths contain a hash
of all files, so browsers may keep them for ever, and a file and what it imports are always of one version.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from twofold.web.bundle import Bundle

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""The page runs and loads only this server's files and makes no markup of strings."""
PAGE_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
CONTENT_TYPES: Final = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
}
INDEX: Final = "index.html"
PLACE: Final = "/web/HASH/"
"""The folder of the files, as the index names it."""
SCRIPT: Final = "app.js"
STYLES: Final = "app.css"
SPARE: Final = re.compile(r"/\*.*?\*/\n|(?<=\})\n")
"""Comments and line ends of style sheets."""


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file; ``packed`` is ``body`` as gzip, ``etag`` its quoted hash."""

    body: bytes
    packed: bytes
    content_type: bytes
    etag: bytes
    cache_control: bytes

    @classmethod
    def of(cls, name: str, body: bytes, cache_control: bytes) -> WebFile:
        etag = f'"{sha256(body).hexdigest()[:20]}"'.encode()
        return cls(body, gzip.compress(body, mtime=0), CONTENT_TYPES[name[name.rindex(".") :]], etag, cache_control)


@dataclass(frozen=True, slots=True)
class WebPage:
    """The index, and the other files by their paths under ``/web/HASH/``; ``version`` is that hash."""

    index: WebFile
    files: Mapping[str, WebFile]
    version: str

    @classmethod
    def read(cls) -> WebPage:
        """Reads the files of the package."""
        found = sources()
        texts = {**Bundle(found).files(SCRIPT), STYLES: style_of(found)}
        everything = "\0".join(part for file in {INDEX: found[INDEX], **texts}.items() for part in file)
        version = sha256(everything.encode()).hexdigest()[:16]
        index = found[INDEX].replace(PLACE, f"/web/{version}/").encode()
        for_ever = b"public, max-age=31536000, immutable"
        kept = {name: WebFile.of(name, text.encode(), for_ever) for name, text in texts.items()}
        return cls(WebFile.of(INDEX, index, b"no-cache"), kept, version)


def sources() -> dict[str, str]:
    """The texts of the page's modules, style sheets and index, by path."""
    return dict(sorted(_walk(files("twofold.web") / "static", "")))


def style_of(found: Mapping[str, str]) -> str:
    """All style sheets as one without comments, that of the shell first."""
    sheets = sorted((name for name in found if name.endswith(".css")), key=lambda name: (name != STYLES, name))
    return SPARE.sub("", "".join(found[name] for name in sheets))


def is_page(path: str, accept: str) -> bool:
    """Whether a request is for a file of the page or, at ``/``, by a browser: these contain no data and need no key."""
    return path.startswith("/web/") or (path == "/" and "text/html" in accept)


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(tuple(CONTENT_TYPES)):
            yield prefix + entry.name, entry.read_text("utf-8")

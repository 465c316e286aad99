"""The web page: its files, read once, as responses to send, and the policy that binds it.

The files are ES modules and style sheets as we wrote them; nothing is built, but comments stay here: they are a quarter
of the bytes, and browsers have no use for them. Paths contain a hash of all files, so browsers may keep them for ever,
and a module and what it imports are always of one version.
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
COMMENT: Final = re.compile(
    rb"^[ \t]*(?:/\*(?:(?!\*/).)*\*/[ \t]*|//[^\n]*)\n|/\*\* @(?:type|param)(?:(?!\*/).)*\*/ ?",
    re.MULTILINE | re.DOTALL,
)
"""Lines of comments in a module, and types inside of a line. No text in backquotes of ours contains either."""
PLACE: Final = b"/web/HASH/"
"""The folder of the files, as the index names it."""
FIRST: Final = ("core/", "shell/", "text/", "chat/")
"""Modules that the first view needs: the index names them, so that a browser asks for all of them at once."""


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
        if name.endswith(".js"):
            body = COMMENT.sub(b"", body)
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
        found = dict(sorted(_walk(files("twofold.web") / "static", "")))
        everything = sha256()
        for name, body in found.items():
            everything.update(b"%s\0%d\0%s" % (name.encode(), len(body), body))
        version = everything.hexdigest()[:16]
        first = (name for name in found if name.startswith(FIRST) and name.endswith(".js"))
        links = "".join(f'<link rel="modulepreload" href="/web/HASH/{name}">' for name in first)
        index = found.pop(INDEX).replace(b"<!-- modules -->", links.encode())
        index = index.replace(PLACE, f"/web/{version}/".encode())
        kept = {name: WebFile.of(name, body, b"public, max-age=31536000, immutable") for name, body in found.items()}
        return cls(WebFile.of(INDEX, index, b"no-cache"), kept, version)


def is_page(path: str, accept: str) -> bool:
    """Whether a request is for a file of the page or, at ``/``, by a browser: these contain no data and need no key."""
    return path.startswith("/web/") or (path == "/" and "text/html" in accept)


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(tuple(CONTENT_TYPES)):
            yield prefix + entry.name, entry.read_bytes()

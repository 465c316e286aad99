"""The Bench view as one file: its modules, its styles and the results, without a server.

The modules become one script: each is a function that returns its exports, in the order in which they are imported. A
policy in the page allows this script and these styles, by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import json
import posixpath
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from twofold.web.page import WebPage

ENTRY: Final = "bench/alone.js"
STYLES: Final = ("app.css", "explore/explore.css")
IMPORT: Final = re.compile(r'^import (\{[^}]*\}) from "([^"]+)";\n', re.MULTILINE)
EXPORT: Final = re.compile(r"^export ((?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)


def single_page(results: Iterable[tuple[str, bytes]], comparison: object = None) -> bytes:
    """The page with results, each a name and a document of ``twofold bench`` in JSON, and with their comparison."""
    page = WebPage.read()
    documents = (b'{"name":%b,"document":%b}' % (_json(name), document) for name, document in results)
    data = b'{"results":[%b],"comparison":%b}' % (b",".join(documents), _json(comparison))
    script = _Bundle(page).of(ENTRY)
    style = b"".join(page.files[name].body for name in STYLES).decode()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    text = data.replace(b"<", b"\\u003c").decode("utf-8", "replace")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Twofold bench</title>'
        f'<link rel="icon" href="data:,"><style>{style}</style></head><body>'
        f'<script type="application/json" id="data">{text}</script>'
        f'<script type="module">{script}</script></body></html>\n'
    ).encode()


class _Bundle:
    """Modules as functions, each once, before those that import it."""

    def __init__(self, page: WebPage) -> None:
        self._page = page
        self._names: dict[str, str] = {}
        self._parts: list[str] = []

    def of(self, entry: str) -> str:
        """The script that runs the module ``entry``."""
        self._add(entry)
        return "\n".join(self._parts)

    def _add(self, path: str) -> str:
        """The variable with the exports of a module."""
        if path not in self._names:
            text = IMPORT.sub(lambda found: self._imported(path, found), self._page.files[path].body.decode())
            exports = ", ".join(found[2] for found in EXPORT.finditer(text))
            name = self._names[path] = f"module{len(self._names)}"
            text = EXPORT.sub(r"\1", text).replace("import.meta.url", "document.baseURI")
            self._parts.append(f"const {name} = (() => {{\n{text}\nreturn {{ {exports} }};\n}})();")
        return self._names[path]

    def _imported(self, path: str, found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))
        return f"const {found[1].replace(' as ', ': ')} = {self._add(target)};\n"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"

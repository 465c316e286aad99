"""The Bench view as one file: its modules, its styles and the results, without a server.

A policy in the page allows its script and its styles, by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from twofold.web.bundle import Bundle
from twofold.web.page import sources, style_of

ENTRY: Final = "bench/alone.js"


def single_page(results: Iterable[tuple[str, bytes]]) -> bytes:
    """The page with results, each a name and a document of ``twofold bench`` in JSON."""
    found = sources()
    documents = (b'{"name":%b,"document":%b}' % (json.dumps(name).encode(), document) for name, document in results)
    data = b"[%b]" % b",".join(documents)
    script = Bundle(found).script(ENTRY)
    style = style_of(found)
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


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}"

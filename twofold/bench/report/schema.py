"""The file that states the document's JSON Schema; a test holds it to the classes that it is made from."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from twofold.bench.report.document import json_schema


def schema_file() -> bytes:
    """The text of docs/bench.schema.json."""
    return orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def main(arguments: list[str]) -> int:
    """Writes it where the only argument says: ``python -m twofold.bench.report.schema docs/bench.schema.json``."""
    if len(arguments) != 1:
        print("usage: python -m twofold.bench.report.schema FILE", file=sys.stderr)
        return 2
    Path(arguments[0]).write_bytes(schema_file())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

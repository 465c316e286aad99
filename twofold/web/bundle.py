"""The page's modules as a few files: what the shell and its first view need is one, so that they are there at once.

Each module becomes a function that returns its exports, in the order in which they are imported. Their sources stay
modules, one for each purpose; a browser asks for two or three files instead of dozens.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

COMMENT: Final = re.compile(
    r"^[ \t]*(?:/\*(?:(?!\*/).)*\*/[ \t]*|//[^\n]*)\n|/\*\* @(?:type|param)(?:(?!\*/).)*\*/ ?",
    re.MULTILINE | re.DOTALL,
)
"""Lines of comments in a module, and types inside of a line. No text in backquotes of ours contains either."""
IMPORT: Final = re.compile(r'^import (\{[^}]*\}) from "([^"]+)";\n', re.MULTILINE)
LATER: Final = re.compile(r'\bimport\("([^"]+)"\)')
EXPORT: Final = re.compile(r"^export ((?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
SHARED: Final = "shared.js"


class Bundle:
    """The modules among the sources of the page, which are texts by path. Comments are left out: browsers have no use
    for them."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._texts = {path: COMMENT.sub("", text) for path, text in sources.items() if path.endswith(".js")}

    def files(self, entry: str) -> dict[str, str]:
        """The files by name: ``entry`` with what it imports, one for each module that it imports later, which is named
        after its folder, and SHARED with what several of these need."""
        first = self._needed(entry)
        later = {
            target: [path for path in self._needed(target) if path not in first]
            for path in first
            for target in self._targets(LATER, path)
        }
        uses = Counter(path for needed in later.values() for path in needed)
        shared = {path: None for needed in later.values() for path in needed if uses[path] > 1}
        parts = {entry: first, SHARED: shared}
        for target, needed in later.items():
            parts[f"{posixpath.dirname(target)}.js"] = dict.fromkeys(path for path in needed if uses[path] == 1)
        homes = {path: file for file, paths in parts.items() for path in paths}
        return {file: self._file(paths, homes) for file, paths in parts.items()}

    def script(self, entry: str) -> str:
        """A module with all that it imports, as one script."""
        return self._functions(self._needed(entry), {})

    def _needed(self, entry: str) -> dict[str, None]:
        """The paths of a module and of those that it imports, each after its own imports."""
        found: dict[str, None] = {}
        for target in self._targets(IMPORT, entry):
            found |= self._needed(target)
        return found | {entry: None}

    def _targets(self, pattern: re.Pattern[str], path: str) -> list[str]:
        return [_resolved(path, found[found.re.groups]) for found in pattern.finditer(self._texts[path])]

    def _file(self, paths: Iterable[str], homes: Mapping[str, str]) -> str:
        own = dict.fromkeys(paths)
        others: dict[str, dict[str, None]] = {}
        for path in own:
            for target in self._targets(IMPORT, path):
                if target not in own:
                    others.setdefault(homes[target], {})[_variable(target)] = None
        imports = "".join(f'import {{ {", ".join(names)} }} from "./{file}";\n' for file, names in others.items())
        exports = ", ".join(map(_variable, own))
        return f"{imports}{self._functions(own, homes)}\nexport {{ {exports} }};\n"

    def _functions(self, paths: Iterable[str], homes: Mapping[str, str]) -> str:
        return "\n".join(self._function(path, homes) for path in paths)

    def _function(self, path: str, homes: Mapping[str, str]) -> str:
        def imported(found: re.Match[str]) -> str:
            return f"const {found[1].replace(' as ', ': ')} = {_variable(_resolved(path, found[2]))};\n"

        def later(found: re.Match[str]) -> str:
            target = _resolved(path, found[1])
            return f'import("./{homes[target]}").then((file) => file.{_variable(target)})'

        text = LATER.sub(later, IMPORT.sub(imported, self._texts[path]))
        exports = ", ".join(found[2] for found in EXPORT.finditer(text))
        text = EXPORT.sub(r"\1", text)
        return f"const {_variable(path)} = (() => {{\n{text}\nreturn {{ {exports} }};\n}})();"


def _resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _variable(path: str) -> str:
    """`core_dom` for `core/dom.js`."""
    return re.sub(r"\W", "_", path.removesuffix(".js"))

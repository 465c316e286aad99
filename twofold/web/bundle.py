"""The page's modules as a few files: what the shell and its first view need is one, so that they are there at once.

A file has the texts of its modules, in the order in which they are imported, in one scope: so two modules of a file may
not use one name for two things at their top level. Their sources stay modules, one for each purpose; a browser asks for
two or three files instead of dozens.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

COMMENT: Final = re.compile(
    r"^[ \t]*(?:/\*(?:(?!\*/).)*\*/[ \t]*|//[^\n]*)\n|/\*\* @(?:type|param)(?:(?!\*/).)*\*/ ?",
    re.MULTILINE | re.DOTALL,
)
"""Lines of comments in a module, and types inside of a line. No text in backquotes of ours contains either."""
INDENT: Final = re.compile(r"^[ \t]+|\n(?=\n)", re.MULTILINE)
"""Indentation and empty lines. No text in backquotes of ours has several lines."""
IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "([^"]+)";\n', re.MULTILINE)
LATER: Final = re.compile(r'\bimport\("([^"]+)"')
EXPORT: Final = re.compile(r"^export ((?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)
SHARED: Final = "shared.js"


class Bundle:
    """The modules among the sources of the page, which are texts by path. Comments and indentation are left out:
    browsers have no use for them."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._texts = {path: shipped(text) for path, text in sources.items() if path.endswith(".js")}

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
        return {file: self._file(file, homes) for file in parts}

    def script(self, entry: str) -> str:
        """A module with all that it imports, as one script."""
        return "".join(self._text(path, {}) for path in self._needed(entry))

    def _needed(self, entry: str) -> dict[str, None]:
        """The paths of a module and of those that it imports, each after its own imports."""
        found: dict[str, None] = {}
        for target in self._targets(IMPORT, entry):
            found |= self._needed(target)
        return found | {entry: None}

    def _targets(self, pattern: re.Pattern[str], path: str) -> list[str]:
        return [_resolved(path, found[found.re.groups]) for found in pattern.finditer(self._texts[path])]

    def _file(self, file: str, homes: Mapping[str, str]) -> str:
        imports: dict[str, set[str]] = {}
        exports: set[str] = set()
        for path, home in homes.items():
            for found in IMPORT.finditer(self._texts[path]):
                names = {name.strip() for name in found[1].split(",") if name.strip()}
                target = homes[_resolved(path, found[2])]
                if home == file != target:
                    imports.setdefault(target, set()).update(names)
                elif home != file == target:
                    exports |= names
            for target in self._targets(LATER, path):
                if homes[target] == file:
                    exports.update(found[2] for found in EXPORT.finditer(self._texts[target]))
        head = "".join(
            f'import {{ {", ".join(sorted(imports[each]))} }} from "./{each}";\n' for each in sorted(imports)
        )
        body = "".join(self._text(path, homes) for path, home in homes.items() if home == file)
        return f"{head}{body}\nexport {{ {', '.join(sorted(exports))} }};\n"

    def _text(self, path: str, homes: Mapping[str, str]) -> str:
        def later(found: re.Match[str]) -> str:
            return f'import("./{homes[_resolved(path, found[1])]}"'

        return EXPORT.sub(r"\1", LATER.sub(later, IMPORT.sub("", self._texts[path])))


def shipped(text: str) -> str:
    """A module without what only people need."""
    return INDENT.sub("", COMMENT.sub("", text))


def _resolved(path: str, target: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))

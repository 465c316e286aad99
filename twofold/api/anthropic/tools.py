"""Anthropic's tools and ``tool_choice``, in the shape that chat templates read."""

from __future__ import annotations

from typing import Any, Final

from twofold.api.anthropic.caching import CacheControls
from twofold.api.cache_points import CachePoint
from twofold.api.conversation import NamedTool, ToolChoice
from twofold.api.fields import FieldError, Fields, impossible, leave_out, unsupported
from twofold.core.errors import named, quoted
from twofold.engine.prompts import Message

MAX_TOOLS: Final = 128
MAX_NAME_CHARS: Final = 128


class ToolReader:
    """Reads a body's ``tools``. Raises FieldError where they cannot be."""

    def __init__(self, controls: CacheControls) -> None:
        self._controls = controls
        self.tools: list[Message] = []
        self.points: list[CachePoint] = []
        self._names: set[str] = set()

    def read(self, given: object) -> None:
        if given is None:
            return
        if not isinstance(given, list) or len(given) > MAX_TOOLS:
            raise impossible("tools", given, f"a list of at most {MAX_TOOLS} tools")
        for index, tool in enumerate(given):
            self._tool(Fields(tool, f"tools[{index}]"))

    def _tool(self, tool: Fields) -> None:
        kind = tool.take("type")
        if kind not in (None, "custom"):
            self._leave_out(tool, kind)
            return
        schema, described = tool.require("input_schema"), tool.text("description")
        if not isinstance(schema, dict):
            raise impossible(tool.name("input_schema"), schema, "a JSON schema")
        function: dict[str, Any] = {"name": self._name(tool), "description": described or "", "parameters": schema}
        if tool.flag("strict"):
            function["strict"] = True
        tool.only("eager_input_streaming", True)  # arguments always leave as they come
        tool.only("defer_loading", False)
        tool.only("allowed_callers", ["direct"])
        tool.only("input_examples", [])
        self.tools.append({"type": "function", "function": function})
        self._mark(tool)
        tool.close()

    def _leave_out(self, tool: Fields, kind: object) -> None:
        """A tool of Anthropic's own, which nothing here can run or describe to a model. Raises FieldError."""
        error = unsupported(
            f"{tool.name('type')} {named(kind)}", "Describe the tool by its name, description and input_schema."
        )
        if not isinstance(kind, str):
            raise error
        leave_out(tool.path, kind, error)
        self._mark(tool)

    def _mark(self, tool: Fields) -> None:
        """The cache point that a tool may have lies behind the last one that the model is shown."""
        ttl = self._controls.take(tool)
        if ttl is not None and self.tools:
            self.points.append(CachePoint(ttl=ttl, tool=len(self.tools) - 1))

    def _name(self, tool: Fields) -> str:
        name = tool.require("name")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
            raise impossible(tool.name("name"), name, f"a name of 1 to {MAX_NAME_CHARS} characters")
        if name in self._names:
            raise FieldError(f"{tool.name('name')} {quoted(name)} is the name of two tools.", param=tool.name("name"))
        self._names.add(name)
        return name


def read_choice(fields: Fields) -> tuple[ToolChoice, bool]:
    """Which tools may be called, and whether an answer may hold several calls."""
    chosen = fields.inner("tool_choice")
    if chosen is None:
        return "auto", True
    kind = chosen.choice("type", ("auto", "any", "tool", "none"))
    choice: ToolChoice = "auto"
    if kind == "tool":
        name = chosen.require("name")
        if not isinstance(name, str):
            raise impossible("tool_choice.name", name, "the name of a tool")
        choice = NamedTool(name)
    elif kind != "auto":
        choice = "required" if kind == "any" else "none"
    alone = chosen.flag("disable_parallel_tool_use")
    chosen.close()
    return choice, not alone

"""Jinja for templates from strangers: no way to internals, and a bound on time and memory.

``ImmutableSandboxedEnvironment`` closes the ways to Python's internals and forbids changes to what a template got.
It does not bound work: ``'a' * 10**10``, nested loops, or a string doubled forty times end a process. Here everything
that can make work grow is metered. The syntax tree is rewritten so that loops, joins, literals, slices and output pass
through a ``Meter``; filters and methods are limited to known ones, their results are weighed before they are used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from twofold.text.names import names

SECONDS = 0.6
MAX_RANGE = 100_000
MAX_DEPTH = 100
MAX_INTEGER_BITS = 4096
BASE_WEIGHT = 4 << 20
WEIGHT_PER_INPUT = 64
"""A rendering may weigh 4 Mi characters plus 64 for each that went in; a node of a list or mapping counts as eight."""
_NODE = 8

_FILTERS = names(
    "abs capitalize count d default dictsort e escape first float groupby indent int items join last length list "
    "lower map max min reject rejectattr replace reverse round safe select selectattr slice sort string sum title "
    "tojson trim truncate unique upper wordcount"
)
_TEXT_METHODS = names(
    "capitalize casefold count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower "
    "isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix replace rfind rindex "
    "rpartition rsplit rstrip split splitlines startswith strip swapcase title upper"
)


class Meter:
    """What one rendering has used. Raises SecurityError when it is too much."""

    def __init__(self, input_weight: int) -> None:
        self._left = BASE_WEIGHT + WEIGHT_PER_INPUT * input_weight
        self._wall = time.monotonic() + SECONDS
        self._cpu = time.thread_time() + SECONDS
        self._weights: dict[int, tuple[object, int]] = {}

    def tick(self) -> None:
        """One turn of a loop, or one call. The wall clock is cheap to read; CPU time decides, as machines are busy."""
        if time.monotonic() > self._wall and time.thread_time() > self._cpu:
            raise SecurityError("the template runs too long")

    def spend(self, weight: int) -> None:
        """Takes ``weight`` from what is left, before the memory is used."""
        self._left -= weight
        if self._left < 0:
            raise SecurityError("the template makes too much text")

    def admit(self, value: Any) -> Any:
        """The value, after its whole weight is spent."""
        if isinstance(value, (str, list, tuple, dict, set)):
            self.spend(self.weight(value))
        return value

    def weight(self, value: object) -> int:
        """Characters of a string; for a container that of all it holds, as if written out.

        Weights of containers are remembered: templates cannot change them, and shared parts cost no second walk.
        """
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, (list, tuple, dict, set)):
            return _NODE
        if (known := self._weights.get(id(value))) is not None:
            return known[1]
        items: Iterable[object] = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        total = _NODE + sum(self.weight(item) + _NODE for item in items)
        self._weights[id(value)] = (value, total)
        return total


class _MeterNodes(NodeTransformer):
    """Rewrites a template so that what can grow goes through the environment's meter."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - jinja2 finds these methods by node name
        self.generic_visit(node)
        node.iter = _metered("metered_loop", node.iter)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _metered("admit", self.generic_visit(node))

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return _metered("admit", self.generic_visit(node))

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        whole = self.generic_visit(node)
        return _metered("admit", whole) if node.ctx == "load" else whole

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        whole = self.generic_visit(node)
        return _metered("admit", whole) if isinstance(node.arg, nodes.Slice) else whole

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _metered("joined", *node.nodes)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        return _metered("admit", nodes.Const(node.data, lineno=node.lineno))


def _check_depth(template: nodes.Template) -> None:
    """Deep nesting makes compiling slow or overflow. Raises TemplateSyntaxError beyond ``MAX_DEPTH`` levels."""
    level: list[nodes.Node] = [template]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in node.iter_child_nodes()]
        if not level:
            return
    raise TemplateSyntaxError("it is nested too deeply", level[0].lineno)


def _metered(method: str, *arguments: nodes.Node) -> nodes.Call:
    line = arguments[0].lineno
    function = nodes.EnvironmentAttribute(method, lineno=line)
    return nodes.Call(function, list(arguments), [], None, None, lineno=line)


class GenerationTag(Extension):
    """``{% generation %}`` marks what the model wrote, for training; rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """One environment for one template; renderings in different threads have meters of their own."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag])
        self._local = threading.local()
        self.finalize = self.shown
        self.globals = {name: self.globals[name] for name in ("dict", "namespace", "cycler", "joiner")}
        self.globals["range"] = self.bounded_range
        self.filters = {name: self._weighed(self.filters[name]) for name in self.filters.keys() & _FILTERS}
        self.filters["join"] = self._join
        self.filters["replace"] = self._replace
        self.filters["string"] = self.text

    @property
    def meter(self) -> Meter:
        """The meter of the rendering in this thread."""
        meter: Meter | None = getattr(self._local, "meter", None)
        if meter is None:
            raise SecurityError("nothing is being rendered")
        return meter

    def metered(self, meter: Meter, render: Callable[[], str]) -> str:
        """``render()`` under ``meter``."""
        self._local.meter = meter
        try:
            return render()
        finally:
            self._local.meter = None

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed = super()._parse(source, name, filename)
        _check_depth(parsed)
        template: nodes.Template = _MeterNodes().visit(parsed)
        return template

    def admit(self, value: Any) -> Any:
        return self.meter.admit(value)

    def text(self, value: object) -> str:
        """``str(value)``, weighed first."""
        return value if isinstance(value, str) else self._text(value)

    def _text(self, value: object) -> str:
        if isinstance(value, (list, tuple, dict, set)):
            self.meter.spend(self.meter.weight(value))
        elif not (value is None or isinstance(value, (bool, int, float, Undefined))):
            raise SecurityError(f"a value of type {type(value).__name__} cannot be written out")
        return str(value)

    def shown(self, value: object) -> str:
        """What output writes for a value."""
        text = self.text(value)
        self.meter.spend(len(text))
        return text

    def joined(self, *values: object) -> str:
        """``a ~ b``."""
        texts = [self.text(value) for value in values]
        self.meter.spend(sum(map(len, texts)))
        return "".join(texts)

    def metered_loop(self, values: Iterable[Any]) -> Iterator[Any]:
        """The values, each counted as a turn of a loop."""
        for value in values:
            self.meter.tick()
            yield value

    def bounded_range(self, *arguments: int) -> range:
        """``range``, no longer than ``MAX_RANGE``."""
        values = range(*arguments)
        if len(values) > MAX_RANGE:
            raise SecurityError(f"a range is longer than {MAX_RANGE}")
        return values

    def _weighed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def weighed(*arguments: Any, **named: Any) -> Any:
            self.meter.tick()
            for argument in (*arguments, *named.values()):
                if isinstance(argument, int) and abs(argument) > MAX_RANGE:
                    raise SecurityError("a number given to a filter is too large")
            return self.meter.admit(function(*arguments, **named))

        return weighed

    def _join(self, values: Iterable[Any], separator: str = "", attribute: str | None = None) -> str:
        items = values if attribute is None else (self.getattr(value, attribute) for value in values)
        texts: list[str] = []
        for item in self.metered_loop(items):
            texts.append(self.text(item))
            self.meter.spend(len(texts[-1]) + len(separator))
        return self.text(separator).join(texts)

    def _replace(self, text: object, old: str, new: str, count: int = -1) -> str:
        return self._replaced(self.text(text), self.text(old), self.text(new), count)

    def _replaced(self, text: str, old: str, new: str, count: int = -1) -> str:
        found = text.count(old) if count < 0 else min(text.count(old), count)
        self.meter.spend(len(text) + max(0, found * (len(new) - len(old))))
        return text.replace(old, new, count)

    def wrap_str_format(self, value: object) -> None:
        """No ``str.format``: its field widths and repeats are not metered. ``is_safe_attribute`` then refuses it."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str):
            return attr in _TEXT_METHODS
        return not isinstance(obj, (bytes, int, float, type)) and super().is_safe_attribute(obj, attr, value)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.meter.tick()
        owner = getattr(__obj, "__self__", None) if isinstance(__obj, BuiltinMethodType) else None
        if isinstance(owner, str):
            return self._call_text_method(owner, __obj, args, kwargs)
        result = super().call(__context, __obj, *args, **kwargs)
        return result if owner is None else self.meter.admit(result)

    def _call_text_method(self, owner: str, method: BuiltinMethodType, args: Any, kwargs: Any) -> Any:
        if method.__name__ == "join":
            return self._join(args[0] if args else (), owner)
        if method.__name__ == "replace":
            return self._replaced(owner, *args, **kwargs)
        return self.meter.admit(method(*args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.meter.tick()
        if operator == "%" and isinstance(left, (str, bytes)):
            raise SecurityError("'%' does not format text here; join it with '~'")
        if operator in {"*", "**"}:
            self._check_product(operator, left, right)
        result = super().call_binop(context, operator, left, right)
        return self.meter.admit(result)

    def _check_product(self, operator: str, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise SecurityError("a number becomes too large")
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
                self.meter.spend(self.meter.weight(sequence) * max(0, times))

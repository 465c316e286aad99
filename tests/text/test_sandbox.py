"""Templates from strangers: nothing of Python is in reach, and none takes long or much memory."""

from __future__ import annotations

import resource
import time

import pytest

from twofold.core.errors import TemplateError
from twofold.text.chat import MAX_TEMPLATE_CHARACTERS, ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}]


def repeated(step: str, start: str = "'x'") -> str:
    """A template that puts ``step``, an expression of ``n.x``, into ``n.x`` 99 times."""
    return f"{{% set n = namespace(x={start}) %}}{{% for i in range(99) %}}{{% set n.x = {step} %}}{{% endfor %}}"


REACHES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals of a function": "{{ raise_exception.__globals__['json'] }}",
    "globals of a method": "{{ cycler.__init__.__globals__['os'] }}",
    "attr filter": "{{ ''|attr('__class__') }}",
    "format string": "{{ '{0.__class__}'.format(1) }}",
    "format map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "environment": "{{ self._TemplateReference__context.environment }}",
    "code of a generator": "{{ (messages|map('upper')).gi_frame.f_builtins }}",
    "change a message": "{{ messages.append(1) }}",
    "change a field": "{{ messages[0].update({'role': 'x'}) }}",
    "lipsum": "{{ lipsum.__globals__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "module": "{{ strftime_now.__self__._sandbox }}",
}

GROWS = {
    "multiplied text": "{{ 'a' * 10**10 }}",
    "multiplied list": "{{ [0] * 10**10 }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "squares": repeated("n.x * n.x", "9"),
    "doubled with ~": repeated("n.x ~ n.x"),
    "doubled with +": repeated("n.x + n.x"),
    "replace": repeated("n.x.replace('x', 'xx')"),
    "replace filter": repeated("n.x|replace('x', 'xx')"),
    "join": "{{ range(99999)|join('x' * 1000000) }}",
    "join method": "{{ ('x' * 1000000).join(['a'] * 99999) }}",
    "joined pairs": repeated("[n.x, n.x]|join"),
    "set block": "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set b %}{{ n.x }}{{ n.x }}{% endset %}"
    "{% set n.x = b %}{% endfor %}",
    "shared list written": repeated("[n.x, n.x]", "[1]") + "{{ n.x }}",
    "shared tuple hashed": repeated("(n.x, n.x)", "(1,)") + "{{ {n.x: 1} }}",
    "shared mapping": repeated("{'a': n.x, 'b': n.x}", "{}") + "{{ n.x|tojson }}",
    "nested by filters": repeated("(n.x + n.x)|slice(1)|list", "[1]") + "{{ n.x|tojson }}",
    "literal text in a loop": "{% for i in range(100000) %}" + "x" * 60_000 + "{% endfor %}",
    "slices kept": "{% set s = 'a' * 1000000 %}" + "".join(f"{{% set a{i} = s[1:] %}}" for i in range(999)),
    "methods kept": "{% set s = 'a' * 1000000 %}" + "".join(f"{{% set a{i} = s.upper() %}}" for i in range(999)),
    "long range": "{{ range(10**9)|list }}",
    "wide format": "{{ '{:1000000000}'.format(1) }}",
    "percent format": "{{ '%1000000000d' % 1 }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "center": "{{ 'a'|center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "indent": "{{ 'a\nb'|indent(10**9) }}",
    "json indent": "{{ [1]|tojson(indent=10**9) }}",
    "date": "{{ strftime_now('%1000000000Y') }}",
}

LASTS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for a in range(999) recursive %}{{ loop(range(999)) }}{% endfor %}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "filters in a loop": "{% for i in range(99999) %}{{ range(99999)|max }}{% endfor %}",
    "search in a loop": "{% set s = 'a' * 4000000 %}{% for i in range(99999) %}{% if 'b' in s %}1{% endif %}"
    "{% endfor %}",
}

COMPILES_LONG = {
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists": "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "nots": "{{ " + "not " * 15000 + "1 }}",
    "attributes": "{{ a" + ".b" * 30000 + " }}",
    "loops": "{% for a in [1] %}" * 1500 + "{% endfor %}" * 1500,
    "conditions": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "unclosed text": "{{ '" + "\\'" * 30000,
    "unclosed comments": "{#" * 30000,
    "too long": "x" * (MAX_TEMPLATE_CHARACTERS + 1),
}


def render(source: str) -> str:
    return ChatTemplate(source).render(MESSAGES)


@pytest.mark.parametrize("source", REACHES.values(), ids=REACHES.keys())
def test_nothing_is_in_reach(source: str) -> None:
    """An error, or the emptiness that Jinja shows for what is undefined."""
    try:
        text = render(source)
    except TemplateError:
        return
    assert text == ""


@pytest.mark.usefixtures("own_garbage")
@pytest.mark.parametrize(
    "source",
    [*GROWS.values(), *LASTS.values(), *COMPILES_LONG.values()],
    ids=[*GROWS.keys(), *LASTS.keys(), *COMPILES_LONG.keys()],
)
def test_ends_soon_and_small(source: str) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.thread_time()
    with pytest.raises(TemplateError):
        render(source)
    assert time.thread_time() - started < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 128 * 1024


def test_nesting_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(TemplateError, match="nested too deeply"):
        ChatTemplate("{% for a in [1] %}" * 200 + "{% endfor %}" * 200)


def test_a_long_conversation_is_not_hostile() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim ~ '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": f" {index} " + "word " * 50} for index in range(4096)]
    assert ChatTemplate(source).render(messages).count("<user>") == 4096


def test_renderings_have_meters_of_their_own() -> None:
    template = ChatTemplate("{{ 'a' * 1000000 }}")
    for _ in range(20):
        assert len(template.render(MESSAGES)) == 1_000_000

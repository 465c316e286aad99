"""Templates from strangers: nothing of Python is in reach, and none takes long or much memory."""

from __future__ import annotations

import resource

import pytest

from twofold.core.errors import TemplateError, TemplateLimitError
from twofold.text.templates.chat import MAX_TEMPLATE_CHARACTERS, ChatTemplate

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
    "attribute of a map": "{{ [''] | map(attribute='__class__') | list }}",
    "attribute of a group": "{{ [''] | groupby('__class__') }}",
    "attribute of a sum": "{{ [raise_exception] | sum(attribute='__globals__') }}",
    "attribute of a join": "{{ [''] | join(attribute='__class__') }}",
    "item of a text": "{{ messages['__class__'] }}{{ ''['__class__'] }}",
    "context": "{{ self.__init__.__globals__.__builtins__ }}",
    "loop": "{% for i in [1] %}{{ loop._iterator }}{{ loop.__class__ }}{% endfor %}",
    "macro": "{% macro m() %}{% endmacro %}{{ m._func }}{{ m._environment }}",
    "type": "{{ dict.mro() }}",
    "attribute of a namespace": "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n.__class__ }}",
    "module": "{{ strftime_now.__self__._sandbox }}",
}

NEEDS_MEMORY = {
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
    "wide format": "{{ '{:1000000000}'.format(1) }}",
    "percent format": "{{ '%1000000000d' % 1 }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "center": "{{ 'a'|center(10**9) }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "indent": "{{ 'a\nb'|indent(10**9) }}",
    "json indent": "{{ [1]|tojson(indent=10**9) }}",
    "select with a copied list": "{% set n = namespace(a=[1] * 200000) %}{% set b = n.a + [2] %}"
    "{{ ([n.a + [3]] * 1) | length }}{{ range(100000) | map('default', 1) | select('eq', b) | list | length }}",
    "indented lines": "{{ ('\n' * 20000 ~ 'x') | indent(100000, blank=true) | length }}",
    "indented by a long text": "{{ ('a\n' * 100000) | indent('y' * 1000000) | length }}",
    "separators": "{{ range(20000) | list | tojson(separators=('x' * 200000, ':')) | length }}",
    "replace in Markup": "{% set m = ('a' * 100000) | e %}{{ m.replace('a', 'b' * 30000) | length }}",
    "join of Markup": "{% set m = ('a' * 100000) | safe %}{{ m.join(range(30000) | map('string')) | length }}",
    "indented JSON": repeated("[n.x]", "range(20000) | list").replace("99", "900")
    + "{{ n.x | tojson(indent=8) | length }}",
    "copies of a namespace": "{% set d = dict(range(100000) | slice(50000)) %}{% set n = namespace(l=[]) %}"
    "{% for i in range(2000) %}{% set n.l = n.l + [namespace(d)] %}{% endfor %}{{ n.l | length }}",
    "copies of a mapping": "{% set d = dict(range(100000) | slice(50000)) %}{% set n = namespace() %}"
    + "".join(f"{{% set n.a{i} = dict(d) %}}" for i in range(999)),
    "many expressions": "{{ a }}" * 9000,
}

TAKES_TIME = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "macro tree": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "filters in a loop": "{% for i in range(99999) %}{{ range(99999)|max }}{% endfor %}",
    "search in a loop": "{% set s = 'a' * 4000000 %}{% for i in range(99999) %}{% if 'b' in s %}1{% endif %}"
    "{% endfor %}",
    "select in a list": "{{ range(100000) | select('in', range(-100000, 0) | list) | list | length }}",
    "select in a text": "{% set s = 'ab' * 1000000 %}"
    "{{ range(100000) | map('string') | select('in', s) | list | length }}",
    "reject in a list": "{{ range(100000) | reject('in', range(100000) | list) | list | length }}",
    "sum of lists": "{{ range(100000) | slice(100000) | sum(start=[]) | length }}",
    "chain of map": "{{ range(100000)" + "| map('string')" * 80 + "| list | length }}",
    "in a loop": "{% set l = range(100000) | list %}{% for i in range(100000) %}"
    "{{ (-1 in l) and '' or '' }}{% endfor %}",
    "split in a loop": "{% for i in range(1000) %}{{ ('a ' * 1900000).split() | length }}{% endfor %}",
    "deep additions": "{{ 1" + "+1" * 30000 + " }}",
}

REFUSED = {
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists": "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "nots": "{{ " + "not " * 15000 + "1 }}",
    "attributes": "{{ a" + ".b" * 30000 + " }}",
    "loops": "{% for a in [1] %}" * 1500 + "{% endfor %}" * 1500,
    "conditions": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "unclosed text": "{{ '" + "\\'" * 30000,
    "unclosed comments": "{#" * 30000,
    "too long": "x" * (MAX_TEMPLATE_CHARACTERS + 1),
    "long range": "{{ range(10**9)|list }}",
    "recursive loop": "{% for a in range(999) recursive %}{{ loop(range(999)) }}{% endfor %}",
    "macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive block": "{% block a %}{{ self.a() }}{% endblock %}",
    "deep list written": repeated("[n.x]", "[]").replace("99", "5000") + "{{ n.x | string }}",
    "sort by attributes": "{{ range(100000) | sort(attribute='a.b.c.d.e.f.g') | list | length }}",
    "unhashable": "{{ range(100000) | slice(100000) | unique | list | length }}",
    "long numbers": "{{ (2 ** 2048) ** 2 }}{{ 10 ** 100000 }}",
    "long literal": "{{ " + "9" * 60000 + " }}",
    "long truncation": "{{ ('a' * 3000000) | truncate(5, true, 'b' * 3000000) | length }}",
    "other options of tojson": "{{ 1 | tojson(default=raise_exception) }}",
    "written function": "{{ raise_exception }}",
    "written generator": "{{ messages | map('upper') }}",
}

SECONDS = 0.1


def render(source: str, seconds: float = 1.0) -> str:
    template = ChatTemplate(source, seconds=seconds)
    try:
        return template.render(MESSAGES)
    finally:
        template.close()


@pytest.mark.parametrize("source", REACHES.values(), ids=REACHES.keys())
def test_nothing_is_in_reach(source: str) -> None:
    """An error, or the emptiness that Jinja shows for what is undefined."""
    try:
        text = render(source)
    except TemplateError:
        return
    assert text in ("", "[Undefined]", "[(Undefined, [''])]")


@pytest.mark.parametrize("source", NEEDS_MEMORY.values(), ids=NEEDS_MEMORY.keys())
def test_memory_is_bounded(source: str) -> None:
    with pytest.raises(TemplateLimitError, match=r"was stopped: it (needs more than 96 MiB of memory|takes more than)"):
        render(source, SECONDS)


@pytest.mark.parametrize("source", TAKES_TIME.values(), ids=TAKES_TIME.keys())
def test_time_is_bounded(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(TemplateLimitError, match=r"was stopped: it takes more than 0.1 s of processor time"):
        render(source, SECONDS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS + 1


@pytest.mark.parametrize("source", REFUSED.values(), ids=REFUSED.keys())
def test_refused(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_length_is_bounded() -> None:
    with pytest.raises(TemplateLimitError, match=r"was stopped: its text is longer than 41\d{5} characters"):
        render("{{ 'a' * 5000000 }}")


@pytest.mark.parametrize("source", ["{% for a in [1] %}" * 200 + "{% endfor %}" * 200, "{{ " + "(" * 5000])
def test_nesting_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="is not valid"):
        ChatTemplate(source).check()


def test_a_long_conversation_is_not_hostile() -> None:
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim ~ '\n' }}{% endfor %}"
    messages = [{"role": "user", "content": f" {index} " + "word " * 50} for index in range(4096)]
    assert ChatTemplate(source).render(messages).count("<user>") == 4096


def test_large_messages_get_the_memory_that_they_need() -> None:
    source = "{% set n = namespace(t='') %}{% for m in messages %}{% set n.t = n.t ~ m.content %}{% endfor %}{{ n.t }}"
    text = "\U0001f600" * 3_000_000
    assert ChatTemplate(source).render([{"role": "user", "content": text}]) == text


def test_limits_are_of_one_rendering() -> None:
    template = ChatTemplate("{{ 'a' * 4000000 }}")
    for _ in range(20):
        assert len(template.render(MESSAGES)) == 4_000_000

"""The rule of ``twofold.api.fields``, for every field of every object of a request: null counts as absent, what only
labels is ignored with a warning, and what is not known is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.openapi.readers import full
from twofold.api.body import RequestObject, object_of, schemas
from twofold.api.fields import LABELS, MISSING, UNKNOWN, ignoring
from twofold.core.errors import ParameterError
from twofold.server import routes


def declared(base: type[RequestObject] = RequestObject) -> Iterator[type[RequestObject]]:
    for body in base.__subclasses__():
        if body.__module__.startswith("twofold."):
            yield body
            yield from declared(body)


assert routes, "it imports the bodies of all endpoints"
BODIES: Final = sorted(set(declared()), key=lambda body: body.__qualname__)
COMPONENTS: Final = schemas(BODIES) | {"ModelName": {"type": "string", "enum": ["tiny"]}}
NAMES: Final = st.one_of(st.sampled_from(sorted(LABELS)), st.text(max_size=20))


def samples(body: type[RequestObject]) -> Iterator[dict[str, Any]]:
    """Objects that are read: with no field but the required ones, and with each other field beside them."""
    (whole, *_) = full(object_of(body).schema, COMPONENTS)
    least = {name: value for name, value in whole.items() if name in object_of(body).required}
    for name, value in {"": None, **whole}.items():
        sample = least | ({name: value} if name else {})
        if outcome(body, sample)[0] == "read":
            yield sample


def outcome(body: type[RequestObject], value: Any) -> tuple[str, Any, list[str]]:
    """What becomes of an object: what was read, or the error; and the ignored parts."""
    with ignoring(unknown=False) as ignored:
        try:
            return "read", object_of(body).read(value, None), ignored.shown
        except ParameterError as error:
            return "refused", (error.param, getattr(error, "code", None), str(error)), ignored.shown


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__qualname__)
def test_null_counts_as_absent_in_each_object(body: type[RequestObject]) -> None:
    names = [*object_of(body).kinds, *sorted(LABELS), "never_heard_of"]
    for sample in samples(body):
        for name in names:
            absent = {other: value for other, value in sample.items() if other != name}
            assert outcome(body, sample | {name: None}) == outcome(body, absent)


@given(st.sampled_from(BODIES), NAMES, st.data())
def test_any_name_may_be_null(body: type[RequestObject], name: str, data: st.DataObject) -> None:
    found = list(samples(body))
    if not found:
        return
    sample = data.draw(st.sampled_from(found))
    absent = {other: value for other, value in sample.items() if other != name}
    assert outcome(body, sample | {name: None}) == outcome(body, absent)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__qualname__)
def test_labels_are_ignored_and_named_and_other_names_are_refused(body: type[RequestObject]) -> None:
    sample = next(samples(body), None)
    if sample is None:
        assert outcome(body, {})[1][1] == MISSING, "its fields exclude each other"
        return
    read, before = outcome(body, sample)[1:]
    for name in sorted(LABELS - object_of(body).kinds.keys() - object_of(body).schema["properties"].keys()):
        assert outcome(body, sample | {name: {"any": ["thing"]}}) == ("read", read, [*before, name])
        assert outcome(body, sample | {name: []}) == ("read", read, before)
    refused, (param, code, _), _ = outcome(body, sample | {"never_heard_of": 1})
    assert (refused, param, code) == ("refused", "never_heard_of", UNKNOWN)

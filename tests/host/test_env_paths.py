"""The environment and the cache folders."""

from pathlib import Path

import pytest

from twofold.core.errors import ResourceError
from twofold.host.env import read_environment
from twofold.host.paths import CacheFolders


def test_an_empty_environment_has_defaults() -> None:
    env = read_environment({"HOME": "/home/u"})
    assert env.home == Path("/home/u")
    assert (env.cache, env.no_color) == (None, False)
    assert dict(env.settings) == {}


def test_flags_are_named_as_on_the_command_line() -> None:
    env = read_environment({"TWOFOLD_MAX_MODEL_LEN": "512", "OTHER": "x"})
    assert dict(env.settings) == {"max-model-len": "512"}


def test_a_token_is_not_printed() -> None:
    assert "hf_secret" not in repr(read_environment({"HF_TOKEN": "hf_secret"}))


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TWOFOLD_CACHE": "/c"}, "/c"),
        ({"TWOFOLD_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/twofold"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/u/.cache/twofold"),
        ({"TWOFOLD_CACHE": ""}, "/home/u/.cache/twofold"),
    ],
)
def test_where_the_cache_is(variables: dict[str, str], expected: str) -> None:
    assert CacheFolders.of(read_environment({"HOME": "/home/u", **variables})).root == Path(expected)


def test_folders_are_private(tmp_path: Path) -> None:
    folders = CacheFolders(tmp_path / "a" / "cache").create()
    assert folders.create() == folders
    for folder in (folders.root, folders.models, folders.kernels, folders.tokenizers):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_the_error_of_an_impossible_folder_names_the_variable_to_set(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ResourceError) as caught:
        CacheFolders(tmp_path / "file" / "cache").create()
    assert "TWOFOLD_CACHE" in str(caught.value.hint)

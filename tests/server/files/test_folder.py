"""The data folder of a server: it finds its own again, and never uses that of another server."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from twofold.core.errors import UsageError
from twofold.server.storage import tenants
from twofold.server.storage.tenants import DataFolder, claim_folder


def test_a_named_folder_belongs_to_one_server(tmp_path: Path) -> None:
    with closing(DataFolder(tmp_path)), pytest.raises(UsageError, match="Another server") as caught:
        DataFolder(tmp_path)
    assert "--data-folder" in str(caught.value.hint)
    DataFolder(tmp_path).close()


def test_a_second_server_takes_a_folder_inside(tmp_path: Path) -> None:
    with closing(claim_folder(tmp_path, 8000)) as first, closing(claim_folder(tmp_path, 8001)) as second:
        assert (first.path, second.path) == (tmp_path, tmp_path / "servers" / "2")
        with closing(claim_folder(tmp_path, 0)) as third:
            assert third.path == tmp_path / "servers" / "3"
    with closing(claim_folder(tmp_path, 9000)) as another:
        assert another.path == tmp_path, "one server alone has the same folder on whatever port"


def test_servers_find_their_folders_again_in_any_order(tmp_path: Path) -> None:
    for ports in ((8000, 8001, 8002), (8002, 8000, 8001), (8001, 8002)):
        claimed = {port: claim_folder(tmp_path, port) for port in ports}
        paths = {port: claim.path.relative_to(tmp_path).as_posix() for port, claim in claimed.items()}
        for claim in claimed.values():
            claim.close()
        assert paths.items() <= {8000: ".", 8001: "servers/2", 8002: "servers/3"}.items()


def test_the_number_of_folders_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "MAX_SERVERS", 2)
    with (
        closing(claim_folder(tmp_path, 0)),
        closing(claim_folder(tmp_path, 0)),
        pytest.raises(UsageError, match="2 servers"),
    ):
        claim_folder(tmp_path, 0)

"""Folders at addresses: whole or not there, on moto's S3, an emulated GCS, and fsspec's own memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import fsspec
import pytest
from gcp_storage_emulator.server import create_server

from echelon.errors import StoreError, UserError
from echelon.store import (
    MANIFEST,
    get_file,
    get_folder,
    is_address,
    list_folders,
    put_file,
    put_folder,
    remove_folder_at,
    remove_unfinished,
)
from tests.cloud.server import REGION, moto_server
from tests.sshd import free_port


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with moto_server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": server,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": REGION,
        }.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="mine")
        fsspec.filesystem("s3", skip_instance_cache=True)
        yield "s3://mine"


@pytest.fixture(scope="module")
def gcs() -> Iterator[str]:
    emulator = create_server("127.0.0.1", free_port(), in_memory=True, default_bucket="mine")
    emulator.start()
    address = f"http://127.0.0.1:{emulator._api._port}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        yield "gs://mine"
    emulator.stop()


@pytest.fixture(params=["s3", "gcs", "memory"])
def place(request: pytest.FixtureRequest) -> str:
    root = "memory://mine" if request.param == "memory" else request.getfixturevalue(request.param)
    return f"{root}/{request.node.name.replace('[', '-').rstrip(']')}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000010"
    path.mkdir()
    (path / "model.safetensors").write_bytes(bytes(range(256)) * 100)
    (path / "state.json").write_text("{}")
    return path


def test_what_is_put_comes_back(place: str, folder: Path, tmp_path: Path) -> None:
    put_folder(folder, f"{place}/a")
    get_folder(f"{place}/a", tmp_path / "back")
    names = {file.name: file.read_bytes() for file in (tmp_path / "back").iterdir()}
    assert names == {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_long_download_beats_while_a_file_arrives(place: str, folder: Path, tmp_path: Path) -> None:
    size = 9 << 20 if place.startswith("memory") else 900_000  # aiohttp warns of more in one piece
    (folder / "model.safetensors").write_bytes(bytes(size))
    put_folder(folder, f"{place}/g")
    sizes: list[int] = []

    def beat() -> None:
        sizes.extend(file.stat().st_size for file in tmp_path.glob(".back.*.fetching/model.safetensors"))

    get_folder(f"{place}/g", tmp_path / "back", beat)
    assert any(0 < arrived < size for arrived in sizes)


def test_a_folder_counts_only_with_its_manifest(place: str, folder: Path, tmp_path: Path) -> None:
    put_folder(folder, f"{place}/b/step-1")
    put_folder(folder, f"{place}/b/step-2")
    system, path = fsspec.core.url_to_fs(f"{place}/b/step-2/{MANIFEST}")
    system.rm_file(path)
    assert list_folders(f"{place}/b") == ["step-1"]
    with pytest.raises(StoreError, match="no whole folder"):
        get_folder(f"{place}/b/step-2", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_an_upload_that_breaks_off_leaves_nothing_that_counts(
    place: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def break_off() -> None:
        calls.append(1)
        raise StoreError("the line is cut")

    with pytest.raises(StoreError):
        put_folder(folder, f"{place}/c/step-1", break_off)
    assert calls
    assert list_folders(f"{place}/c") == []
    assert list_folders(f"{place}/c", whole=False) == ["step-1"]
    remove_unfinished(f"{place}/c/step-1")
    assert list_folders(f"{place}/c", whole=False) == []
    assert put_folder(folder, f"{place}/c/step-1")
    assert list_folders(f"{place}/c") == ["step-1"]
    remove_unfinished(f"{place}/c/step-1")
    assert not put_folder(folder, f"{place}/c/step-1"), "it is whole and stayed"


def test_who_comes_second_takes_the_folder_of_who_was_faster(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_folder(folder, "memory://mine/race")
    rename = Path.rename

    def rename_too_late(self: Path, target: Path) -> Path:
        target.mkdir()
        (target / "state.json").write_text("of the faster")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_too_late)
    get_folder("memory://mine/race", tmp_path / "back")
    assert (tmp_path / "back" / "state.json").read_text() == "of the faster"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", folder.name]


def test_a_damaged_file_is_found_and_nothing_appears_here(place: str, folder: Path, tmp_path: Path) -> None:
    put_folder(folder, f"{place}/d")
    system, path = fsspec.core.url_to_fs(f"{place}/d/state.json")
    system.pipe_file(path, b"[]")
    with pytest.raises(StoreError, match=r"state\.json: is not what its manifest says"):
        get_folder(f"{place}/d", tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_names_that_lead_elsewhere_are_refused(place: str, folder: Path, tmp_path: Path) -> None:
    put_folder(folder, f"{place}/e")
    system, path = fsspec.core.url_to_fs(f"{place}/e/{MANIFEST}")
    system.pipe_file(path, b'{"../../escaped": {"bytes": 1, "sha256": ""}}')
    with pytest.raises(StoreError, match="no folder of ours"):
        get_folder(f"{place}/e", tmp_path / "back")


def test_removing_leaves_nothing(place: str, folder: Path) -> None:
    put_folder(folder, f"{place}/f/step-1")
    remove_folder_at(f"{place}/f/step-1")
    remove_folder_at(f"{place}/f/step-1")
    assert list_folders(f"{place}/f") == []


def test_what_is_missing_is_named(place: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        get_file(f"{place}/recipe.toml", tmp_path / "recipe.toml")
    assert list_folders(f"{place}/nothing") == []


def test_only_addresses_are_addresses() -> None:
    assert is_address("s3://bucket/folder")
    assert is_address("gs://bucket")
    assert not is_address("/runs/one")
    assert not is_address("runs/one")


def test_an_unknown_kind_of_address_is_a_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="warp"):
        get_folder("warp://x/y", tmp_path / "back")


def test_an_address_has_its_secrets_from_the_environment_and_no_error_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHELON_URL_SECRET", "s3cr3t")
    with pytest.raises(UserError, match="there is no such file") as absent:
        get_file("memory://${ECHELON_URL_SECRET}/absent", tmp_path / "x")
    with pytest.raises(UserError, match="nonsense") as unknown:
        get_file("nonsense://me:s3cr3t@host/x?sig=s3cr3t", tmp_path / "x")
    with pytest.raises(StoreError) as refused:
        get_file("http://me:${ECHELON_URL_SECRET}@127.0.0.1:1/x", tmp_path / "x")
    for caught in (absent, unknown, refused):
        assert "s3cr3t" not in str(caught.value)
    (tmp_path / "file").write_text("content")
    put_file(tmp_path / "file", "memory://${ECHELON_URL_SECRET}/file")
    assert fsspec.filesystem("memory").cat_file("/s3cr3t/file") == b"content"

"""Tokens: read from a file that only its owner reads, told apart by name, limited and expiring."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.serve.access import Token, read_tokens, sha256_of
from echelon.serve.http_server import ListenOptions
from echelon.serve.model_server import ServeOptions, open_access
from tests.serve.conftest import MakeClient, access_with

FILE = f"""
[[token]]
name = "shop"
sha256 = "{sha256_of("token-of-the-shop")}"
requests_per_minute = 90

[[token]]
name = "intern"
token = "token-of-the-intern"
expires = 2026-12-31
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "tokens.toml"
    path.touch(0o600)
    path.write_text(text)
    return path


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_tokens_have_names_limits_and_an_end(tmp_path: Path) -> None:
    shop, intern = read_tokens(write(tmp_path, FILE))
    assert (shop.name, shop.requests_per_minute, shop.expires) == ("shop", 90.0, None)
    assert intern.digest == sha256_of("token-of-the-intern")
    assert not intern.is_expired(datetime(2026, 12, 31, 23, 59, tzinfo=UTC))
    assert intern.is_expired(datetime(2027, 1, 1, tzinfo=UTC))
    at_noon = Token(name="x", sha256="0" * 64, expires=datetime(2026, 12, 31, 12))
    assert at_noon.is_expired(datetime(2026, 12, 31, 12, tzinfo=UTC))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "token: is missing"),
        ("token = []", "token: must have at least 1 item"),
        ("[[token]", "is not valid TOML"),
        ('[[token]]\nname = "a"', "token.0: give either token or sha256"),
        (
            '[[token]]\nname = "a"\ntoken = "short"',
            "token.0.token: must have at least 16 characters",
        ),
        ('[[token]]\nname = "a b"\ntoken = "0123456789abcdef"', "token.0.name: must match pattern"),
        ('[[token]]\nname = "a"\nsha256 = "abc"', "token.0.sha256: must match pattern"),
        (
            '[[token]]\nname = "a"\ntoken = "0123456789abcdef"\nlimit = 3',
            "token.0.limit: there is no such key",
        ),
        (FILE.replace("intern", "shop"), "two entries have the same name"),
        (FILE.replace("token-of-the-intern", "token-of-the-shop"), "two entries have the same token"),
    ],
)
def test_a_file_that_cannot_be_used_is_explained_without_its_tokens(
    text: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        read_tokens(write(tmp_path, text))
    assert says in str(caught.value)
    assert not [secret for secret in ("short", "0123", "token-of-the-") if secret in str(caught.value)]


def test_a_file_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    for mode in (0o604, 0o602):
        path.chmod(mode)
        with pytest.raises(UserError, match="chmod o-rwx"):
            read_tokens(path)
    path.chmod(0o640)
    assert len(read_tokens(path)) == 2
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_tokens(tmp_path / "gone")


def test_each_token_is_known_by_its_name_and_has_its_own_limit(make_client: MakeClient) -> None:
    shop = Token(name="shop", token="token-of-the-shop", requests_per_minute=2)
    free = Token(name="free", token="token-without-limit")
    old = Token(name="old", token="token-of-last-year", expires=datetime(2020, 1, 1))
    client = make_client(access=access_with(shop, free, old))
    statuses = [client.get("/v1/model", headers=bearer("token-of-the-shop")) for _ in range(3)]
    assert [answer.status_code for answer in statuses] == [200, 200, 429]
    assert int(statuses[-1].headers["retry-after"]) in range(1, 32)
    assert client.get("/v1/model", headers=bearer("token-without-limit")).status_code == 200
    expired = client.get("/v1/model", headers=bearer("token-of-last-year"))
    assert (expired.status_code, expired.json()["error"]) == (401, "this token has expired")
    for wrong in ("", "nobody's", "ä" * 100, "\x7f"):
        assert (
            client.get("/v1/model", headers={b"Authorization": f"Bearer {wrong}".encode()}).status_code == 401
        )
    counted = client.get("/metrics", headers=bearer("token-without-limit")).text
    for status, token, count in (("200", "shop", 2), ("429", "shop", 1), ("401", "old", 1), ("401", "", 4)):
        wanted = f'status="{status}",token="{token}"}} {count:.1f}'
        assert wanted in counted


def test_who_needs_a_token() -> None:
    def tokens(host: str, *proxies: str, token: str | None = None) -> tuple[bool, bool]:
        listening = ListenOptions(host, proxies=proxies)
        access, told = open_access(ServeOptions(Path("run"), listening=listening, token=token))
        return access.tokens is not None, told is not None

    assert tokens("127.0.0.1") == (False, False)
    assert tokens("127.0.0.1", token="mine") == (True, True)
    assert tokens("0.0.0.0") == tokens("127.0.0.1", "10.0.0.1") == (True, True)


def test_one_token_or_a_file_of_them(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    access, told = open_access(ServeOptions(Path("run"), listening=ListenOptions("0.0.0.0"), tokens=path))
    assert [token.name for token in access.tokens or ()] == ["shop", "intern"]
    assert told is None
    with pytest.raises(UserError, match="choose one"):
        open_access(ServeOptions(Path("run"), token="x", tokens=path))

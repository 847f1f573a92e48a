"""Secrets in addresses: found, filled in when they are needed, and never shown."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.addresses import fill_in, find_secret, is_web_address, redact_text, redact_url, take_out
from echelon.errors import UserError

HOSTS = st.sampled_from(["data.example", "10.0.0.7:8443", "[2001:db8::1]:80", "localhost"])
PATHS = st.sampled_from(["", "/", "/corpora/news.tsv.gz", "/@scope/a:b/c%20d"])
SECRETS = st.text(string.ascii_letters + string.digits + "+/=%._~-", min_size=12).map(
    lambda text: f"S{text}S"
)
HOSTILE = st.text(min_size=6).map(lambda text: f"S{text}")
"""As people paste them: with slashes, question marks, spaces, quotes, line breaks."""


@given(HOSTS, PATHS, SECRETS, SECRETS)
def test_an_address_is_shown_without_its_secrets(host: str, path: str, password: str, signature: str) -> None:
    login = password.replace("/", "")
    address = f"https://me:{login}@{host}{path}?sig={signature}#{signature}"
    shown = redact_url(address)
    assert shown == f"https://***@{host}{path}?***"
    assert redact_url(shown) == shown
    assert redact_text(f"error: {address}, sorry") == f"error: {shown}, sorry"
    assert find_secret(address) == "the user and password"
    assert find_secret(f"https://{host}{path}?sig={signature}") == "the parameter sig"
    assert find_secret(shown) is None or "***" in shown


@given(HOSTS, PATHS, HOSTILE)
def test_whatever_a_password_or_signature_is_made_of_it_is_hidden(host: str, path: str, secret: str) -> None:
    for address in (f"https://me:{secret}@{host}{path}", f"https://{host}{path}?token={secret}"):
        assert secret not in redact_url(address)
        assert find_secret(address) is not None


@given(st.text())
def test_any_text_can_be_redacted(text: str) -> None:
    assert redact_text(redact_text(text)) == redact_text(text)
    if "://" not in text:
        assert redact_text(text) == text


@pytest.mark.parametrize(
    ("address", "secret"),
    [
        (
            "https://bucket.s3.amazonaws.com/x?X-Amz-Expires=1&X-Amz-Signature=ab",
            "the parameter X-Amz-Expires",
        ),
        ("https://account.blob.core.windows.net/x?sv=2024-01-01&sig=ab%3D", "the parameter sig"),
        ("https://host/x?access_token=abc", "the parameter access_token"),
        ("https://host/x?k=0123456789abcdef0123456789abcdef", "the parameter k"),
        ("https://ghp_abc@host/x", "the user and password"),
        ("sftp://me:word@host/x", "the user and password"),
        ("sftp://me@host/x", None),
        ("s3://bucket/folder", None),
        ("https://host/get?file=news-commentary-v18.de-en.tsv.gz&download=1", None),
        ("https://host/get?author=me&keyword=news&monkey=yes&design=2", None),
        ("https://${ECHELON_URL_A}@host/x?${ECHELON_URL_B}", None),
        (
            "https://${ECHELON_URL_A}:${ECHELON_URL_B}@host/x?sig=${ECHELON_URL_C}&token=${ECHELON_URL_D}",
            None,
        ),
        ("https://host/x?sig=abc${ECHELON_URL_C}", "the parameter sig"),
        ("https://host/x?sig=${OTHER}", "the parameter sig"),
        ("corpora/train.en", None),
        ("key = value?token=x", None),
    ],
)
def test_what_looks_like_a_secret(address: str, secret: str | None) -> None:
    assert find_secret(address) == secret


def test_a_reference_is_filled_in_and_taken_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_URL_LOGIN", "me:p%40ss")
    address = "https://${ECHELON_URL_LOGIN}@host/x"
    assert fill_in(address) == "https://me:p%40ss@host/x"
    name = "${ECHELON_URL_LOGIN}"
    assert take_out("cannot log in as me:p@ss or me:p%40ss", address) == f"cannot log in as {name} or {name}"
    with pytest.raises(UserError, match=r"\$\{HOME\} is not filled in"):
        fill_in("https://host/${HOME}")


def test_which_texts_are_addresses_on_the_web() -> None:
    web = ["http://a", "https://a.example/b"]
    assert [
        text for text in (*web, "s3://a/b", "https:///b", "http://[", "a/b", "") if is_web_address(text)
    ] == web

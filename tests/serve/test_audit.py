"""The audit log: who asked for what and when, never what was said; a full disk stops nobody."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.serve.access import Token
from echelon.serve.audit import AuditLog, Handled
from tests.serve.conftest import MakeClient, access_with


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_requests_are_logged_by_name_without_text_or_token(make_client: MakeClient, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    shop = Token(name="shop", token="token-of-the-shop")
    client = make_client(access=access_with(shop), audit=AuditLog(path))
    secret = {"Authorization": "Bearer token-of-the-shop"}
    answer = client.post("/v1/translate?private=query", json={"text": "one two"}, headers=secret)
    client.post("/v1/translate", json={"text": "one two"}, headers={"Authorization": "Bearer guessed-token"})
    client.request("MADEUP", "/" + "%0a%1b[31m" * 100)
    client.get("/health")
    client.get("/ready")
    first, second, third = read(path)
    assert first.keys() == {
        *("time", "token", "client", "method", "path", "status", "received_bytes", "sent_bytes", "seconds")
    }
    assert (first["token"], first["status"], first["path"]) == ("shop", 200, "/v1/translate")
    assert (first["method"], first["client"]) == ("POST", "testclient")
    assert first["received_bytes"] == len(b'{"text":"one two"}')
    assert first["sent_bytes"] == len(answer.content)
    assert (second["token"], second["status"]) == (None, 401)
    assert (third["method"], len(str(third["path"]))) == ("MADEUP", 200)
    text = path.read_text()
    assert not [said for said in ("one", "private", "-token", "token-of", "\x1b") if said in text]
    assert path.stat().st_mode & 0o007 == 0


def test_a_log_that_was_moved_away_goes_on_in_a_new_file(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.jsonl")
    audit.write(Handled("GET", "/1", ""))
    audit.path.rename(tmp_path / "audit.1")
    audit.write(Handled("GET", "/2", ""))
    audit.reopen()
    audit.write(Handled("GET", "/3", ""))
    assert [entry["path"] for entry in read(tmp_path / "audit.1")] == ["/1", "/2"]
    assert [entry["path"] for entry in read(audit.path)] == ["/3"]
    audit.close()


def test_a_full_disk_stops_nobody(make_client: MakeClient, caplog: pytest.LogCaptureFixture) -> None:
    client = make_client(audit=AuditLog(Path("/dev/full")))
    assert [client.get("/v1/model").status_code for _ in range(3)] == [200] * 3
    assert "echelon_audit_lost 3.0" in client.get("/metrics").text
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text


def test_half_a_line_is_ended_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit, whole = AuditLog(tmp_path / "audit.jsonl"), os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[:10]))
    audit.write(Handled("GET", "/1", ""))
    monkeypatch.setattr(os, "write", whole)
    audit.write(Handled("GET", "/2", ""))
    cut, last = audit.path.read_text().splitlines()
    assert (len(cut), json.loads(last)["path"], audit.num_lost) == (10, "/2", 1)
    audit.close()


def test_a_log_that_cannot_be_written_is_a_clear_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--audit-log .* cannot be written: Is a directory"):
        AuditLog(tmp_path)

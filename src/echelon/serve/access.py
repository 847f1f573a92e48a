"""Access control of a server: tokens with names and rate limits, from a file or the command line."""

from __future__ import annotations

import hashlib
import hmac
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, ValidationError, model_validator
from starlette.requests import HTTPConnection

from echelon.errors import UserError
from echelon.runfolder import read_private
from echelon.validation import plain_message


class Token(BaseModel):
    """An entry of the token file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """Its name in metrics and in the audit log."""
    token: Annotated[str, Field(min_length=16)] | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the token, which then nobody can read from the file."""
    requests_per_minute: PositiveFloat | None = None
    expires: datetime | date | None = None
    """A date includes the whole day; times are UTC unless they name a zone."""

    @model_validator(mode="after")
    def _has_one_secret(self) -> Token:
        if (self.token is None) == (self.sha256 is None):
            raise ValueError("give either token or sha256")
        if self.digest == sha256_of(""):
            raise ValueError("this is the digest of an empty token")
        return self

    @property
    def digest(self) -> str:
        return self.sha256 or sha256_of(self.token or "")

    def is_expired(self, now: datetime) -> bool:
        match self.expires:
            case None:
                return False
            case datetime() as moment:
                return now >= (moment if moment.tzinfo else moment.replace(tzinfo=UTC))
            case day:
                return now >= datetime.combine(day + timedelta(days=1), time(), UTC)


class _TokensFile(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    token: Annotated[list[Token], Field(min_length=1)]


def bearer_token(connection: HTTPConnection) -> str:
    """The token that programs send: `Authorization: Bearer TOKEN`."""
    return connection.headers.get("authorization", "").removeprefix("Bearer ").strip()


@dataclass
class Access:
    """Who may request what. Only `tokens` changes, on reload."""

    tokens: tuple[Token, ...] | None = None
    """None: nobody needs one."""
    hosts: frozenset[str] | None = None
    """Names by which the server may be asked for; None: any. Keeps other sites' scripts off a loopback server."""
    needs_token: Callable[[str], bool] = lambda _path: True
    """Which paths are only for those who have a token."""
    find_token: Callable[[HTTPConnection], str] = bearer_token
    advice: str = "a token is needed: Authorization: Bearer TOKEN"
    """The message for requests without a token."""

    def identify(self, connection: HTTPConnection) -> Token | None:
        """The token that a request has, even if it has expired; None for none or a wrong one."""
        given, found = sha256_of(self.find_token(connection)), None
        for token in self.tokens or ():
            if hmac.compare_digest(given, token.digest):
                found = token
        return found


def sha256_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def read_tokens(path: Path) -> tuple[Token, ...]:
    """The tokens of a file; UserError, without any of its content, if it cannot be used."""
    text = read_private(path)
    try:
        tokens = tuple(_TokensFile.model_validate(tomllib.loads(text)).token)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from None
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {plain_message(each)}" for each in error.errors()]
        raise UserError(f"{path}: {'; '.join(problems)}") from None
    for values, what in (
        (Counter(each.name for each in tokens), "name"),
        (Counter(each.digest for each in tokens), "token"),
    ):
        if values.most_common(1)[0][1] > 1:
            raise UserError(f"{path}: two entries have the same {what}")
    return tokens

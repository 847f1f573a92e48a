from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from fastapi.testclient import TestClient

from echelon import Translator
from echelon.runfolder import RunFolder
from echelon.serve.access import Access, Token
from echelon.serve.app import build_app, needs_token
from echelon.serve.limits import Limits
from echelon.serve.state import ServerState

MakeClient = Callable[..., TestClient]


def access_with(*tokens: Token) -> Access:
    return Access(tokens, needs_token=needs_token)


@pytest.fixture(scope="session")
def run(trained_run: RunFolder) -> RunFolder:
    return trained_run


@pytest.fixture(scope="session")
def translator(run: RunFolder) -> Translator:
    return Translator.load(run.path)


@pytest.fixture
def make_client(translator: Translator) -> Iterator[MakeClient]:
    """Clients of applications with the limits given; their batchers are stopped at the end."""
    with ExitStack() as stack:

        def make(limits: Limits | None = None, **state: Any) -> TestClient:
            app = build_app(
                ServerState(
                    state.pop("translator", translator), "toy", "float32", limits or Limits(), **state
                )
            )
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield make


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    return make_client()

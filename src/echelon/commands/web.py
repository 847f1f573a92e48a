"""`dashboard` and `watch --web`: the page of some runs, live, from a small server in this process.

On loopback every user of this machine may look, but only under the server's own name, so that no other site's page can;
on any other address a token is asked for, which the printed address carries and a cookie then keeps.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware

from echelon.dashboard.catalogue import RunCatalogue
from echelon.dashboard.endpoints import DashboardPages, find_plotly
from echelon.launch.machine import find_interfaces
from echelon.serve.access import Access, Token, sha256_of
from echelon.serve.guard import Guard
from echelon.serve.http_server import Entrance, HttpServer, ListenOptions
from echelon.serve.limits import ByteBudget, Limits

_FINISH_S = 5
_ADVICE = "the token is missing or wrong; open the address that echelon has printed"
_LIMITS = Limits(body_bytes=32_768, client_connections=64)


@contextlib.contextmanager
def open_page(
    folders: Sequence[Path], host: str, port: int, hourly: float | None = None
) -> Iterator[list[str]]:
    """Serve the page of the runs below `folders` as long as this lasts; the addresses at which it opens, with the token
    if it has one."""
    listening = ListenOptions(host, port, limits=_LIMITS)
    script = find_plotly()
    entrance = Entrance(listening)
    token = None if listening.is_private else secrets.token_urlsafe(24)
    # Browsers send cookies to all ports of a host, and another page of ours may be there.
    cookie = f"echelon-token-{entrance.port}"
    pages = DashboardPages(RunCatalogue(folders, hourly), script, token, cookie, lambda: server.should_exit)
    tokens = (Token(name="page", sha256=sha256_of(token)),) if token else None
    access = Access(tokens, listening.own_names, find_token=pages.find_token, advice=_ADVICE)
    guard = Middleware(Guard, access=access, limits=_LIMITS, budget=ByteBudget(_LIMITS))
    server = HttpServer(Starlette(routes=pages.routes(), middleware=[guard]), entrance, _FINISH_S)
    thread = threading.Thread(target=server.run_here, name="page", daemon=True)
    thread.start()
    query = f"?token={token}" if token else ""
    try:
        yield [f"{entrance.address_of(name)}{query}" for name in _names(host)]
    finally:
        server.should_exit = True
        thread.join()
        pages.close()


def _names(host: str) -> list[str]:
    """The names under which an address is reached: this machine's name and addresses if it stands for all of them."""
    try:
        place = ipaddress.ip_address(host)
    except ValueError:
        return [host]
    if not place.is_unspecified:
        return [host]
    reached = [address for card in find_interfaces() if not card.is_loopback for address in card.addresses]
    return [socket.gethostname(), *(each for each in reached if place.version == 6 or ":" not in each)]

"""No client uses up the server's connections."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
from collections.abc import Sequence

import pytest

from echelon.serve.limits import Limits
from echelon.serve.listener import FairListener, IPNetwork, client_of, is_within


async def count_served(most: int, proxies: Sequence[IPNetwork]) -> list[bytes]:
    """What each of six connections that stay open hears; then of another, when they are gone."""
    listener = FairListener(socket.AF_INET, Limits(client_connections=most), proxies)
    listener.bind(("127.0.0.1", 0))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, sock=listener)
    async with server:
        place = server.sockets[0].getsockname()
        connections = [await asyncio.open_connection(*place) for _ in range(6)]
        heard = [await hear(reader) for reader, _ in connections]
        await close_all(connections, listener)
        connections = [await asyncio.open_connection(*place)]
        heard.append(await hear(connections[0][0]))
        await close_all(connections, listener)
    return heard


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def close_all(connections: Sequence[Connection], listener: FairListener) -> None:
    for _, writer in connections:
        writer.close()
    while listener._clients:
        await asyncio.sleep(0.01)


async def hear(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(5), 20)
    except ConnectionResetError:
        return b""


def test_a_client_has_so_many_connections_and_no_more() -> None:
    assert asyncio.run(count_served(4, [])) == [b"hello"] * 4 + [b""] * 2 + [b"hello"]


def test_a_proxy_has_as_many_as_it_likes() -> None:
    assert asyncio.run(count_served(4, [ipaddress.ip_network("127.0.0.0/8")])) == [b"hello"] * 7


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        ("10.0.0.7", True),
        ("::ffff:10.0.0.7", True),
        ("10.0.1.7", False),
        ("fe80::1%eth0", True),
        ("unix", False),
    ],
)
def test_which_addresses_are_a_proxy_s(client: str, expected: bool) -> None:
    networks = [ipaddress.ip_network("10.0.0.0/24"), ipaddress.ip_network("fe80::/10")]
    assert is_within(client, networks) is expected


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_a_client_is_not_many_by_choosing_addresses_of_its_network(address: str, client: str) -> None:
    assert client_of(address) == client


@pytest.mark.skipif(sys.platform != "linux", reason="other systems wait for as long as they like")
def test_a_client_that_takes_nothing_of_its_answer_is_not_waited_for() -> None:
    assert isinstance(asyncio.run(send_to_nobody(Limits(send_s=0.5))), OSError)


async def send_to_nobody(limits: Limits) -> Exception | None:
    """How a connection ends whose client does not read what it is sent."""
    listener = FairListener(socket.AF_INET, limits, [])
    listener.bind(("127.0.0.1", 0))
    ended = asyncio.get_running_loop().create_future()

    class Sending(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.WriteTransport)
            transport.write(bytes(30_000_000))

        def connection_lost(self, error: Exception | None) -> None:
            ended.set_result(error)

    server = await asyncio.get_running_loop().create_server(Sending, sock=listener)
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()):
            error: Exception | None = await ended
            return error

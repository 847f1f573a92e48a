"""Training over WireGuard, as docs/hosts.md sets it up: between the hosts nothing but its UDP is seen."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echelon.lab.lab import Lab
from tests.integration.runs import Undisturbed, assert_same_end, write_toy_recipe
from tests.lab import capture
from tests.lab.conftest import MakeLab
from tests.lab.on_hosts import disk_of, leave_running
from tests.lab.training import SETTINGS, Training, settings_for
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("wg-quick") or not shutil.which("wireguard-go"), reason="WireGuard is not installed"
    ),
]
PORT = 51820


@pytest.fixture(scope="module")
def two(make_lab: MakeLab) -> Lab:
    return make_lab(hosts=2)


@pytest.fixture(scope="module", autouse=True)
def environment(two: Lab) -> Iterator[None]:
    with settings_for(two):
        yield


def keys() -> tuple[str, str]:
    """A private key, and its public one."""
    private = subprocess.run(["wg", "genkey"], capture_output=True, text=True, check=True).stdout
    public = subprocess.run(["wg", "pubkey"], input=private, capture_output=True, text=True, check=True)
    return private.strip(), public.stdout.strip()


@pytest.fixture(scope="module")
def addresses(two: Lab) -> dict[str, str]:
    return {host: two.run(host, ["hostname", "-I"]).stdout.split()[0] for host in two.hosts}


@pytest.fixture(scope="module")
def wireguard(two: Lab, addresses: dict[str, str]) -> Iterator[None]:
    """wg0 on both hosts, by wg-quick: in the kernel, or with wireguard-go where that has none."""
    (ours, our_key), (theirs, their_key) = keys(), keys()
    files = two.disk / "wg0.conf"
    for number, (private, peer, other) in enumerate(
        [(ours, their_key, "host2"), (theirs, our_key, "host1")], 1
    ):
        text = (
            f"[Interface]\nPrivateKey = {private}\nAddress = 10.88.0.{number}/24\nListenPort = {PORT}\n\n"
            f"[Peer]\nPublicKey = {peer}\nAllowedIPs = 10.88.0.{3 - number}/32\n"
            f"Endpoint = {addresses[other]}:{PORT}\n"
        )
        file = disk_of(two, f"host{number}") / "wg0.conf"
        file.write_text(text)
        file.chmod(0o600)
    # wireguard-go stays, with the output that it was started with: ssh would wait for its end.
    quick = (
        'wg-quick "$0" "$1" > /tmp/wg-quick.log 2>&1 < /dev/null || { cat /tmp/wg-quick.log >&2; exit 1; }'
    )
    for host in two.hosts:
        two.run(host, ["sh", "-c", quick, "up", str(files)])
    yield
    for host in two.hosts:
        two.run(host, ["sh", "-c", quick, "down", str(files)])


@pytest.fixture
def seen(two: Lab, addresses: dict[str, str]) -> Iterator[Callable[[], dict[str, int]]]:
    """Ends the capture on host1, and tells the bytes between the hosts by protocol and ports."""
    there, here = two.disk / "seen.json", disk_of(two, "host1") / "seen.json"
    leave_running(two, "host1", Path(capture.__file__).read_text().replace('OUTPUT")', f'{there}")'))
    wait_until(here.exists)

    def end() -> dict[str, int]:
        here.with_suffix(".over").touch()
        wait_until(lambda: json.loads(here.read_text())["over"])
        pair = " ".join(sorted(addresses.values()))
        found = json.loads(here.read_text())
        assert found["dropped"] == 0, "every packet was seen"
        return {key.partition(" | ")[2]: size for key, size in found.items() if key.startswith(f"{pair} |")}

    yield end
    here.with_suffix(".over").touch()


@pytest.mark.usefixtures("wireguard")
def test_between_the_hosts_there_is_wireguard_and_nothing_else(
    two: Lab, seen: Callable[[], dict[str, int]], train_here: Undisturbed
) -> None:
    recipe = write_toy_recipe(two.shared / "toy")
    training = Training(two, recipe, two.shared, "--interface", "wg0", "--tls")
    training.finish()
    assert_same_end(train_here(*SETTINGS, workers=2), training.run)
    found = seen()
    print(f"\n{found}")
    assert set(found) == {f"17 {PORT} {PORT}"}, "UDP of WireGuard"
    assert found[f"17 {PORT} {PORT}"] > 10**6, "the gradients went this way"

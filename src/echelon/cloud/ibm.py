"""IBM Cloud's virtual servers: the exact commands that make and cancel them; a pure function."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from echelon.cloud.cluster_spec import ClusterName, Word
from echelon.cloud.inventory import host_name
from echelon.untrusted import require_host


class IbmSpec(BaseModel):
    """The virtual servers to make."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClusterName
    provider: Literal["ibm"] = "ibm"
    count: Annotated[int, Field(ge=1, le=64)] = 2
    flavor: Word
    """E.g. AC2_16X120X100: 2 V100, 16 cores, 120 GB of memory."""
    datacenter: Word = "dal10"
    domain: Annotated[str, AfterValidator(require_host)]
    image: int
    key: int
    """The number of an SSH key that the account has."""
    network_mbit: Literal[10, 100, 1000] = 1000
    private_vlan: int | None = None


def render_commands(spec: IbmSpec) -> str:
    """A shell script that makes, lists and cancels them."""
    make = [_create(spec, number) for number in range(spec.count)]
    cancel = [_cancel(spec, number) for number in range(spec.count)]
    hosts = ",".join(f"root@{host_name(spec.name, number)}.{spec.domain}" for number in range(spec.count))
    return "\n".join(
        [
            "# Make the servers; each costs from now on.",
            *make,
            "# Wait until they run, and see their addresses.",
            shlex.join(["ibmcloud", "sl", "vs", "list", "--domain", spec.domain]),
            "# Put their names into ~/.ssh/config, then:",
            f"#   echelon train RECIPE --hosts {hosts} --install --sync",
            "# Cancel them; until then they cost.",
            *cancel,
            "",
        ]
    )


def _create(spec: IbmSpec, number: int) -> str:
    options = {
        "hostname": host_name(spec.name, number),
        "domain": spec.domain,
        "datacenter": spec.datacenter,
        "flavor": spec.flavor,
        "image": str(spec.image),
        "billing": "hourly",
        "network": str(spec.network_mbit),
        "key": str(spec.key),
        **({"vlan-private": str(spec.private_vlan)} if spec.private_vlan else {}),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return shlex.join(["ibmcloud", "sl", "vs", "create", *words, "--san", "--force"])


def _cancel(spec: IbmSpec, number: int) -> str:
    find = [
        "ibmcloud",
        "sl",
        "vs",
        "list",
        "--hostname",
        host_name(spec.name, number),
        "--domain",
        spec.domain,
    ]
    ids = f"$({shlex.join([*find, '--column', 'id'])} | grep -o '[0-9][0-9]*')"
    return f'for id in {ids}; do ibmcloud sl vs cancel "$id" --force; done'

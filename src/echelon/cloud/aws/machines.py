"""The machines of a cluster."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from echelon.cloud.aws.calls import gone_is_fine
from echelon.cloud.aws.context import GONE_S, HOST_TAG, READY_S, Context
from echelon.cloud.aws.files import FileSystem
from echelon.cloud.aws.network import HostsGroup, find_groups, uses_placement
from echelon.cloud.inventory import host_name
from echelon.cloud.journal import HostRecord, PartRecord
from echelon.cloud.keys import make_key
from echelon.cloud.parts import wait_until
from echelon.cloud.userdata import SAVING_S, Birth, render_user_data
from echelon.errors import CloudError

_ALIVE = ("pending", "running", "shutting-down", "stopping", "stopped")


class Machines:
    """All machines of a cluster: made together or not at all."""

    name = "machines"

    def __init__(self, context: Context) -> None:
        self._context = context

    def _instances(self) -> list[dict[str, Any]]:
        """Those that are not gone, in the order of their start."""
        filters = [
            *self._context.tag_filter("machine"),
            {"Name": "instance-state-name", "Values": list(_ALIVE)},
        ]
        reservations = self._context.clients.pages(
            "ec2", "describe_instances", "Reservations", Filters=filters
        )
        instances = [instance for reservation in reservations for instance in reservation["Instances"]]
        return sorted(
            instances, key=lambda i: (str(i["LaunchTime"]), i.get("AmiLaunchIndex", 0), i["InstanceId"])
        )

    def find(self) -> list[str]:
        return [str(instance["InstanceId"]) for instance in self._instances()]

    def make(self) -> list[str]:
        usable = [i for i in self._instances() if i["State"]["Name"] in ("pending", "running")]
        missing = self._context.cluster.spec.count - len(usable)
        if missing > 0:
            made = self._run(missing)
            usable += sorted(made, key=lambda instance: int(instance.get("AmiLaunchIndex", 0)))
        ids = [str(instance["InstanceId"]) for instance in usable]
        # Before they have started: AWS refuses the same order again once a machine of it has ended.
        self._context.journal.note(self.name, PartRecord("making", tuple(ids)))
        self._number(usable)
        self.wait_for_machines(range(self._context.cluster.spec.count))
        return ids

    def _run(self, count: int, address: str = "") -> list[dict[str, Any]]:
        """Start machines; waits for a role that AWS has made but does not know everywhere yet.

        CloudError where their time is over: a timer in the past ends no machine.
        """
        if time.time() > self._context.cluster.deadline - SAVING_S:
            raise CloudError(f"the time of {self._context.name} is over: no machine is started")
        order, started = self._order(count, address), list[dict[str, Any]]()

        def have_begun() -> bool:
            try:
                started.extend(self._context.ec2("run_instances", **order)["Instances"])
            except CloudError as error:
                if "IAM Instance Profile" in str(error) and error.code == "InvalidParameterValue":
                    return False
                raise
            return True

        wait_until(have_begun, "making the role known", READY_S)
        return started

    def _number(self, instances: list[dict[str, Any]]) -> None:
        """Give machines that have none the numbers that are free; CloudError where none is."""
        taken = {number for instance in instances if (number := number_of(instance)) is not None}
        free = [number for number in range(self._context.cluster.spec.count) if number not in taken]
        unnumbered = [instance for instance in instances if number_of(instance) is None]
        if len(unnumbered) > len(free):
            raise CloudError(
                f"{self._context.name} has more machines than hosts; `echelon cloud down {self._context.name}` ends "
                "them all"
            )
        for instance, number in zip(unnumbered, free, strict=False):
            self._tag(instance, number)

    def _tag(self, instance: dict[str, Any], number: int) -> None:
        """Have a machine known as host `number`."""
        tags = {HOST_TAG: str(number), "Name": host_name(self._context.name, number)}
        self._context.ec2(
            "create_tags", Resources=[instance["InstanceId"]], Tags=self._context.tags("machine", **tags)
        )

    def _order(self, count: int, address: str) -> dict[str, Any]:
        """What RunInstances is asked for: all machines or none; the same order twice starts them once."""
        cluster, spec = self._context.cluster, self._context.cluster.spec
        before = cluster.parts["machines"].ids if "machines" in cluster.parts else ()
        token = hashlib.sha256("".join([cluster.token, str(cluster.deadline), *before]).encode()).hexdigest()
        disk = {
            "VolumeSize": spec.disk_gb,
            "VolumeType": "gp3",
            "Encrypted": True,
            "DeleteOnTermination": True,
        }
        interface = {
            "DeviceIndex": 0,
            "SubnetId": cluster.subnet,
            "Groups": find_groups(self._context, HostsGroup.part),
            "AssociatePublicIpAddress": True,
            "DeleteOnTermination": True,
        }
        spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}
        return {
            "ClientToken": token,
            "ImageId": cluster.image,
            "InstanceType": spec.type,
            "MinCount": count,
            "MaxCount": count,
            "KeyName": spec.key_name or self._context.resource_name,
            "UserData": self._user_data(),
            "NetworkInterfaces": [{**interface, **({"PrivateIpAddress": address} if address else {})}],
            "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": disk}],
            "MetadataOptions": {
                "HttpTokens": "required",
                "HttpEndpoint": "enabled",
                "HttpPutResponseHopLimit": 1,
            },
            "InstanceInitiatedShutdownBehavior": "terminate",  # so that the timer on the machine ends the bill
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": self._context.tags("machine")}
                for kind in ("instance", "volume")
            ],
            **({"Placement": {"GroupName": self._context.resource_name}} if uses_placement(spec) else {}),
            **({"IamInstanceProfile": {"Name": self._context.resource_name}} if spec.bucket else {}),
            **({"InstanceMarketOptions": spot} if spec.spot else {}),
        }

    def _user_data(self) -> str:
        cluster, journal = self._context.cluster, self._context.journal
        public = make_key(journal.host_key, self._context.name)
        birth = Birth(
            user=cluster.spec.user,
            host_key=journal.host_key.read_text(),
            host_key_public=public,
            deadline=cluster.deadline,
            is_spot=cluster.spec.spot,
            needs_docker=cluster.spec.container is not None,
        )
        if cluster.spec.shared:
            server = f"{FileSystem(self._context).find()[0]}.efs.{self._context.clients.region}.amazonaws.com"
            birth = replace(birth, mount=cluster.spec.mount, file_server=server)
        return render_user_data(birth)

    def hosts(self) -> list[HostRecord]:
        """The machines as AWS sees them now, by their numbers."""
        records = [
            HostRecord(
                number,
                str(instance["InstanceId"]),
                str(instance.get("PrivateIpAddress") or ""),
                str(instance.get("PublicIpAddress") or ""),
                str(instance["State"]["Name"]),
            )
            for instance in self._instances()
            if (number := number_of(instance)) is not None
        ]
        return sorted(records, key=lambda record: record.number)

    def wait_for_machines(self, numbers: Collection[int]) -> None:
        """Until those with `numbers` have started; CloudError where one has ended instead."""

        def have_started() -> bool:
            hosts = [host for host in self.hosts() if host.state in ("pending", "running")]
            hosts = [host for host in hosts if host.number in numbers]
            if len(hosts) < len(numbers):
                raise CloudError(
                    "a machine has ended while it was starting; AWS may have none left there: try another region, type "
                    "or subnet"
                )
            return all(host.state == "running" and host.public_address for host in hosts)

        wait_until(have_started, "starting the machines", READY_S)

    def replace(self, lost: HostRecord) -> None:
        """Start a machine in the place of one that is gone, at the same address, so that the others know it.

        Where another launcher has done so already, there is nothing to start.
        """

        def is_gone() -> bool:
            return all(host.id != lost.id for host in self.hosts())

        wait_until(is_gone, f"the end of {lost.id}", GONE_S)
        numbered = [instance for instance in self._instances() if number_of(instance) is not None]
        if all(number_of(instance) != lost.number for instance in numbered):
            [made] = self._run(1, lost.private_address)
            self._tag(made, lost.number)
            ids = tuple(str(instance["InstanceId"]) for instance in [*numbered, made])
            self._context.journal.note(self.name, PartRecord("made", ids))
        self.wait_for_machines([lost.number])

    def remove(self, id_: str) -> None:
        def is_gone() -> bool:
            reservations = self._context.ec2("describe_instances", InstanceIds=[id_])["Reservations"]
            states = [i["State"]["Name"] for reservation in reservations for i in reservation["Instances"]]
            return all(state == "terminated" for state in states)

        with gone_is_fine():
            if not is_gone():
                # All at once: each costs until it has ended.
                self._context.ec2("terminate_instances", InstanceIds=list({id_, *self.find()}))
                wait_until(is_gone, f"ending {id_}", GONE_S)


def number_of(instance: dict[str, Any]) -> int | None:
    """Which host of its cluster a machine is."""
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    text = tags.get(HOST_TAG, "")
    return int(text) if text.isdecimal() else None

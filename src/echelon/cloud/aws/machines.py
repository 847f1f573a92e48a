"""The machines of a cluster."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from echelon.cloud.aws.calls import NO_CAPACITY, OVER_QUOTA
from echelon.cloud.aws.context import ASK_AGAIN_S, CONSISTENT_S, GONE_S, HOST_TAG, MACHINES, READY_S, Context
from echelon.cloud.aws.groups import HostsGroup, uses_placement
from echelon.cloud.aws.image import find_root_disk
from echelon.cloud.aws.quotas import format_request
from echelon.cloud.aws.shared_files import MountTarget
from echelon.cloud.inventory import host_name
from echelon.cloud.journal import HostRecord, PartRecord
from echelon.cloud.ssh_keys import make_key
from echelon.cloud.userdata import SAVING_S, Birth, render_user_data
from echelon.errors import CloudError

_ALIVE = ("pending", "running", "shutting-down", "stopping", "stopped")
_USABLE = ("pending", "running")
_JUDGED = (*NO_CAPACITY, *OVER_QUOTA, "SpotMaxPriceTooLow")
"""What AWS answers to an order that it has looked at as a whole, and has not carried out before."""

_CARRIED_OUT = ("IdempotentInstanceTerminated", "IdempotentParameterMismatch")
"""What AWS answers to an order that it has carried out before, but cannot answer with those machines."""


class Machines:
    """All machines of a cluster, ordered together: AWS starts all missing ones, or none.

    Which machine is which host is written down, by its identifier; the tags are for people, and for `find` after the
    journal was lost.
    """

    name = MACHINES

    def __init__(self, context: Context) -> None:
        self._context = context

    def find(self) -> list[str]:
        while True:
            record = self._context.record(self.name) or PartRecord()
            found = {*self._list(), *self._describe(record.ids)}
            are_all_known = len(found - {*record.ids}) >= len(record.numbers)
            if are_all_known or self._context.is_settled(self.name):
                return sorted(found)
            self._context.clients.clock.sleep(ASK_AGAIN_S)

    def _list(self) -> list[str]:
        filters = [
            *self._context.tag_filter("machine"),
            {"Name": "instance-state-name", "Values": list(_ALIVE)},
        ]
        return [str(instance["InstanceId"]) for instance in self._ask(filters)]

    def _ask(self, filters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        pages = self._context.clients.pages
        reservations = pages("ec2", "describe_instances", "Reservations", Filters=filters)
        return [instance for reservation in reservations for instance in reservation["Instances"]]

    def _describe(self, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The machines that still exist; one that AWS does not know yet is asked for until AWS must know it."""
        wanted = {id_ for id_ in ids if id_}
        while wanted:
            # A filter, as AWS forgets ended machines after an hour, and refuses their identifiers then.
            answer = self._ask([{"Name": "instance-id", "Values": sorted(wanted)}])
            found = {str(instance["InstanceId"]): instance for instance in answer}
            if wanted <= found.keys() or self._context.is_settled(self.name):
                return {id_: each for id_, each in found.items() if each["State"]["Name"] in _ALIVE}
            self._context.clients.clock.sleep(ASK_AGAIN_S)
        return {}

    def make(self) -> None:
        count = self._context.cluster.spec.count
        record = self._context.record(self.name) or PartRecord()
        if record.order:
            record = self._send(record, is_new=False)
        alive = self._describe(record.ids)
        usable = {id_: each for id_, each in alive.items() if each["State"]["Name"] in _USABLE}
        ids = (*record.ids, *[""] * count)[:count]
        missing = tuple(number for number, id_ in enumerate(ids) if id_ not in usable)
        if missing:
            record = self._order(ids, missing)
        for number, id_ in enumerate(record.ids):
            if {"Key": HOST_TAG, "Value": str(number)} not in usable.get(id_, {}).get("Tags", []):
                self._tag(id_, number)
        self.wait_for_machines(range(count))

    def _order(self, ids: tuple[str, ...], numbers: tuple[int, ...], address: str = "") -> PartRecord:
        """Order machines for the hosts with `numbers`; the order is recorded first."""
        token, now = secrets.token_hex(16), self._context.clients.clock.now()
        record = PartRecord(ids, now, order=token, numbers=numbers, address=address)
        self._context.journal.note(self.name, record)
        return self._send(record, is_new=True)

    def _send(self, record: PartRecord, *, is_new: bool) -> PartRecord:
        """Send an order, or repeat it: its token makes AWS start the machines only once. Return their record."""
        journal, now = self._context.journal, self._context.clients.clock.now
        try:
            started = self._run(record)
        except KeyboardInterrupt:
            journal.note(self.name, replace(record, since=now()))
            raise
        except CloudError as error:
            record = replace(record, since=now())  # AWS may have been throttled until now
            journal.note(self.name, record)
            done = _without_order(record)
            if error.code in _CARRIED_OUT:
                self._end_order(record)
                journal.note(self.name, done)
                return done
            if error.code in _JUDGED or (is_new and not error.may_be_done):
                journal.note(self.name, done)
            raise
        started.sort(key=lambda instance: int(instance.get("AmiLaunchIndex", 0)))
        new = dict(zip(record.numbers, (str(instance["InstanceId"]) for instance in started), strict=True))
        done = PartRecord(tuple(new.get(number, id_) for number, id_ in enumerate(record.ids)), now())
        journal.note(self.name, done)
        return done

    def _end_order(self, record: PartRecord) -> None:
        """End the rest of an order after one of its machines has ended: AWS does not say which they are."""
        clock = self._context.clients.clock
        clock.sleep(max(0.0, record.since + CONSISTENT_S - clock.now()))
        for id_ in {*self._list()} - {*record.ids}:
            self.remove(id_)

    def _run(self, record: PartRecord) -> list[dict[str, Any]]:
        """Start machines; waits for a role that AWS has made but does not know everywhere yet.

        CloudError if their time is over: a timer in the past ends no machine.
        """
        if time.time() > self._context.cluster.deadline - SAVING_S:
            raise CloudError(f"the time of {self._context.name} is over: no machine is started")
        order, started = self._render_order(record), list[dict[str, Any]]()

        def have_begun() -> bool:
            try:
                started.extend(self._context.ec2("run_instances", **order)["Instances"])
            except CloudError as error:
                if error.code in OVER_QUOTA:
                    spec, clients = self._context.cluster.spec, self._context.clients
                    raise CloudError(
                        f"{error}\n{format_request(clients, spec, len(record.numbers))}", error.code
                    ) from None
                if "IAM Instance Profile" in str(error) and error.code == "InvalidParameterValue":
                    return False
                raise
            return True

        self._context.clients.wait_until(have_begun, "making the role known", READY_S)
        return started

    def _tag(self, id_: str, number: int) -> None:
        """Tag a machine with its host's name, for people."""
        tags = {HOST_TAG: str(number), "Name": host_name(self._context.name, number)}
        self._context.ec2("create_tags", Resources=[id_], Tags=self._context.tags("machine", **tags))

    def _render_order(self, record: PartRecord) -> dict[str, Any]:
        """The request for RunInstances: all machines or none; the same order twice starts them once."""
        cluster, spec = self._context.cluster, self._context.cluster.spec
        disk = {
            "VolumeSize": spec.disk_gb,
            "VolumeType": "gp3",
            "Encrypted": True,
            "DeleteOnTermination": True,
        }
        interface = {
            "DeviceIndex": 0,
            "SubnetId": cluster.subnet,
            "Groups": [self._context.id_of(HostsGroup.name)],
            "AssociatePublicIpAddress": not spec.is_private,
            "DeleteOnTermination": True,
            **({"PrivateIpAddress": record.address} if record.address else {}),
        }
        price = {"MaxPrice": f"{cluster.max_price:.4f}"} if cluster.max_price else {}
        spot = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time", **price}}
        root = find_root_disk(self._context.clients, cluster.image)
        return {
            "ClientToken": record.order,
            "ImageId": cluster.image,
            "InstanceType": spec.type,
            "MinCount": len(record.numbers),
            "MaxCount": len(record.numbers),
            "KeyName": spec.key_name or self._context.resource_name,
            "UserData": self._user_data(),
            "NetworkInterfaces": [interface],
            "BlockDeviceMappings": [{"DeviceName": root.device, "Ebs": disk}],
            "MetadataOptions": {
                "HttpTokens": "required",
                "HttpEndpoint": "enabled",
                "HttpPutResponseHopLimit": 1,
            },
            "InstanceInitiatedShutdownBehavior": "terminate",  # so that the timer on the machine ends the bill
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": self._context.tags("machine")}
                for kind in (
                    "instance",
                    "volume",
                    "network-interface",
                    *(["spot-instances-request"] * spec.spot),
                )
            ],
            **({"Placement": {"GroupName": self._context.resource_name}} if uses_placement(spec) else {}),
            **({"IamInstanceProfile": {"Name": self._context.account_name}} if spec.needs_role else {}),
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
            server = MountTarget(self._context).address()
            birth = replace(birth, mount=cluster.spec.mount, file_server=server)
        return render_user_data(birth)

    def hosts(self) -> list[HostRecord]:
        """The machines' present states at AWS, by number."""
        record = self._context.record(self.name) or PartRecord()
        alive = self._describe(record.ids)
        return [
            HostRecord(
                number,
                id_,
                str(alive[id_].get("PrivateIpAddress") or ""),
                str(alive[id_].get("PublicIpAddress") or ""),
                str(alive[id_]["State"]["Name"]),
            )
            for number, id_ in enumerate(record.ids)
            if id_ in alive
        ]

    def wait_for_machines(self, numbers: Collection[int]) -> None:
        """Wait until those with `numbers` have started; CloudError if one has ended instead."""

        def have_started() -> bool:
            hosts = [host for host in self.hosts() if host.number in numbers and host.state in _USABLE]
            if len(hosts) < len(numbers):
                raise CloudError(
                    "a machine has ended while it was starting; AWS may have none left there: try another region, type "
                    "or subnet"
                )
            is_private = self._context.cluster.spec.is_private
            return all(host.state == "running" and (is_private or host.public_address) for host in hosts)

        self._context.clients.wait_until(have_started, "starting the machines", READY_S)

    def replace(self, lost: HostRecord) -> None:
        """Start a machine in place of one that is gone, at the same address, so that the others find it.

        If another launcher has done so already, there is nothing to start.
        """
        wait_until = self._context.clients.wait_until
        wait_until(lambda: not self._describe([lost.id]), f"the end of {lost.id}", GONE_S)
        record = self._context.record(self.name) or PartRecord()
        if record.order:
            record = self._send(record, is_new=False)
        if record.ids[lost.number] in ("", lost.id):
            record = self._order(record.ids, (lost.number,), lost.private_address)
            self._tag(record.ids[lost.number], lost.number)
        self.wait_for_machines([lost.number])

    def remove_all(self) -> None:
        """End all machines, including those of an unanswered order, which is dropped."""
        for id_ in self.find():
            self.remove(id_)
        record = self._context.record(self.name)
        if record:
            self._context.journal.note(self.name, _without_order(record))

    def remove(self, id_: str) -> None:
        def is_gone() -> bool:
            return not self._describe([id_])

        if is_gone():
            return
        # All at once: each costs until it has ended.
        record = self._context.record(self.name) or PartRecord()
        others = {*self._list(), *self._describe(record.ids)}
        self._context.delete("ec2", "terminate_instances", InstanceIds=sorted({id_, *others}))
        self._context.clients.wait_until(is_gone, f"ending {id_}", GONE_S)


def _without_order(record: PartRecord) -> PartRecord:
    return replace(record, order="", numbers=(), address="")

"""A cluster on AWS: its parts, in the order of creation."""

from __future__ import annotations

from dataclasses import replace

from echelon.cloud.aws.calls import NO_CAPACITY, Clients
from echelon.cloud.aws.context import Context
from echelon.cloud.aws.groups import FilesGroup, HostsGroup, KeyPair, PlacementGroup, uses_placement
from echelon.cloud.aws.machines import Machines
from echelon.cloud.aws.permission import InstanceProfile, Role
from echelon.cloud.aws.shared_files import FileSystem, MountTarget
from echelon.cloud.aws.zones import other_subnets
from echelon.cloud.journal import Journal
from echelon.cloud.parts import Part, make_parts, remove_part
from echelon.console import Tell
from echelon.errors import CloudError


class AwsCluster:
    """A cluster. To remove one, its name and region are enough."""

    def __init__(self, clients: Clients, journal: Journal) -> None:
        self._context = Context(clients, journal)
        self.machines = Machines(self._context)

    def make(self, tell: Tell) -> None:
        """Make all parts that are missing; if a zone has no capacity, in the next one.

        A cluster stays in one zone: machines that it has already are not left behind.
        """
        tried: list[str] = []
        while True:
            try:
                return make_parts(self.parts(), tell)
            except CloudError as error:
                if error.code not in NO_CAPACITY:
                    raise
                tried.append(self._context.cluster.zone)
                if not self._move(tried, tell):
                    raise CloudError(f"{error}\n{self._advise(tried)}", error.code) from None

    def _move(self, tried: list[str], tell: Tell) -> bool:
        """Move to a zone that has not been tried; return whether there is one."""
        cluster, journal = self._context.cluster, self._context.journal
        if cluster.spec.subnet or self.machines.find():
            return False
        others = other_subnets(self._context.clients, cluster.spec, cluster.subnet)
        fresh = [each for each in others if each.zone not in tried]
        if not fresh:
            return False
        tell(f"{cluster.zone} has no {cluster.spec.type} left; trying {fresh[0].zone} ...")
        if cluster.spec.shared and remove_part(MountTarget(self._context), journal, tell):
            return False
        journal.write(replace(journal.require(), subnet=fresh[0].id, zone=fresh[0].zone))
        return True

    def _advise(self, tried: list[str]) -> str:
        kind, zones = self._context.cluster.spec.type, ", ".join(tried)
        return f"AWS has too few {kind} left in {zones} at the moment; try later, or another region, type or subnet"

    def parts(self) -> list[Part]:
        """All parts; every part a cluster may have if its spec is unknown."""
        context, cluster = self._context, self._context.journal.read()
        spec = cluster.spec if cluster else None
        parts: list[tuple[Part, bool]] = [
            (KeyPair(context), not (spec and spec.key_name)),
            (HostsGroup(context), True),
            (FilesGroup(context), not spec or spec.shared),
            (PlacementGroup(context), not spec or uses_placement(spec)),
            (FileSystem(context), not spec or spec.shared),
            (MountTarget(context), not spec or spec.shared),
            (Role(context), not spec or spec.needs_role),
            (InstanceProfile(context), not spec or spec.needs_role),
            (self.machines, True),
        ]
        return [part for part, is_wanted in parts if is_wanted]

"""A cluster on AWS: which parts it has, in the order of making."""

from __future__ import annotations

from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.context import Context
from echelon.cloud.aws.files import FileSystem, MountTarget
from echelon.cloud.aws.machines import Machines
from echelon.cloud.aws.network import FilesGroup, HostsGroup, KeyPair, Placement, uses_placement
from echelon.cloud.aws.permission import Profile, Role
from echelon.cloud.journal import Journal
from echelon.cloud.parts import Part


class AwsCluster:
    """To remove one, its name and region are enough."""

    def __init__(self, clients: Clients, journal: Journal) -> None:
        self._context = Context(clients, journal)
        self.machines = Machines(self._context)

    def parts(self) -> list[Part]:
        """All parts; those that a cluster may have where nobody knows what was asked for."""
        context, cluster = self._context, self._context.journal.read()
        spec = cluster.spec if cluster else None
        parts: list[tuple[Part, bool]] = [
            (KeyPair(context), not (spec and spec.key_name)),
            (HostsGroup(context), True),
            (FilesGroup(context), not spec or spec.shared),
            (Placement(context), not spec or uses_placement(spec)),
            (FileSystem(context), not spec or spec.shared),
            (MountTarget(context), not spec or spec.shared),
            (Role(context), not spec or spec.bucket is not None),
            (Profile(context), not spec or spec.bucket is not None),
            (self.machines, True),
        ]
        return [part for part, is_wanted in parts if is_wanted]

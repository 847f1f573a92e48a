"""What all parts of a cluster on AWS share: its name, journal, tags and AWS clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echelon.cloud.aws.calls import NOT_FOUND, Clients
from echelon.cloud.journal import ClusterRecord, Journal, PartRecord
from echelon.errors import CloudError, UserError

CLUSTER_TAG, PART_TAG, HOST_TAG = "echelon:cluster", "echelon:part", "echelon:host"
OWNER_TAG, TOKEN_TAG = "echelon:owner", "echelon:token"
MACHINES = "machines"
GONE_S, READY_S = 900.0, 600.0
ASK_AGAIN_S = 3.0
CONSISTENT_S = 120.0
"""How long after something was made AWS may still say that there is no such thing, or leave it out of a list."""
_BUSY = (
    "DependencyViolation",  # network interfaces go some time after what had them
    "FileSystemInUse",
    "InvalidPlacementGroup.InUse",
    "DeleteConflict",
)


class Context:
    """One cluster. Its journal may be lost: to find and remove parts, the name is enough."""

    def __init__(self, clients: Clients, journal: Journal) -> None:
        self.clients = clients
        self.journal = journal
        self._opened = clients.clock.now()

    @property
    def name(self) -> str:
        return self.journal.name

    @property
    def resource_name(self) -> str:
        """A name that is unique in the region."""
        return f"echelon-{self.name}"

    @property
    def account_name(self) -> str:
        """A name that is unique in the account: the same cluster in another region has another."""
        return f"{self.resource_name}.{self.clients.region}"

    @property
    def cluster(self) -> ClusterRecord:
        return self.journal.require()

    def tags(self, part: str, **more: str) -> list[dict[str, str]]:
        cluster = self.cluster
        own = {CLUSTER_TAG: self.name, PART_TAG: part, OWNER_TAG: cluster.owner, TOKEN_TAG: cluster.token}
        tags = {**cluster.spec.tags, "Name": f"{self.name}-{part}", **own, **more}
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def tag_specification(self, kind: str, part: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": self.tags(part)}]

    def tag_filter(self, part: str) -> list[dict[str, Any]]:
        tags = {**self._own_tags(), PART_TAG: part}
        return [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]

    def is_ours(self, tags: Sequence[dict[str, str]]) -> bool:
        """Whether something with these tags belongs to this cluster."""
        return all({"Key": key, "Value": value} in tags for key, value in self._own_tags().items())

    def _own_tags(self) -> dict[str, str]:
        """What identifies this cluster; without a journal, its name."""
        cluster = self.journal.read()
        return {CLUSTER_TAG: self.name, **({TOKEN_TAG: cluster.token} if cluster else {})}

    def ec2(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._call("ec2", operation, arguments)

    def efs(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._call("efs", operation, arguments)

    def iam(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self._call("iam", operation, arguments)

    def _call(self, service: str, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call AWS; "not found" is believed only once whatever we made is old enough to be known everywhere."""
        while True:
            try:
                return self.clients.call(service, operation, **arguments)
            except CloudError as error:
                if error.code not in NOT_FOUND or self.is_settled():
                    raise
            self.clients.clock.sleep(ASK_AGAIN_S)

    def one(self, service: str, operation: str, key: str, **id_: Any) -> dict[str, Any]:
        """Ask for one resource by its identifier; CloudError "not found" if there is none."""
        while True:
            found: list[dict[str, Any]] = self._call(service, operation, id_)[key]
            if found:
                return found[0]
            if self.is_settled():
                raise CloudError(
                    f"{operation}: there is no {', '.join(map(str, id_.values()))}", NOT_FOUND[0]
                )
            self.clients.clock.sleep(ASK_AGAIN_S)

    def is_settled(self, part: str | None = None) -> bool:
        """Whether AWS must know by now about everything made for this cluster, or about one part.

        If it is not known whether something was made, a process before this one may have had it made to its very end.
        """
        cluster = self.journal.read()
        records = {} if cluster is None else cluster.parts
        moments = [
            max(record.since, self._opened) if record.is_unsure else record.since
            for name, record in records.items()
            if part in (None, name)
        ]
        newest = max(moments, default=0.0) if cluster else self._opened
        return self.clients.clock.now() > newest + CONSISTENT_S

    def record(self, part: str) -> PartRecord | None:
        return self.journal.record(part)

    def id_of(self, part: str) -> str:
        """Return the identifier of a part that has been made; a list of AWS's might not have it yet."""
        record = self.record(part)
        assert record is not None, f"{part} is made before what needs it"
        assert record.ids, f"{part} is made before what needs it"
        return record.ids[0]

    def delete(self, service: str, operation: str, **arguments: Any) -> None:
        """Remove a resource that may be gone already, or still in use by something being removed."""

        def is_done() -> bool:
            try:
                self._call(service, operation, arguments)
            except CloudError as error:
                if error.code in _BUSY:
                    return False
                if error.code not in NOT_FOUND:
                    raise
            return True

        self.clients.wait_until(is_done, operation.replace("_", " "), GONE_S)


class Single:
    """A part that is one resource, under a name or a token of its own: asking for it twice makes one."""

    name = ""
    duplicate = ""
    """AWS's error code for a resource that exists already."""
    is_irreplaceable = False
    """Whether machines, if there are any, depend on the very one that was made first."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def make(self) -> None:
        record = self._context.record(self.name)
        known = record.ids[0] if record and record.ids else ""
        if known and not self._is_there(known):
            machines = self._context.record(MACHINES)
            if self.is_irreplaceable and machines and any(machines.ids):
                raise UserError(
                    f"the {self.name} {known} is gone: it was removed with everything in it, and machines that "
                    f"have it mounted hang; `echelon cloud down {self._context.name}` removes the rest"
                )
            known = ""
        self._complete(known or self._create_or_find())

    def find(self) -> list[str]:
        found = self._list()
        record = self._context.record(self.name)
        while not found and record and record.is_unsure and not self._context.is_settled(self.name):
            self._context.clients.clock.sleep(ASK_AGAIN_S)
            found = self._list()
        return found

    def _create_or_find(self) -> str:
        journal, before = self._context.journal, self._context.record(self.name)
        self._note()
        try:
            id_ = self._create()
        except KeyboardInterrupt:
            self._note()
            raise
        except CloudError as error:
            self._note()  # AWS may have been throttled until now
            if error.code != self.duplicate:
                if not error.may_be_done:
                    journal.note(self.name, before)  # AWS has refused: nothing was made
                raise
            id_ = self._find_duplicate(error)
        self._note(id_)
        return id_

    def _note(self, *ids: str) -> None:
        self._context.journal.note(self.name, PartRecord(ids, self._context.clients.clock.now()))

    def _find_duplicate(self, error: CloudError) -> str:
        """Return what a call made if its answer was lost; CloudError if AWS has a different one of the same name."""
        found = self.find()
        if not found:
            raise CloudError(
                f"{error}; it was not made for {self._context.name}: use another name", error.code
            )
        return found[0]

    def _is_there(self, id_: str) -> bool:
        try:
            return self._exists(id_)
        except CloudError as error:
            if error.code not in NOT_FOUND:
                raise
            return False

    def _list(self) -> list[str]:
        """Resources with the tags of this part; new ones may be missing."""
        raise NotImplementedError

    def _exists(self, id_: str) -> bool:
        """Ask for one by its identifier; the name may have become another cluster's."""
        raise NotImplementedError

    def _create(self) -> str:
        """Create it, and return its identifier."""
        raise NotImplementedError

    def _complete(self, id_: str) -> None:
        """Finish setting it up, and wait until it can be used; may be repeated."""

"""What all parts of a cluster on AWS share: its name, its journal, its tags and the way to call AWS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from echelon.cloud.aws.calls import Clients
from echelon.cloud.journal import Cluster, Journal

CLUSTER_TAG, PART_TAG, HOST_TAG = "echelon:cluster", "echelon:part", "echelon:host"
GONE_S, READY_S = 900.0, 600.0


@dataclass(frozen=True)
class Context:
    """One cluster. Its journal may be lost: to find and remove parts, the name is enough."""

    clients: Clients
    journal: Journal

    @property
    def name(self) -> str:
        return self.journal.name

    @property
    def resource_name(self) -> str:
        """Of what AWS wants to have a name of its own."""
        return f"echelon-{self.name}"

    @property
    def cluster(self) -> Cluster:
        return self.journal.require()

    def tags(self, part: str, **more: str) -> list[dict[str, str]]:
        tags = {"Name": f"{self.name}-{part}", CLUSTER_TAG: self.name, PART_TAG: part, **more}
        return [{"Key": key, "Value": value} for key, value in tags.items()]

    def tag_specification(self, kind: str, part: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": self.tags(part)}]

    def tag_filter(self, part: str) -> list[dict[str, Any]]:
        return [
            {"Name": f"tag:{CLUSTER_TAG}", "Values": [self.name]},
            {"Name": f"tag:{PART_TAG}", "Values": [part]},
        ]

    def ec2(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self.clients.call("ec2", operation, **arguments)

    def efs(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self.clients.call("efs", operation, **arguments)

    def iam(self, operation: str, **arguments: Any) -> dict[str, Any]:
        return self.clients.call("iam", operation, **arguments)

"""The file system that all hosts of a cluster see, and its mount target in their subnet."""

from __future__ import annotations

from typing import Any

from echelon.cloud.aws.calls import NOT_FOUND
from echelon.cloud.aws.context import GONE_S, READY_S, Context, Single
from echelon.cloud.aws.groups import FilesGroup
from echelon.errors import CloudError


class FileSystem(Single):
    """EFS, encrypted."""

    name = "file system"
    duplicate = "FileSystemAlreadyExists"
    is_irreplaceable = True

    def _list(self) -> list[str]:
        found = self._context.clients.pages("efs", "describe_file_systems", "FileSystems")
        return [
            str(system["FileSystemId"])
            for system in found
            if self._context.is_ours(system.get("Tags", [])) and system.get("LifeCycleState") != "deleted"
        ]

    def _exists(self, id_: str) -> bool:
        return self._state(id_) not in ("deleting", "deleted")

    def _state(self, id_: str) -> str:
        found = self._context.one("efs", "describe_file_systems", "FileSystems", FileSystemId=id_)
        return str(found["LifeCycleState"])

    def _create(self) -> str:
        made = self._context.efs(
            "create_file_system",
            CreationToken=f"echelon-{self._context.name}-{self._context.cluster.token}",
            Encrypted=True,
            ThroughputMode="elastic",
            Tags=self._context.tags("files"),
        )
        return str(made["FileSystemId"])

    def _complete(self, id_: str) -> None:
        wait_until = self._context.clients.wait_until
        wait_until(lambda: self._state(id_) == "available", "making the file system", READY_S)

    def remove(self, id_: str) -> None:
        self._context.delete("efs", "delete_file_system", FileSystemId=id_)
        wait_until_gone(self._context, "FileSystems", "describe_file_systems", FileSystemId=id_)


class MountTarget(Single):
    """The file system's address in the hosts' own subnet, because traffic between zones costs money."""

    name = "mount target"
    duplicate = "MountTargetConflict"
    is_irreplaceable = True

    def _list(self) -> list[str]:
        record = self._context.record(FileSystem.name)
        systems = dict.fromkeys([*(record.ids if record else ()), *FileSystem(self._context).find()])
        return [mount for system in systems for mount in self._mounts_of(system)]

    def _mounts_of(self, system: str) -> list[str]:
        try:
            found = self._context.efs("describe_mount_targets", FileSystemId=system)["MountTargets"]
        except CloudError as error:
            if error.code not in NOT_FOUND:
                raise
            return []
        cluster = self._context.journal.read()
        return [
            str(mount["MountTargetId"])
            for mount in found
            if mount["LifeCycleState"] != "deleted"
            and (cluster is None or mount["SubnetId"] == cluster.subnet)  # not that of a zone that was left
        ]

    def _exists(self, id_: str) -> bool:
        return self._describe(id_)["LifeCycleState"] not in ("deleting", "deleted")

    def _describe(self, id_: str) -> dict[str, Any]:
        return self._context.one("efs", "describe_mount_targets", "MountTargets", MountTargetId=id_)

    def _create(self) -> str:
        made = self._context.efs(
            "create_mount_target",
            FileSystemId=self._context.id_of(FileSystem.name),
            SubnetId=self._context.cluster.subnet,
            SecurityGroups=[self._context.id_of(FilesGroup.name)],
        )
        return str(made["MountTargetId"])

    def _complete(self, id_: str) -> None:
        def is_available() -> bool:
            return bool(self._describe(id_)["LifeCycleState"] == "available")

        self._context.clients.wait_until(is_available, "making the mount target", READY_S)

    def address(self) -> str:
        """Return its address; its name resolves only in networks with DNS."""
        return str(self._describe(self._context.id_of(self.name))["IpAddress"])

    def remove(self, id_: str) -> None:
        self._context.delete("efs", "delete_mount_target", MountTargetId=id_)
        wait_until_gone(self._context, "MountTargets", "describe_mount_targets", MountTargetId=id_)


def wait_until_gone(context: Context, key: str, operation: str, **id_: Any) -> None:
    """Wait until a resource being removed is gone: AWS knows it, so "not found" means gone."""

    def is_gone() -> bool:
        try:
            found = context.clients.call("efs", operation, **id_)[key]
        except CloudError as error:
            if error.code not in NOT_FOUND:
                raise
            return True
        return all(each["LifeCycleState"] == "deleted" for each in found)

    context.clients.wait_until(is_gone, f"removing {', '.join(id_.values())}", GONE_S)

"""The file system that all hosts of a cluster see, and its door into their network."""

from __future__ import annotations

from echelon.cloud.aws.calls import NOT_FOUND, gone_is_fine
from echelon.cloud.aws.context import CLUSTER_TAG, GONE_S, READY_S, Context
from echelon.cloud.aws.network import FilesGroup, find_groups
from echelon.cloud.parts import wait_until
from echelon.errors import CloudError


class FileSystem:
    """EFS, encrypted."""

    name = "file system"

    def __init__(self, context: Context) -> None:
        self._context = context

    def find(self) -> list[str]:
        found = self._context.clients.pages("efs", "describe_file_systems", "FileSystems")
        return [
            str(system["FileSystemId"])
            for system in found
            if {"Key": CLUSTER_TAG, "Value": self._context.name} in system.get("Tags", [])
            and system.get("LifeCycleState") != "deleted"
        ]

    def make(self) -> list[str]:
        ids = self.find() or [
            str(
                self._context.efs(
                    "create_file_system",
                    CreationToken=f"echelon-{self._context.name}-{self._context.cluster.token}",
                    Encrypted=True,
                    ThroughputMode="elastic",
                    Tags=self._context.tags("files"),
                )["FileSystemId"]
            )
        ]
        wait_until(lambda: self._file_state(ids[0]) == "available", "making the file system", READY_S)
        return ids

    def _file_state(self, id_: str) -> str:
        systems = self._context.efs("describe_file_systems", FileSystemId=id_)["FileSystems"]
        return str(systems[0]["LifeCycleState"]) if systems else "deleted"

    def remove(self, id_: str) -> None:
        with gone_is_fine():
            self._context.efs("delete_file_system", FileSystemId=id_)
            wait_until(lambda: self._file_state(id_) == "deleted", f"removing {id_}", GONE_S)


class MountTarget:
    """Where the hosts find the file system."""

    name = "mount target"

    def __init__(self, context: Context) -> None:
        self._context = context

    def find(self) -> list[str]:
        return [mount for system in FileSystem(self._context).find() for mount in self._mounts_of(system)]

    def _mounts_of(self, system: str) -> list[str]:
        pages = self._context.clients.pages
        try:
            found = list(pages("efs", "describe_mount_targets", "MountTargets", FileSystemId=system))
        except CloudError as error:
            if error.code not in NOT_FOUND:
                raise
            return []
        return [str(mount["MountTargetId"]) for mount in found if mount["LifeCycleState"] != "deleted"]

    def make(self) -> list[str]:
        system = FileSystem(self._context).find()[0]
        ids = self._mounts_of(system)
        if not ids:
            made = self._context.efs(
                "create_mount_target",
                FileSystemId=system,
                SubnetId=self._context.cluster.subnet,
                SecurityGroups=find_groups(self._context, FilesGroup.part),
            )
            ids = [str(made["MountTargetId"])]
        wait_until(lambda: self._mount_state(ids[0]) == "available", "making the mount target", READY_S)
        return ids

    def _mount_state(self, id_: str) -> str:
        mounts = self._context.efs("describe_mount_targets", MountTargetId=id_)["MountTargets"]
        return str(mounts[0]["LifeCycleState"]) if mounts else "deleted"

    def remove(self, id_: str) -> None:
        with gone_is_fine():
            self._context.efs("delete_mount_target", MountTargetId=id_)
            wait_until(lambda: self._mount_state(id_) == "deleted", f"removing {id_}", GONE_S)

"""The root disk of a machine image."""

from __future__ import annotations

from dataclasses import dataclass

from echelon.cloud.aws.calls import Clients
from echelon.errors import CloudError, UserError


@dataclass(frozen=True)
class RootDisk:
    """The disk that a machine boots from."""

    device: str
    """Its name, which depends on the image: a disk of another name would be a second one."""
    gb: int
    """It cannot be smaller."""


def find_root_disk(clients: Clients, image: str) -> RootDisk:
    """Return the root disk of an image; UserError if there is no such image."""
    try:
        found = clients.call("ec2", "describe_images", ImageIds=[image])["Images"]
    except CloudError as error:
        if not error.code.startswith("InvalidAMIID"):
            raise
        found = []
    if not found:
        raise UserError(f"{clients.region} has no image {image}; name an AMI of that region with image =")
    device = str(found[0].get("RootDeviceName") or "/dev/sda1")
    disks = {each.get("DeviceName"): each.get("Ebs", {}) for each in found[0].get("BlockDeviceMappings", [])}
    return RootDisk(device, int(disks.get(device, {}).get("VolumeSize") or 0))


def require_disk(clients: Clients, image: str, disk_gb: int) -> None:
    """UserError if the image does not fit on a disk of this size."""
    least = find_root_disk(clients, image).gb
    if disk_gb < least:
        raise UserError(f"disk_gb = {disk_gb}: the image {image} needs {least}; give at least that")

"""cluster.toml: which machines to rent, for how long, and for how much at most."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from echelon.errors import Problem, RecipeError, UserError
from echelon.runfolder import parse_toml, read_file
from echelon.untrusted import (
    require_cluster,
    require_image,
    require_jump,
    require_path,
    require_user,
    require_word,
)
from echelon.validation import plain_message

_MOST_OPEN = 16
"""The shortest prefix of a network that may log in: a provider's or a university's, never everybody's."""
_SYSTEM = frozenset(
    [
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin"),
        *("snap", "sys", "tmp", "usr", "var"),
    ]
)
"""Folders without which a machine does not work."""
_MOST_TAGS = 40
"""AWS takes 50, ours included."""


ClusterName = Annotated[str, AfterValidator(require_cluster)]
UserName = Annotated[str, AfterValidator(require_user)]
Word = Annotated[str, AfterValidator(require_word)]
ImageName = Annotated[str, AfterValidator(require_image)]


class RentedSpec(BaseModel):
    """Settings common to all providers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClusterName
    """Of the cluster; its hosts are NAME-0, NAME-1, ..."""
    count: Annotated[int, Field(ge=1, le=256)] = 1
    """How many machines."""
    spot: bool = False
    """Use spare machines, which cost less and may be taken away; those that are, are replaced."""
    hours: Annotated[float, Field(gt=0, le=24 * 30)] = 12.0
    """The machines end by themselves after this time."""
    budget: Annotated[float, Field(gt=0)] | None = None
    """US dollars; the machines end by themselves before they have cost more, whatever `hours` says."""
    disk_gb: Annotated[int, Field(ge=30, le=16000)] = 150
    """Of each machine's own disk."""
    container: ImageName | None = None
    """Run everything on the machines in containers of this image."""
    tags: dict[str, str] = {}
    """More tags for everything that is made, e.g. to split a bill by."""

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, tags: dict[str, str]) -> dict[str, str]:
        return check_tags(tags)


class ClusterSpec(RentedSpec):
    """The cluster that `cloud up` makes."""

    provider: Literal["aws"] = "aws"
    type: Word
    """The provider's name for the machine, e.g. g4dn.2xlarge."""
    region: Word = "us-east-1"
    shared: bool = True
    """Make a file system that all machines see, for data and runs; encrypted."""
    shared_gb: Annotated[float, Field(ge=0)] = 50.0
    """The expected size, for the estimate of its cost."""
    mount: str = "/shared"
    """Where the machines see it."""
    bucket: str | None = None
    """An S3 address, e.g. s3://mine/runs, that the machines may read and write, and nothing else."""
    image: Word | None = None
    """An AMI; None takes the newest Deep Learning AMI, or Ubuntu's if the machine has no GPU."""
    user: UserName = "ubuntu"
    """Who logs in."""
    key_name: str | None = None
    """A key pair that is there already; None makes one for this cluster."""
    key_file: Annotated[str, AfterValidator(require_path)] | None = None
    """The private key of `key_name`."""
    vpc: Word | None = None
    """The network; None takes the region's default one."""
    subnet: Word | None = None
    """Where in it; None takes one in a zone that has the machine."""
    ssh_from: str = "auto"
    """The address or network that may log in; `auto` is the address that this machine is seen at."""
    proxy_jump: Annotated[str, AfterValidator(require_jump)] | None = None
    """A bastion, as in me@bastion.example.org:2222: the machines have private addresses, and are reached through it."""
    ssm: bool = False
    """The machines have private addresses, and are reached through AWS's Session Manager."""
    boundary: str | None = None
    """The permissions boundary of the machines' role: a policy's ARN."""
    placement: bool = True
    """Put the machines close together."""

    @field_validator("ssh_from")
    @classmethod
    def _check_ssh_from(cls, text: str) -> str:
        return text if text == "auto" else str(allowed_network(text))

    @field_validator("mount")
    @classmethod
    def _check_mount(cls, mount: str) -> str:
        is_plain = re.fullmatch(r"(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)+", mount)
        _, first, *below = mount.split("/") if is_plain else ("", "")
        # Over a home folder it would hide the keys that let the user in.
        if not first or first in _SYSTEM or (first == "home" and len(below) < 2):
            raise ValueError("use an absolute path of plain letters that is not the system's, as in /shared")
        return mount

    @field_validator("bucket")
    @classmethod
    def _check_bucket(cls, bucket: str | None) -> str | None:
        if bucket is not None and not re.fullmatch(r"s3://[a-z0-9.-]{3,63}(/[A-Za-z0-9_./-]+)?", bucket):
            raise ValueError("write it as s3://BUCKET or s3://BUCKET/FOLDER")
        return bucket

    @field_validator("boundary")
    @classmethod
    def _check_boundary(cls, arn: str | None) -> str | None:
        if arn is not None and not re.fullmatch(r"arn:aws[a-z-]*:iam::(\d{12}|aws):policy/[\w+=,.@/-]+", arn):
            raise ValueError("write it as arn:aws:iam::123456789012:policy/NAME")
        return arn

    @property
    def is_private(self) -> bool:
        """Whether the machines have private addresses only."""
        return self.ssm or self.proxy_jump is not None

    @property
    def needs_role(self) -> bool:
        """Whether the machines call AWS themselves."""
        return self.ssm or self.bucket is not None

    @model_validator(mode="after")
    def _check_whole(self) -> ClusterSpec:
        if bool(self.key_name) != bool(self.key_file):
            raise ValueError(
                "key_name and key_file go together: the pair's name, and the file of its private key"
            )
        if self.subnet and not self.vpc:
            raise ValueError("subnet needs vpc, the network that it is in")
        if self.ssm and self.proxy_jump:
            raise ValueError("ssm and proxy_jump are two ways to the machines; choose one")
        if self.ssm and self.ssh_from != "auto":
            raise ValueError("ssh_from has no effect with ssm: no port is opened")
        if self.proxy_jump and self.ssh_from == "auto":
            raise ValueError(
                "proxy_jump needs ssh_from: the bastion's own address or network, as the machines see it"
            )
        if self.boundary and not self.needs_role:
            raise ValueError("boundary is of the machines' role, which only bucket and ssm make")
        return self


def check_tags(tags: dict[str, str]) -> dict[str, str]:
    """Tags that AWS accepts, besides our own; ValueError otherwise."""
    if len(tags) > _MOST_TAGS:
        raise ValueError(f"at most {_MOST_TAGS} tags")
    for key, value in tags.items():
        if not re.fullmatch(r"[\w .:/=+@-]{1,128}", key) or not re.fullmatch(r"[\w .:/=+@-]{0,256}", value):
            raise ValueError(
                f"{key!r}: use letters, digits, spaces and _ . : / = + - @, at most 128 and 256 of them"
            )
        if key == "Name" or key.lower().startswith(("aws:", "echelon:")):
            raise ValueError(f"{key!r} is a tag of AWS's or of Echelon's own")
    return tags


def allowed_network(text: str) -> ipaddress.IPv4Network:
    """The network that may log in; ValueError if it is invalid, or (nearly) the whole internet.

    The machines have IPv4 addresses only: a rule for IPv6 would let nobody in.
    """
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text!r} is not an address or a network, as in 203.0.113.7 or 203.0.113.0/24"
        ) from None
    if isinstance(network, ipaddress.IPv6Network):
        raise ValueError(f"{text} is of IPv6, which does not reach the machines; name your IPv4 address")
    if network.prefixlen < _MOST_OPEN:
        raise ValueError(
            f"{text} would let too much of the internet try to log in; name your own address, or a network of at most "
            f"/{_MOST_OPEN}"
        )
    return network


Spec = TypeVar("Spec", bound=BaseModel)


def load_spec(path: Path, kind: type[Spec]) -> Spec:
    """Read a TOML file as a spec; RecipeError with every problem, UserError if it cannot be read."""
    return parse_spec(_read(path), kind, str(path))


def provider_of(path: Path) -> str:
    """Which provider a file is for."""
    return str(_read(path).get("provider", "aws"))


def _read(path: Path) -> dict[str, Any]:
    text = ""
    try:
        text = read_file(path).decode()
        return parse_toml(text)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}; see docs/cloud.md for an example"
        ) from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
        raise UserError(f"{path}: is not TOML: {error}{_quote_line(text, error)}") from None


def _quote_line(text: str, error: ValueError | RecursionError) -> str:
    """The line number in a TOML error, if it has one."""
    found = re.search(r"at line (\d+)", str(error))
    return f": {text.splitlines()[int(found[1]) - 1].strip()}" if found else ""


def parse_spec(document: dict[str, Any], kind: type[Spec], where: str) -> Spec:
    """The spec in a document; RecipeError with every problem."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        problems = [
            Problem(".".join(map(str, each["loc"])), plain_message(each, [*kind.model_fields]))
            for each in error.errors()
        ]
        raise RecipeError(where, problems) from None

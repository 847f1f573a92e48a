"""cluster.toml: which machines to rent, for how long, and for how much at most."""

from __future__ import annotations

import ipaddress
import re
import tomllib
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
from echelon.untrusted import require_image, require_path, require_user, require_word

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}[a-z0-9]")
_MOST_OPEN = {4: 16, 6: 32}
"""The shortest prefix of a network that may log in: a provider's or a university's, never everybody's."""


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("use 2 to 32 small letters, digits and hyphens, beginning with a letter")
    return name


ClusterName = Annotated[str, AfterValidator(_check_name)]
UserName = Annotated[str, AfterValidator(require_user)]
Word = Annotated[str, AfterValidator(require_word)]
ImageName = Annotated[str, AfterValidator(require_image)]


class ClusterSpec(BaseModel):
    """What `cloud up` makes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ClusterName
    """Of the cluster; its hosts are NAME-0, NAME-1, ..."""
    provider: Literal["aws"] = "aws"
    count: Annotated[int, Field(ge=1, le=256)] = 1
    """How many machines."""
    type: Word
    """The provider's name for the machine, e.g. g4dn.2xlarge."""
    region: Word = "us-east-1"
    spot: bool = False
    """Use spare machines, which cost less and may be taken away; those that are, are replaced."""
    hours: Annotated[float, Field(gt=0, le=24 * 30)] = 12.0
    """The machines end by themselves after this time."""
    budget: Annotated[float, Field(gt=0)] | None = None
    """US dollars; the machines end by themselves before they have cost more, whatever `hours` says."""
    disk_gb: Annotated[int, Field(ge=30, le=16000)] = 150
    """Of each machine's own disk."""
    shared: bool = True
    """Make a file system that all machines see, for data and runs; encrypted."""
    shared_gb: Annotated[float, Field(ge=0)] = 50.0
    """How much will be kept there: only the estimate depends on it."""
    mount: str = "/shared"
    """Where the machines see it."""
    bucket: str | None = None
    """An S3 address, e.g. s3://mine/runs, that the machines may read and write, and nothing else."""
    image: Word | None = None
    """An AMI; None takes the newest Deep Learning AMI, or Ubuntu's where the machine has no GPU."""
    container: ImageName | None = None
    """Run everything on the machines in containers of this image."""
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
    placement: bool = True
    """Put the machines close together."""

    @field_validator("ssh_from")
    @classmethod
    def _check_ssh_from(cls, text: str) -> str:
        return text if text == "auto" else str(allowed_network(text))

    @field_validator("mount")
    @classmethod
    def _check_mount(cls, mount: str) -> str:
        if not re.fullmatch(r"(/[A-Za-z0-9_.-]+)+", mount):
            raise ValueError("use an absolute path of plain letters, as in /shared")
        return mount

    @field_validator("bucket")
    @classmethod
    def _check_bucket(cls, bucket: str | None) -> str | None:
        if bucket is not None and not re.fullmatch(r"s3://[a-z0-9.-]{3,63}(/[A-Za-z0-9_./-]+)?", bucket):
            raise ValueError("write it as s3://BUCKET or s3://BUCKET/FOLDER")
        return bucket

    @model_validator(mode="after")
    def _check_whole(self) -> ClusterSpec:
        if bool(self.key_name) != bool(self.key_file):
            raise ValueError(
                "key_name and key_file go together: the pair's name, and the file of its private key"
            )
        if self.subnet and not self.vpc:
            raise ValueError("subnet needs vpc, the network that it is in")
        return self


def allowed_network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """The network that may log in; ValueError where it is none, or the whole internet or nearly so."""
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(
            f"{text!r} is not an address or a network, as in 203.0.113.7 or 203.0.113.0/24"
        ) from None
    if network.prefixlen < _MOST_OPEN[network.version]:
        raise ValueError(
            f"{text} would let too much of the internet try to log in; name your own address, or a network of at most "
            f"/{_MOST_OPEN[network.version]}"
        )
    return network


Spec = TypeVar("Spec", bound=BaseModel)


def load_spec(path: Path, kind: type[Spec]) -> Spec:
    """Read a TOML file as a spec; RecipeError with every problem, UserError where it cannot be read."""
    return parse_spec(_read(path), kind, str(path))


def provider_of(path: Path) -> str:
    """Which provider a file is for."""
    return str(_read(path).get("provider", "aws"))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}; see docs/cloud.md for an example"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: is not TOML: {error}") from None


def parse_spec(document: dict[str, Any], kind: type[Spec], where: str) -> Spec:
    """The spec in a document; RecipeError with every problem."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        problems = [
            Problem(".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, "))
            for each in error.errors()
        ]
        raise RecipeError(where, problems) from None

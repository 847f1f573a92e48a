"""Which hosts, and how many workers on each: from the command line, a hostfile, or the list of rented machines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from echelon.errors import HostsError
from echelon.runfolder import parse_json
from echelon.untrusted import HOST, IPV6, USER

AddressKind = Literal["private", "public"]
"""`private`: the private IP address; `public`: the public DNS name, or the public IP address if there is none.
AWS resolves the public name to the private address within its own network."""

_MENTION = re.compile(rf"(?P<user>{USER}@)?(?:\[(?P<ipv6>{IPV6})\]|(?P<name>{HOST}))(?::(?P<count>[^:]*))?")
_SLOTS = {"slots", "max_slots"}


@dataclass(frozen=True)
class Host:
    """A machine, by the name that `ssh` takes, and how many workers it gets."""

    name: str
    workers: int | None = None
    """None: one worker per GPU, or, without GPUs, as many as the recipe says."""

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        return name if self.workers is None else f"{name}:{self.workers}"


@dataclass(frozen=True)
class _Mention:
    """A host as a command line or a file names it."""

    name: str
    workers: int | None
    where: str
    """`line 3`, or the text itself."""


def load_hosts(source: str | Path, aws_address: AddressKind = "private") -> list[Host]:
    """Hosts from a text like `a:2,b:2`, or from a file: a hostfile or what `aws ec2 describe-instances` prints.

    A Path is a file. So is a text if such a file exists, or if it contains a slash or ends in .json.
    """
    if isinstance(source, str) and not _is_file_name(source):
        return parse_hosts(source)
    path = Path(source)
    return read_aws_instances(path, aws_address) if _holds_json(path) else read_hostfile(path)


def parse_hosts(text: str) -> list[Host]:
    """Hosts from mpirun's -H syntax: `a:2,b:2`; `a,a,b` is `a:2,b:1`; `user@host`; `[2001:db8::1]:2`."""
    mentions, problems = list[_Mention](), list[str]()
    for part in text.split(","):
        try:
            mentions.append(_parse_mention(part.strip(), where=f"{part.strip()!r}"))
        except ValueError as error:
            problems.append(str(error))
    return _merge(mentions, problems, f"--hosts {text}")


def read_hostfile(path: Path) -> list[Host]:
    """Hosts from a hostfile, one a line: `host slots=2 max_slots=4` (Open MPI, DeepSpeed), `host:2` (MPICH) or `host`.

    `#` begins a comment. Raises HostsError, with every bad line.
    """
    mentions, problems = list[_Mention](), list[str]()
    for number, line in enumerate(_read(path).splitlines(), start=1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if not words:
            continue
        try:
            mentions.append(_parse_line(words, where=f"line {number}"))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    return _merge(mentions, problems, str(path))


def read_aws_instances(path: Path, address: AddressKind = "private") -> list[Host]:
    """The running instances in what `aws ec2 describe-instances` prints as JSON, in its order."""
    try:
        document = parse_json(_read(path))
    except ValueError as error:
        raise HostsError(
            f"{path}: is not JSON: {error}; save what `aws ec2 describe-instances` prints"
        ) from None
    instances = list(_find_instances(document))
    running = [instance for instance in instances if _state(instance) == "running"]
    if not running:
        states = ", ".join(sorted({_state(instance) for instance in instances})) or "no instances"
        raise HostsError(f"{path}: holds no running instance ({states}); start them and save the list anew")
    mentions, problems = list[_Mention](), list[str]()
    for instance in running:
        where = str(instance.get("InstanceId", "an instance"))
        name = _address_of(instance, address)
        if name:
            mentions.append(_Mention(name, None, where))
        else:
            other = "public" if address == "private" else "private"
            problems.append(f"{where} has no {address} address; use the {other} ones")
    return _merge(mentions, problems, str(path))


def _is_file_name(text: str) -> bool:
    return "/" in text or text.endswith(".json") or Path(text).is_file()


def _holds_json(path: Path) -> bool:
    return path.suffix == ".json" or _read(path).lstrip().startswith(("{", "["))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise HostsError(
            f"{path}: cannot be read: {error.strerror}; name a hostfile, or hosts as in a:2,b:2"
        ) from None
    except UnicodeDecodeError:
        raise HostsError(f"{path}: is not text; name a hostfile, or hosts as in a:2,b:2") from None


def _parse_mention(text: str, where: str) -> _Mention:
    """`user@host:2` and its shorter forms; ValueError in words otherwise."""
    if not text:
        raise ValueError("a host's name is missing; write hosts as in a:2,b:2")
    match = _MENTION.fullmatch(text)
    if match is None and text.count(":") > 1 and "[" not in text:
        raise ValueError(f"{text!r}: put an IPv6 address into brackets, as in [2001:db8::1]:2")
    if match is None:
        raise ValueError(f"{text!r} is not a host's name; write hosts as in a:2,b:2")
    count = match["count"]
    workers = None if count in (None, "*") else _parse_count(count, text)
    return _Mention((match["user"] or "") + (match["ipv6"] or match["name"]), workers, where)


def _parse_count(text: str, where: str) -> int:
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) == 0:
        raise ValueError(f"{where!r}: the number of workers is {text!r}; it must be a whole number from 1")
    return int(text)


def _parse_line(words: Sequence[str], where: str) -> _Mention:
    """Parse the words of one line of a hostfile."""
    mention = _parse_mention(words[0], where)
    values = dict[str, int]()
    for word in words[1:]:
        key, equals, value = word.partition("=")
        key = key.replace("-", "_")
        if not equals or key not in _SLOTS:
            raise ValueError(
                f"{word!r} is not understood; after the host's name may come slots=N and max_slots=N"
            )
        if key in values:
            raise ValueError(f"{key} is given twice")
        values[key] = _parse_count(value, word)
    slots = values.get("slots")
    if slots and mention.workers:
        raise ValueError(f"{words[0]!r} and slots={slots} both give a number of workers; keep one")
    slots = slots or mention.workers
    limit = values.get("max_slots")
    if limit is not None and (slots is None or slots > limit):
        raise ValueError(f"max_slots={limit} needs slots= up to it; give the number of workers")
    return _Mention(mention.name, slots, where)


def _merge(mentions: Sequence[_Mention], problems: Sequence[str], source: str) -> list[Host]:
    """One Host a name, in order. As for mpirun, a host named N times without a number gets N workers."""
    problems = list(problems)
    by_name = dict[str, list[_Mention]]()
    for mention in mentions:
        by_name.setdefault(mention.name, []).append(mention)
    hosts = list[Host]()
    for name, same in by_name.items():
        if len(same) == 1:
            hosts.append(Host(name, same[0].workers))
        elif all(mention.workers is None for mention in same):
            hosts.append(Host(name, len(same)))
        else:
            places = " and ".join(mention.where for mention in same)
            problems.append(
                f"{name} is named {len(same)} times ({places}); name it once, with all its workers"
            )
    if not hosts and not problems:
        problems.append("no host is named")
    if problems:
        raise HostsError(_listed(source, problems))
    return hosts


def _listed(source: str, problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return f"{source}: {problems[0]}"
    return f"{source} has {len(problems)} problems:" + "".join(f"\n  {problem}" for problem in problems)


def _find_instances(document: Any) -> Iterator[dict[str, Any]]:
    """Instances, nested as `--query` left them: in reservations or in plain lists."""
    if isinstance(document, list):
        for entry in document:
            yield from _find_instances(entry)
    elif isinstance(document, dict) and "InstanceId" in document:
        yield document
    elif isinstance(document, dict):
        for key in ("Reservations", "Instances"):
            yield from _find_instances(document.get(key, []))


def _state(instance: dict[str, Any]) -> str:
    state = instance.get("State")
    return str(state.get("Name", "unknown")) if isinstance(state, dict) else "unknown"


def _address_of(instance: dict[str, Any], address: AddressKind) -> str | None:
    keys = (
        ("PrivateIpAddress", "PrivateDnsName")
        if address == "private"
        else ("PublicDnsName", "PublicIpAddress")
    )
    names = [instance.get(key) for key in keys]
    return next((name for name in names if isinstance(name, str) and re.fullmatch(HOST, name)), None)

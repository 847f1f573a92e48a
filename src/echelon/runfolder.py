"""The run folder: the only place that knows its file names.

runs/NAME/
  recipe.toml                  the resolved recipe
  provenance.json              command, versions, git commit and diff, hosts; one entry a start
  data.json                    where the prepared data lies, and its content key
  tokeniser.model              a copy, so that the folder translates on its own
  images.json                  of image classification: names of classes, and how pictures are normalised
  lock                         held while the run is being trained
  exchange.json                what `train.exchange = "auto"` was found to be
  hosts.json                   the hosts it runs on, if there are several
  generations/000001.json      which of them may write here; see lease.py
  records/worker-RANK.jsonl    what each worker says, one JSON object a line
  records/launcher.jsonl       what their launcher says: failures and restarts
  records/agent-HOST.jsonl     what the agent of each of several hosts says
  logs/worker-RANK.log         what each worker prints
  logs/agent-HOST.log          what the agent of a host prints
  logs/launcher.log            what the launcher of a run in the background prints
  checkpoints/step-00001000/   see files/checkpoint_layout.py
  scores/NAME.json, .txt       scores and outputs of a set: its own test and valid, or any that `evaluate` was given
  scores/NAME.references       what the outputs should have been, a line each
  tensorboard/                 event files
  notes.json                   tags and a note that a reader of the dashboard has given it
  trackers.json                by which names other trackers know the run
  report.html                  the demo's report
  rendezvous/                  how processes of a site's launcher find each other while they start
  job.sbatch, slurm-JOB.log    what was submitted to SLURM, and what its jobs print
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import json
import math
import os
import re
import shutil
import socket
import stat
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.errors import RunError, UserError

LOOK_S = 0.5
"""Longer than a process that only asks whether a lock is free holds it."""
_BY_OTHERS = 0o007
_HALF_CHARACTER = re.compile("\\\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""Finds whole characters that JSON has written in two halves, too."""
_KEY_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\[^\n])*+"?|'[^'\n]*+'?)"""
_TOML_TOKEN = re.compile(
    rf"""
    \#[^\n]*+                                          # a comment
    | \"{{3}}(?:[^"\\]|\\.|"(?!""))*+(?:\"{{3}})?        # a text of several lines
    | '{{3}}(?:[^']|'(?!''))*+(?:'{{3}})?
    | (?P<key>{_KEY_PART}(?:[ \t]*+\.[ \t]*+{_KEY_PART})*+)  # a key, or a value
    """,
    re.VERBOSE | re.DOTALL,
)
"""Consumes comments and texts whole, so that dots in them are not taken for those of a key."""
_LONGEST_KEY = 100
"""Parts of a dotted key; no recipe's has ten."""

RUNS = Path("runs")
"""Where runs are, unless the user names another folder."""
_NUMBERED = ("agent-*.lock", "mirror-*.json", "slurm-*.log")
"""Names in a run folder with a number in them, as glob patterns."""
MOST_TAGS, MOST_TAG, MOST_NOTE = 20, 40, 4000
"""Tags of a run, characters of a tag and of a note."""
MOST_BYTES = 2**26
"""The largest file that is read as a whole. Our JSON and TOML files are far smaller."""


class RunFolder:
    """One training run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.toml"
        self.provenance = path / "provenance.json"
        self.data = path / "data.json"
        self.tokeniser = path / "tokeniser.model"
        self.images = path / "images.json"
        self.lock_file = path / "lock"
        self.records = path / "records"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.scores = path / "scores"
        self.tensorboard = path / "tensorboard"
        self.trackers = path / "trackers.json"
        self.notes = path / "notes.json"
        self.report = path / "report.html"
        self.hosts = path / "hosts.json"
        self.exchange = path / "exchange.json"
        self.generations = path / "generations"
        self.rendezvous = path / "rendezvous"
        self.sbatch = path / "job.sbatch"

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def start_files(self) -> tuple[Path, ...]:
        """What workers need before there are checkpoints: a launcher sends it to hosts that do not see its folder."""
        return self.recipe, self.data, self.tokeniser, self.images, self.provenance, self.hosts

    @property
    def launcher_records(self) -> Path:
        return self.records / "launcher.jsonl"

    @property
    def launcher_log(self) -> Path:
        """What `train --detach` would have shown on the screen."""
        return self.logs / "launcher.log"

    def worker_records(self, rank: int) -> Path:
        return self.records / f"worker-{rank}.jsonl"

    def worker_log(self, rank: int) -> Path:
        return self.logs / f"worker-{rank}.log"

    def agent_records(self, host: int) -> Path:
        return self.records / f"agent-{host}.jsonl"

    def agent_log(self, host: int) -> Path:
        return self.logs / f"agent-{host}.log"

    def agent_lock(self, host: int) -> Path:
        return self.path / f"agent-{host}.lock"

    def agent_locks(self) -> list[Path]:
        """The locks of agents that have been at work in this folder."""
        return sorted(self.path.glob("agent-*.lock"))

    def mirror_state(self, host: int) -> Path:
        """How much of a host's records and logs has come back to a launcher that does not share its folder."""
        return self.path / f"mirror-{host}.json"

    def score_file(self, split: str) -> Path:
        return self.scores / f"{split}.json"

    def outputs_file(self, split: str) -> Path:
        return self.scores / f"{split}.txt"

    def references_file(self, split: str) -> Path:
        return self.scores / f"{split}.references"

    def create(self) -> None:
        """Make the folder and its subfolders if they are missing; RunError if a name of ours is a link or a device."""
        self.refuse_links()
        for folder in (self.path, self.records, self.logs, self.checkpoints, self.scores):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise RunError(
                    f"{folder}: cannot be made: {error.strerror}; choose another with --run"
                ) from None
        for file in (self.lock_file, *self.records.iterdir(), *self.logs.iterdir()):
            if file.exists() and not file.is_file() and not file.is_dir():
                raise RunError(f"{file}: is a device, and a run writes only into files; remove it")

    def refuse_links(self) -> None:
        """RunError if anything that we name here, or an entry of a folder that we name, is a link.

        A folder from somebody else must not lead our writing, renaming and removing elsewhere.
        """
        for path in self._own_paths():
            for found in (path, *_entries(path)):
                if found.is_symlink():
                    raise RunError(
                        f"{found}: is a link, and a run writes only into files and folders of its own; remove it"
                    )

    def _own_paths(self) -> Iterator[Path]:
        """Every name that this class knows directly in the run folder: its attributes, and those with a number."""
        yield from (path for path in vars(self).values() if path != self.path)
        for pattern in _NUMBERED:
            yield from self.path.glob(pattern)

    def require(self) -> RunFolder:
        """This folder, if it holds a run of its own; RunError otherwise."""
        if not self.recipe.is_file():
            raise RunError(f"{self.path}: there is no run here (no {self.recipe.name}){self._also_missing()}")
        self.refuse_links()
        return self

    def _also_missing(self) -> str:
        """Where else a run of a plain name was looked for, and the run that may have been meant."""
        nor = f", nor in {RUNS / self.path.name}" if self.path.absolute().parent == Path.cwd() else ""
        near = suggest_run(self.path, RUNS if nor else self.path.parent)
        return f"{nor}{near} (`echelon runs` lists runs)" if near else f"{nor}; `echelon runs` lists runs"

    @contextlib.contextmanager
    def lock(self, *, with_others: bool = False) -> Iterator[int]:
        """Keep other starts of this run out; yields the descriptor, which workers inherit and so keep locked.

        The agents of several hosts hold the lock of a folder that they share `with_others`. The operating system
        releases the lock when the last process that holds the descriptor ends, so a killed run leaves nothing to clean
        up. Raises RunError if the run is being trained already.
        """
        try:
            descriptor = open_no_link(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise RunError(f"{self.lock_file}: cannot be used as the run's lock: {error.strerror}") from None
        try:
            kind = fcntl.LOCK_SH if with_others else fcntl.LOCK_EX
            if not take_lock(descriptor, kind, LOOK_S):
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
                raise RunError(
                    f"{self.path}: is being trained already, by {holder}; `echelon watch {self.path}` follows it, "
                    f"`echelon stop {self.path}` saves and stops it, and --run begins another"
                )
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            yield descriptor
        finally:
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Whether the run is being trained now."""
        try:
            with open(self.lock_file, "rb+", opener=open_no_link) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False  # no lock, or something that `lock` refuses too
        return False


@dataclass(frozen=True)
class RunNotes:
    """What users have noted about a run."""

    tags: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        """UserError if it is more than a few words for each tag and a page for the note."""
        if len(self.tags) > MOST_TAGS or any(not 0 < len(tag) <= MOST_TAG for tag in self.tags):
            raise UserError(f"a run has at most {MOST_TAGS} tags, each of at most {MOST_TAG} characters")
        if len(self.note) > MOST_NOTE:
            raise UserError(f"a note has at most {MOST_NOTE:,} characters")

    @classmethod
    def read(cls, run: RunFolder) -> RunNotes:
        """Both None if nothing was written, or the file is damaged."""
        try:
            match read_json(run.notes):
                case {"tags": [*tags], "note": str(note)}:
                    return cls(tuple(map(str, tags)), note)
        except (OSError, ValueError, UserError):
            pass
        return cls()

    def write(self, run: RunFolder) -> None:
        """Keep them in the run's folder; RunError if that cannot be."""
        run.require()
        try:
            write_json(run.notes, {"tags": list(self.tags), "note": self.note})
        except OSError as error:
            raise RunError(f"{run.notes}: cannot be written: {error.strerror}") from None


def _entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it is none, or a link to one."""
    try:
        return [] if folder.is_symlink() else list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunError(f"{folder}: cannot be read: {error.strerror}") from None


def take_lock(descriptor: int, kind: int, patience_s: float = 0.0) -> bool:
    """Lock a file, `kind` being flock's; False if another process still holds it after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` in one move: readers and crashes see the old file or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode() if isinstance(content, str) else content
    try:
        temporary.unlink(missing_ok=True)  # of a killed process that had our number
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)


def open_regular(path: str | Path, flags: int) -> int:
    """An `opener` of regular files only. A folder from somebody else may hold a FIFO, whose other end never comes, or
    lead to a device, which has no end or acts when it is opened; both are an OSError."""
    with contextlib.suppress(FileNotFoundError):
        require_regular(path)
    return os.open(path, flags | os.O_NONBLOCK, 0o644)  # if a FIFO takes its place now


def open_no_link(path: str | Path, flags: int) -> int:
    """The same for files that are written: it follows no symbolic link, which would lead our writing elsewhere."""
    return open_regular(path, flags | os.O_NOFOLLOW)


def require_regular(path: str | Path, most_bytes: int | None = None) -> int:
    """The size of a regular file; OSError if it is another thing, or has more than `most_bytes`."""
    found = os.stat(path)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if most_bytes is not None and found.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes:,} bytes", str(path))
    return found.st_size


def read_file(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file; OSError if it cannot be read, is another thing, or has more than `most_bytes`."""
    size = require_regular(path, most_bytes)
    with open(path, "rb", opener=open_regular) as file:
        return file.read(size)


def read_private(path: Path) -> str:
    """A file with secrets; UserError if it cannot be read, or if other users can read it."""
    try:
        if path.stat().st_mode & _BY_OTHERS:
            raise UserError(f"{path}: every user of this machine may use it; chmod o-rwx {path}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not a text file") from None


def read_json(path: Path) -> Any:
    """The value in a JSON file; OSError if it cannot be read, ValueError if it is not JSON."""
    return parse_json(read_file(path))


def parse_json(text: bytes | str) -> Any:
    """Like `json.loads`, but any problem with the text, endless nesting too, is a ValueError.

    So is half a character (`"\\ud800"`), which Python reads and then can neither print, send nor write.
    """
    try:
        whole = text.decode(json.detect_encoding(text)) if isinstance(text, bytes) else text
        value = json.loads(whole)
        # Looked for only if it can be there: the search takes as long as reading the JSON.
        if ("\\u" in whole or not whole.isascii()) and _HALF_CHARACTER.search(whole):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """Like `tomllib.loads`, but RecursionError for a key of very many parts, before it is read.

    Python's reader takes minutes for 50 kB of `a.a.a.a = 1`: it compares each part of a key with all before it.
    """
    if text.count(".") >= _LONGEST_KEY:
        for token in _TOML_TOKEN.finditer(text):
            key = token["key"]
            if key and key.count(".") >= _LONGEST_KEY and len(re.findall(_KEY_PART, key)) > _LONGEST_KEY:
                raise RecursionError(f"a key has more than {_LONGEST_KEY} parts")
    return tomllib.loads(text)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, to_json(value, indent=2) + "\n")


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: infinity and NaN, which JSON does not have, become null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def sync_to_disk(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_folder(folder: Path) -> None:
    """Remove a folder so that no half of it is ever found under its name."""
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.removed")
    folder.rename(doomed)
    shutil.rmtree(doomed)


def finish_removals(folder: Path) -> None:
    """Remove what a killed `remove_folder` left in `folder`, unless another process is removing it."""
    for doomed in folder.glob(".*.removed"):
        shutil.rmtree(doomed, ignore_errors=True)


def find_run(given: str | Path) -> RunFolder:
    """The run that a user names by its path, or by its name in `runs/`; it need not exist."""
    path = Path(given)
    is_name = path.name == str(given) and not RunFolder(path).recipe.is_file()
    return RunFolder(RUNS / path if is_name and RunFolder(RUNS / path).recipe.is_file() else path)


def suggest_run(path: Path, folder: Path) -> str:
    """The end of the error for a missing run: the run in `folder` whose name is most similar, if one is."""
    near = difflib.get_close_matches(path.name, [run.name for run in list_runs(folder)], n=1)
    return f"; did you mean {folder / near[0]}?" if near else ""


def list_runs(folder: Path) -> list[RunFolder]:
    """The runs below `folder`, by name; not those that are being removed, whose names begin with a dot."""
    if not folder.is_dir():
        return []
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    # A folder with nothing but a recipe.toml is a recipe, not a run.
    return [run for run in map(RunFolder, visible) if run.recipe.is_file() and run.checkpoints.is_dir()]

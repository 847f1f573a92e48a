"""Whatever lies in a run folder, a checkpoint or a cache, opening it runs nothing and leads nowhere else."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from echelon import cli
from echelon.data.prepared import open_prepared
from echelon.errors import DataError, EchelonError
from echelon.runfolder import RunFolder, write_atomically
from tests.conftest import RECIPE, write_toy_corpus
from tests.integration.damage import SIDECAR, good_checkpoints, set_trap

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Place:
    """A finished run, the cache its data lie in, and the recipe they came from."""

    folder: Path

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe.toml"

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "runs" / "toy")

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def marker(self) -> Path:
        """What a payload makes when it is run."""
        return self.folder / "it-ran"

    def files(self) -> list[str]:
        """Every file of the run and the cache, relative to the folder."""
        found = [*self.run.path.rglob("*"), *self.cache.rglob("*")]
        return sorted(str(path.relative_to(self.folder)) for path in found if path.is_file())


def train(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "echelon", "train", str(place.recipe), "--run", str(place.run.path)]
    environment = {**os.environ, "ECHELON_CACHE": str(place.cache), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("finished") / "place")
    place.folder.mkdir()
    for name, lines, seed in (("train", 300, 1), ("valid", 4, 2), ("test", 4, 3)):
        write_toy_corpus(place.folder, name, lines, seed)
        for side in ("en", "de"):  # settled, so that their digests are remembered
            os.utime(place.folder / f"{name}.{side}", (1e9, 1e9))
    text = RECIPE.replace("steps = 30", "steps = 6").replace(
        "[checkpoint]\nevery = 1000", "[checkpoint]\nevery = 3"
    )
    place.recipe.write_text(text.replace("[evaluate]\nevery = 1000", "[evaluate]\nevery = 3"))
    result = train(place)
    assert result.returncode == 0, result.stderr
    return place


@pytest.fixture
def place(finished: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The finished run, at the same path every time as data.json names it; put back afterwards as it was."""
    kept = finished.folder.with_name("kept")
    shutil.copytree(finished.folder, kept, symlinks=True)
    monkeypatch.setenv("ECHELON_CACHE", str(finished.cache))
    yield finished
    shutil.rmtree(finished.folder)
    kept.rename(finished.folder)


class Exploit:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._marker,)


def plain_pickle(marker: Path) -> bytes:
    return pickle.dumps(Exploit(marker))


def torch_file(marker: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(2), "step": Exploit(marker)}, file)
    assert zipfile.is_zipfile(file)
    return file.getvalue()


def object_array(marker: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([Exploit(marker)], dtype=object), allow_pickle=True)
    return file.getvalue()


def deep_json(_: Path) -> bytes:
    return b"[" * 200_000 + b"\n"


def yaml_bomb(_: Path) -> bytes:
    lines = ["a: &a ['!!python/object/apply:os.system', x]"]
    lines += [
        f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]"
        for one, two in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    return "\n".join(lines).encode()


def other_shapes(_: Path) -> bytes:
    """JSON that is valid, and nothing that anybody expects there."""
    return b'{"format": 1, "kind": ["start"], "key": [], "folder": 7, "step": "x", "best": 3, "bleu": {}}\n'


def a_list(_: Path) -> bytes:
    return b'[{"kind": "step", "step": {}, "time": "now"}]\n'


OTHER_PAYLOADS = (torch_file, object_array, yaml_bomb, other_shapes, a_list)
VERBS = ("evaluate", "translate", "runs", "status", "describe", "prepare")


def run_verb(
    verb: str, place: Place, monkeypatch: pytest.MonkeyPatch, arguments: list[str] | None = None
) -> int:
    """Run a verb in this process, quicker than in one of its own; its exit status."""
    arguments = (
        arguments
        or {
            "evaluate": [str(place.run.path)],
            "translate": [str(place.run.path)],
            "runs": [str(place.run.path.parent)],
            "status": [str(place.run.path)],
            "describe": [str(place.recipe)],
            "prepare": [str(place.recipe)],
        }[verb]
    )
    monkeypatch.setattr(sys, "argv", ["echelon", verb, *arguments])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one two\n")))
    with pytest.raises(SystemExit) as exit:
        cli.main()
    return int(exit.value.code or 0)


def plant(file: Path, payload: bytes) -> None:
    """Put a payload in a file's place; where it has a sidecar, one that says that all is well."""
    file.write_bytes(payload)
    sidecar = file.with_name(file.name + SIDECAR)
    if sidecar.exists():
        seal = {"xxh3_128": xxhash.xxh3_128(payload).hexdigest(), "bytes": len(payload)}
        sidecar.write_text(json.dumps(seal))


def digests(place: Place, *names: str) -> dict[str, str]:
    return {name: hashlib.sha256((place.folder / name).read_bytes()).hexdigest() for name in names}


@pytest.mark.parametrize(
    "payload",
    [plain_pickle, deep_json, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHER_PAYLOADS)],
    ids=lambda payload: payload.__name__,
)
def test_no_verb_runs_what_was_planted_in_any_file(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    payload: Callable[[Path], bytes],
) -> None:
    content = payload(place.marker)
    for name in place.files():
        file = place.folder / name
        sidecar = file.with_name(file.name + SIDECAR)
        before = {path: path.read_bytes() for path in (file, sidecar) if path.exists()}
        others = [
            other for other in place.files() if other.startswith(("runs/toy/checkpoints", "cache/prepared"))
        ]
        plant(file, content)
        kept = digests(place, *others)
        for verb in VERBS:
            status = run_verb(verb, place, monkeypatch)
            said = capsys.readouterr()
            where = f"{verb} with {payload.__name__} as {name}:\n{said.err}"
            assert status in (0, 1, 2), where
            assert "bug" not in said.err, where
            assert "Traceback" not in said.err, where
            assert status == 0 or "error: " in said.err, where
            assert not place.marker.exists(), where
        assert digests(place, *others) == kept, f"{name}: checkpoints and data stay as they were"
        for path, good in before.items():
            path.write_bytes(good)


@pytest.mark.parametrize("trap", ["fifo", "device", "huge"])
def test_no_verb_waits_for_ever_or_fills_memory(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trap: str
) -> None:
    """Whatever file of a run is a FIFO, leads to a device without end, or is larger than memory."""
    run = str(place.run.path)
    verbs = {
        "report": [run],
        "compare": [run, run],
        "watch": [run],
        "stop": [run],
        "export": [run, "--to", "x"],
    }
    monkeypatch.chdir(place.folder)
    for name in [name for name in place.files() if name.startswith("runs/")]:
        file = place.folder / name
        before = file.read_bytes()
        set_trap(file, trap)
        sidecar = file.with_name(file.name + SIDECAR)
        if sidecar.exists():
            sidecar.write_text(json.dumps({"xxh3_128": "0" * 32, "bytes": file.stat().st_size}))
        for verb in ("evaluate", "translate", "runs", "status", *verbs):
            signal.alarm(60)
            status = run_verb(verb, place, monkeypatch, verbs.get(verb))
            signal.alarm(0)
            said = capsys.readouterr()
            where = f"{verb} with a {trap} as {name}:\n{said.err}"
            assert status in (0, 1, 2), where
            assert "bug in Echelon" not in said.err, where
        file.unlink()
        plant(file, before)
        shutil.rmtree(place.folder / "x", ignore_errors=True)


def test_the_exploits_work_on_whoever_unpickles_them(tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    loads: list[Callable[[], Any]] = [
        lambda: pickle.loads(plain_pickle(marker)),
        lambda: torch.load(io.BytesIO(torch_file(marker)), weights_only=False),
        lambda: np.load(io.BytesIO(object_array(marker)), allow_pickle=True),
    ]
    for load in loads:
        load()
        assert marker.exists()
        marker.unlink()


@pytest.mark.slow
def test_training_runs_nothing_of_what_was_planted(place: Place) -> None:
    """In the newest checkpoint, sealed as if it were good: what cannot be loaded is named, and nothing is lost."""
    newest = good_checkpoints(place.run.checkpoints)[-1]
    for file in sorted(newest.glob("*.safetensors")):
        before = file.read_bytes()
        plant(file, torch_file(place.marker))
        result = train(place)
        assert result.returncode in (0, 1), result.stderr
        assert "Traceback" not in result.stderr
        assert "bug in Echelon" not in result.stderr
        assert not place.marker.exists()
        if newest.is_dir():
            plant(file, before)
    result = train(place)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("payload", [plain_pickle, other_shapes], ids=lambda payload: payload.__name__)
def test_training_survives_a_payload_in_any_file(
    finished: Place, tmp_path: Path, payload: Callable[[Path], bytes]
) -> None:
    """The same for every file: training says what is wrong, or goes on from an older checkpoint to the end."""
    kept = tmp_path / "kept"
    shutil.copytree(finished.folder, kept)
    for name in finished.files():
        if "/logs/" in name or name.endswith((".tokens", ".lengths", ".offsets", ".text")):
            continue  # numbers and text as they are: there is nothing in them to be understood
        plant(finished.folder / name, payload(finished.marker))
        result = train(finished)
        where = f"{payload.__name__} as {name}:\n{result.stderr}"
        assert result.returncode in (0, 1, 2), where
        assert "Traceback" not in result.stderr, where
        assert "bug in Echelon" not in result.stderr, where
        assert not finished.marker.exists(), where
        shutil.rmtree(finished.folder)
        shutil.copytree(kept, finished.folder)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "a/b", "..", "", ".hidden", "train-0\n.tokens"])
def test_a_manifest_that_names_files_elsewhere_is_refused(place: Place, name: str) -> None:
    (manifest,) = place.cache.glob("prepared/*/manifest.json")
    content = json.loads(manifest.read_text())
    content["files"][0]["name"] = name
    manifest.write_text(json.dumps(content))
    with pytest.raises(DataError, match="cannot be one of its own"):
        open_prepared(manifest.parent)


def test_a_corpus_whose_name_leads_elsewhere_is_refused(place: Place) -> None:
    (manifest,) = place.cache.glob("prepared/*/manifest.json")
    content = json.loads(manifest.read_text())
    content["corpora"][0]["name"] = "train-../../x"
    manifest.write_text(json.dumps(content))
    with pytest.raises(DataError, match="disagree"):
        open_prepared(manifest.parent)


@pytest.mark.parametrize("folder", ["cache", "../cache", "{cache}/../cache/prepared/{key}"])
def test_data_json_names_a_plain_absolute_path(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    key = json.loads(place.run.data.read_text())["key"]
    folder = folder.format(cache=place.cache, key=key)
    place.run.data.write_text(json.dumps({"folder": folder, "key": key}))
    assert run_verb("evaluate", place, monkeypatch) == 2
    assert "not a plain absolute path" in capsys.readouterr().err


def test_data_json_names_the_data_that_the_run_was_begun_with(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = json.loads(place.run.data.read_text())
    place.run.data.write_text(json.dumps(named | {"key": "0" * 64}))
    assert run_verb("evaluate", place, monkeypatch) == 2
    assert "holds other data" in capsys.readouterr().err


def test_a_link_in_a_checkpoint_is_not_followed(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not for a file, a sidecar or the folder: what was checked could be another file when it is read."""
    from echelon.train.checkpoint import list_checkpoints

    older, newest = good_checkpoints(place.run.checkpoints)
    for file in sorted(newest.iterdir()):
        aside = place.folder / file.name
        file.rename(aside)
        file.symlink_to(aside)
        assert [found.folder for found in list_checkpoints(place.run.checkpoints)] == [older], file.name
        assert run_verb("translate", place, monkeypatch) == 0, capsys.readouterr().err
        file.unlink()
        aside.rename(file)
    newest.rename(place.folder / newest.name)
    newest.symlink_to(place.folder / newest.name)
    assert [found.folder for found in list_checkpoints(place.run.checkpoints)] == [older]


def test_a_state_of_another_step_is_refused(place: Place) -> None:
    from echelon.train.checkpoint import list_checkpoints

    _, newest = good_checkpoints(place.run.checkpoints)
    state = json.loads((newest / "state.json").read_text())
    plant(newest / "state.json", json.dumps(state | {"step": 10**9}).encode())
    with pytest.raises(EchelonError, match="it is of step 1000000000"):
        list_checkpoints(place.run.checkpoints)[-1].load_state()


@pytest.mark.parametrize("name", ["lock", "records/worker-0.jsonl", "logs/worker-0.log"])
def test_training_never_writes_through_a_link(place: Place, name: str) -> None:
    """A run folder from somebody else may hold links to files of ours; the lock's used to be emptied."""
    precious = place.folder / "precious"
    precious.write_text("do not touch")
    link = place.run.path / name
    link.unlink()
    link.symlink_to(precious)
    result = train(place)
    assert precious.read_text() == "do not touch"
    assert result.returncode in (1, 2), result.stderr
    assert "Traceback" not in result.stderr
    assert link.name in result.stderr


def test_a_temporary_name_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    precious, target = tmp_path / "precious", tmp_path / "file"
    precious.write_text("do not touch")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(precious)
    write_atomically(target, "new")
    assert (precious.read_text(), target.read_text()) == ("do not touch", "new")


@pytest.mark.parametrize("verb", ["status", "watch", "attach", "stop"])
def test_a_stranger_s_hosts_json_runs_nothing_until_its_reader_accepts_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """It names the command that starts Python on a host, and `localhost` is this machine."""
    monkeypatch.setenv("HOME", str(place.folder / "home"))
    host = {"name": "localhost", "address": "127.0.0.1", "interface": "lo", "workers": 1}
    python = ["sh", "-c", f'touch {place.marker}; echo \'{{"is_running": false, "was_running": false}}\'']
    entry = {"host": host, "python": python, "sees_our_folder": True}
    place.run.hosts.write_text(json.dumps({"launcher": "x", "ssh_config": None, "entries": [entry]}))
    monkeypatch.setattr(sys, "argv", ["echelon", verb, str(place.run.path)])
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert "says what to run on which hosts" in capsys.readouterr().err
    assert not place.marker.exists()
    monkeypatch.setattr(sys, "argv", ["echelon", "status", str(place.run.path), "--trust-hosts"])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    assert place.marker.exists(), "it would have run"


def test_a_damaged_provenance_is_put_aside_and_training_goes_on(place: Place) -> None:
    place.run.provenance.write_bytes(b"[" * 5000)
    assert train(place).returncode == 0
    assert len(json.loads(place.run.provenance.read_text())) == 1
    (aside,) = place.run.path.glob("damaged-*provenance.json")
    assert aside.read_bytes() == b"[" * 5000


FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
}
FORBIDDEN_DOTTED = {
    "torch.load",
    "torch.package",
    "torch.hub",
    "torch.jit.load",
    "torch.distributed.checkpoint",
    "torch.distributed.rpc",
    "torch.distributed.elastic.rendezvous",
    "numpy.load",
    "numpy.lib.format",
    "os.system",
    "os.popen",
}
FORBIDDEN_ANYWHERE = {
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
    "allow_pickle",
    "weights_only",
    "fromstring",
}
HARMLESS = {
    *("yaml", "yaml.safe_load", "yaml.YAMLError", "yaml.dump", "yaml.SafeDumper", "yaml.ScalarNode"),
    *("yaml.parse", "yaml.AliasEvent"),  # events, of which nothing is constructed
}
"""Of a forbidden module: makes plain values only, or writes and reads nothing."""
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}


def forbidden_in(text: str) -> set[str]:
    """Names in a source file by which bytes from elsewhere could become code."""
    tree = ast.parse(text)
    aliases: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {
                alias.asname or alias.name.split(".")[0]: alias.name
                if alias.asname
                else alias.name.split(".")[0]
                for alias in node.names
            }
            found |= {alias.name for alias in node.names if is_forbidden(alias.name)}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            aliases |= names
            found |= {name for name in names.values() if is_forbidden(name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = dotted(node, aliases)
            found |= {name} if is_forbidden(name) or node.attr in FORBIDDEN_ANYWHERE else set()
        elif isinstance(node, ast.Call):
            found |= (
                {node.func.id}
                if isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS
                else set()
            )
            for keyword in node.keywords:
                is_shell = keyword.arg == "shell" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                )
                found |= {str(keyword.arg)} if is_shell or keyword.arg in FORBIDDEN_ANYWHERE else set()
    return found - HARMLESS


def is_forbidden(name: str) -> bool:
    is_module = name.split(".", maxsplit=1)[0] in FORBIDDEN_MODULES
    is_below = any(f"{name}.".startswith(f"{forbidden}.") for forbidden in FORBIDDEN_DOTTED)
    return is_module or is_below or name.rsplit(".", maxsplit=1)[-1] in FORBIDDEN_ANYWHERE


def dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """`np.load` -> `numpy.load`; empty where it does not begin with a name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, aliases)}.{node.attr}"
    return ""


@pytest.mark.parametrize("path", sorted((SOURCE / "echelon").rglob("*.py")), ids=lambda path: path.name)
def test_no_source_file_can_turn_bytes_into_code(path: Path) -> None:
    assert forbidden_in(path.read_text()) == set()


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import dill as d",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x')",
        "from torch import load",
        "import numpy as np\nnp.load('x')",
        "numpy.memmap('x', allow_pickle=True)",
        "import torch.distributed as dist\ndist.all_gather_object([], 1)",
        "from torch.distributed import broadcast_object_list",
        "import torch.distributed.checkpoint as dcp",
        "from torch.distributed import rpc",
        "from torch.distributed import checkpoint",
        "import yaml\nyaml.load('x')",
        "subprocess.run('x', shell=True)",
        "subprocess.run('x', shell=flag)",
        "eval('1')",
        "exec('1')",
        "compile('1', 'x', 'exec')",
        "import os\nos.system('x')",
    ],
)
def test_the_reader_of_sources_sees_each_way(text: str) -> None:
    assert forbidden_in(text) != set()


def test_the_reader_of_sources_lets_the_harmless_pass() -> None:
    text = (
        "import re, json\nre.compile('x')\njson.loads('1')\nmodel.eval()\nsubprocess.run(['x'], shell=False)"
    )
    assert forbidden_in(text) == set()

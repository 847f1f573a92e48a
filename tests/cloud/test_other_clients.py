"""What other providers' own clients make of what is rendered for them. Each has an environment of its own: they need
older versions of what Echelon needs."""

from __future__ import annotations

import itertools
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from echelon.cloud.cluster_spec import parse_spec
from echelon.cloud.ibm import IbmSpec, render_commands
from echelon.cloud.skypilot import SkyProvider, TaskFiles, render_task
from tests.cloud.test_renders import IBM, task_spec

pytestmark = pytest.mark.slow
Ask = Callable[[str, str, Any], Any]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """ask(package, program, question): what a program prints as JSON that reads JSON, with a package installed."""

    def run(package: str, program: str, question: Any) -> Any:
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
        python = tmp_path / "env" / "bin" / "python"
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
        if subprocess.run(install, check=False).returncode:
            pytest.skip(f"pip install {package} did not work")
        told = json.dumps(question)
        answer = subprocess.run(
            [python, "-c", program], input=told, stdout=subprocess.PIPE, text=True, check=True
        )
        return json.loads(answer.stdout)

    return run


ORDER = """
import json, sys
from unittest.mock import MagicMock
from SoftLayer.managers.vs import VSManager
print(json.dumps(VSManager(MagicMock())._generate_create_dict(**json.load(sys.stdin))))
"""


def test_ibms_own_client_takes_the_options(ask: Ask) -> None:
    line = render_commands(parse_spec(IBM, IbmSpec, "ibm.toml")).splitlines()[1]
    words = shlex.split(line)[4:]
    given = {
        name.removeprefix("--"): value for name, value in itertools.pairwise(words) if name.startswith("--")
    }
    options = {
        "hostname": given["hostname"],
        "domain": given["domain"],
        "datacenter": given["datacenter"],
        "flavor": given["flavor"],
        "image_id": given["image"],
        "hourly": given["billing"] == "hourly",
        "nic_speed": int(given["network"]),
        "ssh_keys": [int(given["key"])],
        "local_disk": "--san" not in words,
    }
    order = ask("softlayer", ORDER, options)
    assert order["hostname"] == "v100-0"
    assert order["supplementalCreateObjectOptions"] == {"bootMode": None, "flavorKeyName": "AC2_16X120X100"}
    assert order["hourlyBillingFlag"] is True


LOAD = """
import json, sys
import sky
from sky.skylet import constants
files = json.load(sys.stdin)
tasks = [sky.Task.from_yaml(file) for file in files]
kept = [[t.name, t.num_nodes, [str(r.cloud).lower() for r in t.resources], t.workdir, t.file_mounts] for t in tasks]
print(json.dumps({"tasks": kept, "clouds": sorted(constants.ALL_CLOUDS)}))
"""


def test_skypilot_itself_loads_the_task_for_every_provider(ask: Ask, tmp_path: Path) -> None:
    wheel = tmp_path / "echelon_train-1-py3-none-any.whl"
    wheel.touch()
    changes: list[dict[str, Any]] = [
        *({"provider": provider} for provider in get_args(SkyProvider)),
        {"spot": True, "count": 2, "region": "us-east-1", "tags": {"team": "nlp"}, "budget": 50},
        {"container": "echelon:1"},
        {"type": None, "gpus": "A100:8"},
    ]
    files = [tmp_path / f"{number}.yaml" for number in range(len(changes))]
    for file, change in zip(files, changes, strict=True):
        file.write_text(render_task(task_spec(**change), TaskFiles("recipe.toml", tmp_path, wheel)))
    answer = ask("skypilot", LOAD, [str(file) for file in files])
    assert answer["clouds"] == sorted(get_args(SkyProvider))
    assert [name for name, *_ in answer["tasks"]] == ["wmt"] * len(changes)
    assert [nodes for _, nodes, *_ in answer["tasks"]] == [change.get("count", 1) for change in changes]
    assert all(mounts == {f"~/{wheel.name}": str(wheel)} for *_, mounts in answer["tasks"])

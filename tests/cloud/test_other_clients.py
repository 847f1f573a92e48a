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
from typing import Any

import pytest
import yaml

from echelon.cloud.ibm import IbmSpec, render_commands
from echelon.cloud.skypilot import render_task
from echelon.cloud.spec import parse_spec
from tests.cloud.clusters import sample_spec
from tests.cloud.test_renders import IBM

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


VALIDATE = """
import json, sys
import jsonschema
from sky.utils import schemas
tasks = json.load(sys.stdin)
for task in tasks:
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())
print(len(tasks))
"""


def test_skypilots_own_schema_takes_the_task(ask: Ask) -> None:
    changes: list[dict[str, Any]] = [{}, {"spot": True, "count": 1}, {"container": "echelon:1"}]
    tasks = [yaml.safe_load(render_task(sample_spec(**change))) for change in changes]
    assert ask("skypilot", VALIDATE, tasks) == len(changes)

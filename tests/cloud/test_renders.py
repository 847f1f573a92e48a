"""What other providers are told: golden texts, and what their own packages make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from echelon.cloud.ai_platform import convert
from echelon.cloud.ibm import IbmSpec, render_commands
from echelon.cloud.skypilot import render_task
from echelon.cloud.spec import load_spec, parse_spec
from echelon.cloud.vertex import VertexSpec
from echelon.commands.rendering import convert_ai_platform
from echelon.errors import UserError
from tests.cloud.clusters import sample_spec

IBM = {"name": "v100", "flavor": "AC2_16X120X100", "domain": "example.org", "image": 22, "key": 33}


def test_ibms_commands() -> None:
    text = render_commands(parse_spec(IBM, IbmSpec, "ibm.toml"))
    assert text == (
        "# Make the servers; each costs from now on.\n"
        "ibmcloud sl vs create --hostname v100-0 --domain example.org --datacenter dal10 --flavor AC2_16X120X100 "
        "--image 22 --billing hourly --network 1000 --key 33 --san --force\n"
        "ibmcloud sl vs create --hostname v100-1 --domain example.org --datacenter dal10 --flavor AC2_16X120X100 "
        "--image 22 --billing hourly --network 1000 --key 33 --san --force\n"
        "# Wait until they run, and see their addresses.\n"
        "ibmcloud sl vs list --domain example.org\n"
        "# Put their names into ~/.ssh/config, then:\n"
        "#   echelon train RECIPE --hosts root@v100-0.example.org,root@v100-1.example.org --install --sync\n"
        "# Cancel them; until then they cost.\n"
        "for id in $(ibmcloud sl vs list --hostname v100-0 --domain example.org --column id | grep -o '[0-9][0-9]*'); "
        'do ibmcloud sl vs cancel "$id" --force; done\n'
        "for id in $(ibmcloud sl vs list --hostname v100-1 --domain example.org --column id | grep -o '[0-9][0-9]*'); "
        'do ibmcloud sl vs cancel "$id" --force; done\n'
    )


@pytest.mark.parametrize("domain", ["x; rm -rf /", "x\nrm -rf /", "-x", ""])
def test_ibms_words_cannot_become_commands(domain: str) -> None:
    """The domain also stands in a comment, which a new line would end."""
    with pytest.raises(UserError, match="domain"):
        parse_spec({**IBM, "domain": domain}, IbmSpec, "ibm.toml")


SKYPILOT = """\
name: wmt
num_nodes: 2
resources:
  infra: aws/us-east-1
  instance_type: g4dn.2xlarge
  use_spot: true
  disk_size: 150
  autostop:
    idle_minutes: 10
    down: true
workdir: '.'
setup: |
  python3 -m venv ~/echelon-env
  ~/echelon-env/bin/pip install ./echelon
run: |
  export ECHELON_CACHE=~/echelon-cache
  source ~/echelon-env/bin/activate
  exec echelon train recipe.toml --run ~/runs/wmt --nodes "$SKYPILOT_NUM_NODES" \\
    --node-rank "$SKYPILOT_NODE_RANK" --master "$(echo "$SKYPILOT_NODE_IPS" | head -n 1):29500" --workers 1
"""


def test_skypilots_task() -> None:
    text = render_task(sample_spec(spot=True))
    assert text == SKYPILOT
    assert yaml.safe_load(text)["run"].startswith("export")


def to_vertex(document: Any) -> tuple[VertexSpec, list[str]]:
    spec, notes = convert(document)
    head = {"name": "old", "project": "p", "image": "i", "bucket": "gs://mine"}
    return parse_spec({**head, **spec}, VertexSpec, "old.toml"), notes


def custom(kind: str) -> dict[str, Any]:
    types = {f"{role}Type": kind for role in ("master", "worker", "parameterServer")}
    return {"trainingInput": {"scaleTier": "CUSTOM", **types, "workerCount": 1}}


def test_an_old_configuration_of_plain_machines() -> None:
    spec, notes = to_vertex(custom("n1-standard-16"))
    pools = [pool for pool in spec.pools() if pool]
    assert [(pool.machine, pool.count, pool.accelerator) for pool in pools] == [
        ("n1-standard-16", 1, None)
    ] * 3
    assert any("parameter servers take part" in note for note in notes)


def test_the_file_made_from_an_old_configuration_is_read_by_cloud_render(tmp_path: Path) -> None:
    old, new = tmp_path / "cmle_config.yaml", tmp_path / "job.toml"
    old.write_text(yaml.safe_dump(custom("complex_model_m_gpu")))
    text, _ = convert_ai_platform(old)
    new.write_text(text.replace("YOUR-BUCKET", "mine"))
    spec = load_spec(new, VertexSpec)
    assert (spec.name, spec.chief.accelerators) == ("cmle-config", 4)


def test_old_gpus_that_are_gone_become_ones_that_are_there() -> None:
    spec, notes = to_vertex(custom("complex_model_m_gpu"))
    assert (spec.chief.machine, spec.chief.accelerator, spec.chief.accelerators) == (
        "n1-standard-16",
        "NVIDIA_TESLA_T4",
        4,
    )
    assert any("no K80 any more" in note for note in notes)


@pytest.mark.parametrize(
    ("tier", "counts"),
    [("BASIC", [1]), ("BASIC_GPU", [1]), ("STANDARD_1", [1, 4, 3]), ("PREMIUM_1", [1, 19, 11])],
)
def test_every_scale_tier(tier: str, counts: list[int]) -> None:
    spec, _ = to_vertex({"trainingInput": {"scaleTier": tier}})
    assert [pool.count for pool in spec.pools() if pool] == counts


def test_an_accelerator_of_its_own_a_region_and_a_time_limit() -> None:
    given = {
        "scaleTier": "CUSTOM",
        "masterType": "n1-highmem-8",
        "masterConfig": {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_V100"}},
        "region": "europe-west4",
        "scheduling": {"maxRunningTime": "7200s"},
        "surprise": 1,
    }
    spec, notes = to_vertex(given)
    assert (spec.region, spec.hours) == ("europe-west4", 2)
    assert (spec.chief.accelerator, spec.chief.accelerators) == ("NVIDIA_TESLA_V100", 2)
    assert notes == ["surprise is not understood, and left out"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (None, "no AI Platform configuration"),
        ([1], "no AI Platform configuration"),
        ({"a": 1}, "no AI Platform configuration"),
        ({"scaleTier": "BASIC_TPU"}, "BASIC_TPU"),
        ({"scaleTier": "CUSTOM"}, "needs a masterType"),
        ({"scaleTier": "CUSTOM", "masterType": "standard", "workerCount": 2}, "workerType is missing"),
        ({"scaleTier": "CUSTOM", "masterType": "standard", "workerCount": "x"}, "not a number"),
    ],
)
def test_what_is_no_such_configuration_is_refused(document: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        convert(document)

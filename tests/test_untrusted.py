"""Whatever somebody writes into a name, it stays a name: in a terminal, an ssh configuration, a shell and YAML."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from echelon.cloud.cluster_spec import ClusterSpec, parse_spec
from echelon.cloud.ibm import IbmSpec, render_commands
from echelon.cloud.inventory import Login, render_ssh_config
from echelon.cloud.journal import HostRecord
from echelon.cloud.userdata import Birth, render_user_data
from echelon.errors import HostsError, RecipeError, UserError
from echelon.launch.container import Container
from echelon.launch.hosts import parse_hosts
from echelon.launch.slurm import SbatchSpec, render_sbatch
from echelon.launch.yaml import to_yaml
from echelon.untrusted import printable, require_host, require_image, require_path, require_user, require_word

PIECES = [
    *("\n", "\r", "\t", "\0", " ", "\x1b[2J", "\x9b31m", "\x85", "\u2028", "\u202e", "\ud800", "\u00e9"),
    *(
        "'",
        '"',
        "\\",
        "`",
        "$(id)",
        "${HOME}",
        ";",
        "&&",
        "|",
        "#",
        "%h",
        "%%",
        "~",
        "*",
        "-",
        "--",
        "=",
        ":",
    ),
    *(
        "a",
        "root",
        "ubuntu",
        "/",
        "..",
        "ProxyCommand touch x",
        "Host *",
        "!!python/object:x",
        "null",
        "-oX=y",
    ),
]
"""What means something to one of the programs that read what we write."""
hostile = st.lists(st.sampled_from(PIECES), max_size=6).map("".join) | st.text(max_size=20)
many = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)
PLAIN = {"name": "wmt", "type": "g4dn.2xlarge"}


@many
@given(hostile)
def test_nothing_printable_acts_on_a_terminal(text: str) -> None:
    shown = printable(text)
    assert {unicodedata.category(c) for c in shown} & {"Cc", "Cs", "Zl", "Zp"} <= {"Cc"}
    assert {c for c in shown if unicodedata.category(c) == "Cc"} <= {"\n", "\t"}
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
    assert printable(shown) == shown
    shown.encode()


@many
@given(hostile)
def test_json_made_printable_is_the_same_json(text: str) -> None:
    document = json.dumps({"text": text}, ensure_ascii=False, indent=2)
    assert json.loads(printable(document)) == {"text": text}


def test_ordinary_text_is_left_alone() -> None:
    for text in ("Grüße, 世界! \N{SMILING FACE WITH OPEN MOUTH}\n\tשלום", "\\u001b", "a%b"):
        assert printable(text) == text


@many
@given(hostile)
@example("--")
@example("-oProxyCommand=x")
@example("ubuntu\n  ProxyCommand touch x")
@example("a\n")
def test_names_are_refused_or_mean_themselves_to_every_shell(text: str) -> None:
    for require in (require_user, require_host, require_word, require_image):
        with suppress(ValueError):
            name = require(text)
            assert name == text
            assert shlex.split(name, comments=True) == [name], "a shell reads one word"
            assert not name.startswith("-"), "a program would read an option"
            assert yaml.safe_load(to_yaml([{"name": name}])) == {"name": name}


def answers_of_ssh(config: Path, host: str) -> dict[str, list[str]]:
    """What OpenSSH makes of a configuration, without connecting."""
    command = ["ssh", "-G", "-F", str(config), "--", host]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answers: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        answers.setdefault(key, []).append(value)
    return answers


@settings(many, max_examples=60)
@given(user=hostile, key=hostile, address=hostile, name=hostile)
@example(user="ubuntu\n  ProxyCommand touch /tmp/x", key="/home/me/key", address="10.0.0.1", name="wmt")
@example(user="ubuntu", key='/home/me/key"\n  ProxyCommand touch /tmp/x', address="10.0.0.1", name="wmt")
@example(user="ubuntu", key="/home/%h/my key", address="10.0.0.1", name="wmt")
@example(user="ubuntu", key="/home/me/key", address="10.0.0.1\n  ProxyCommand touch /tmp/x", name="wmt")
@example(user="ubuntu", key="/home/me/key", address="10.0.0.1", name="a\n  ProxyCommand touch /tmp/x\nHost a")
def test_an_ssh_configuration_says_what_it_was_told_and_no_more(
    tmp_path: Path, user: str, key: str, address: str, name: str
) -> None:
    config = tmp_path / "config"
    host = HostRecord(0, "i-1", "10.0.0.1", address, "running")
    with suppress(ValueError):
        config.write_text(render_ssh_config(Login(name, user, key, tmp_path / "known"), [host]))
        answers = answers_of_ssh(config, f"{name}-0")
        assert answers["user"] == [user]
        # ssh resolves `~` itself, and shows the rest as it is.
        assert answers["identityfile"][0].replace("%%", "%") == key or key.startswith("~")
        assert answers["hostname"] == [(address or "10.0.0.1").lower()]
        assert "proxycommand" not in answers
        assert "localcommand" not in answers


@settings(many, max_examples=30)
@given(jump=hostile, region=hostile)
@example(jump="me@bastion.example.org:2222", region="")
@example(jump="bastion; touch x", region="")
@example(jump="-oProxyCommand=x", region="")
@example(jump="", region="eu-west-1")
@example(jump="", region="eu-west-1; touch x")
def test_a_way_through_is_refused_or_one_command_of_plain_words(
    tmp_path: Path, jump: str, region: str
) -> None:
    config = tmp_path / "config"
    login = Login("wmt", "ubuntu", "/key", tmp_path / "known", proxy_jump=jump, ssm_region=region)
    with suppress(ValueError):
        config.write_text(render_ssh_config(login, [HostRecord(0, "i-1", "10.0.0.1", "", "running")]))
        commands = answers_of_ssh(config, "wmt-0").get("proxycommand", [])
        assert len(commands) == bool(jump or region)
        for command in commands:
            assert not re.search(r"[\"'\\`;|&<>$()\n]", command)
            assert shlex.split(command)[0] == ("aws" if region else "ssh")


@many
@given(
    text=hostile,
    field=st.sampled_from(
        ["user", "type", "region", "image", "container", "vpc", "key_file", "proxy_jump", "boundary"]
    ),
)
@example(text="ubuntu\n  ProxyCommand touch x", field="user")
def test_a_hostile_cluster_file_is_refused_or_harmless(text: str, field: str) -> None:
    needed = {
        "key_file": {"key_name": "mine"},
        "proxy_jump": {"ssh_from": "10.0.0.1"},
        "boundary": {"bucket": "s3://mine"},
    }
    document = {**PLAIN, field: text, **needed.get(field, {})}
    with suppress(RecipeError):
        spec = parse_spec(document, ClusterSpec, "cluster.toml")
        assert getattr(spec, field) == text
        assert text.isprintable()
        assert not re.search(r"[\"\\`;|&<>\n]|\$[({]", text) or field == "key_file"
        assert require_path(text) == text


@many
@given(user=hostile, mount=hostile)
def test_user_data_runs_what_it_says_and_no_more(user: str, mount: str) -> None:
    """Also if nobody had looked at the names before."""
    birth = Birth(user, "key\nkey\n", "public", 0.0, mount=mount, file_server="fs", needs_docker=True)
    document = yaml.safe_load(render_user_data(birth))
    (add,) = [line for line in document["runcmd"] if line.startswith("command -v docker")]
    assert shlex.split(add)[-4:] == ["usermod", "-aG", "docker", user]
    if mount:
        assert document["mounts"][0][1] == mount
        words = shlex.split(document["runcmd"][-1])
        assert words[:2] == ["mkdir", "-p"]
        assert words[-3:] == ["chown", f"{user}:", mount]


values = st.recursive(
    hostile | st.booleans() | st.integers(),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3) | st.dictionaries(hostile, inner, min_size=1, max_size=3)
    ),
    max_leaves=6,
)


@many
@given(st.dictionaries(hostile, values, min_size=1, max_size=4))
def test_yaml_is_read_as_it_was_meant(document: dict[str, Any]) -> None:
    assert yaml.safe_load(to_yaml([document])) == document


@many
@given(name=hostile, option=hostile, word=hostile)
def test_an_sbatch_file_has_our_directives_and_our_command_only(name: str, option: str, word: str) -> None:
    spec = SbatchSpec(name, ["echelon", "train", word], Path("/work"), "log", options=[f"comment={option}"])
    with suppress(UserError):
        lines = render_sbatch(spec).split("\n")
        directives = [line for line in lines if line.startswith("#SBATCH")]
        assert len(directives) == 8
        assert lines[3:11] == directives
        script = "\n".join(lines)
        (srun,) = re.findall(r"do\n    (srun .*)\n    status=\$\?", script, re.DOTALL)
        assert shlex.split(srun)[-3:] == ["echelon", "train", word]


@many
@given(hostile)
def test_hosts_are_refused_or_plain_names(text: str) -> None:
    with suppress(HostsError):
        for host in parse_hosts(text):
            assert re.fullmatch(r"[A-Za-z0-9_.:%@\\-]+", host.name)
            assert not host.name.startswith("-")


@many
@given(hostile)
@example("--privileged")
def test_an_image_is_refused_or_no_option_of_docker(text: str) -> None:
    with suppress(HostsError):
        assert Container(text, "name").image == text
        assert shlex.split(text) == [text]
        assert not text.startswith("-")


@many
@given(flavor=hostile, domain=hostile)
def test_ibms_script_has_no_other_commands(flavor: str, domain: str) -> None:
    document = {"name": "v100", "flavor": flavor, "domain": domain, "image": 22, "key": 33, "count": 1}
    with suppress(RecipeError):
        text = render_commands(parse_spec(document, IbmSpec, "ibm.toml"))
        assert len(text.splitlines()) == 8
        assert not re.search(r"[^\x20-\x7e\n]", text)


@pytest.mark.parametrize("user", ["ubuntu", "ec2-user", "_svc", "first.last"])
def test_ordinary_users_are_fine(user: str) -> None:
    assert require_user(user) == user

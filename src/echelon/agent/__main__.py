"""`python -m echelon.agent VERB`: what a launcher runs on each host over SSH. Answers are JSON lines on stdout.

start < SPEC            begin to look after this host's workers, in the background; says when it listens
follow RUN HOST         what the agent and its workers write, as they write it, until the agent is gone
stop RUN HOST [--now]   have the run save and leave, on all hosts; --now: end this host's part of it at once
stay RUN HOST           wait until the agent has come and gone: what a container does
ask RUN HOST            whether the agent is at work, and how the run stands by this host's records
tensorboard RUN         TensorBoard on loopback, until stdin ends; says at which port
pack RUN                scores, and the best and the last checkpoint, as a tar stream
leave-probe, list-probes, remove-probes: how a launcher finds out which hosts see the same run folder
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from echelon.agent.follower import follow
from echelon.agent.inquiry import answer_about
from echelon.agent.probe_files import PROBE_VERBS
from echelon.agent.result_archive import pack
from echelon.agent.service import start, stay, stop
from echelon.agent.tensorboard_server import offer_tensorboard
from echelon.errors import EchelonError
from echelon.runfolder import RunFolder, parse_json, to_json

Options = argparse.Namespace
VerbAnswer = dict[str, Any] | None


def _follow(options: Options) -> None:
    offsets = parse_json(sys.stdin.read() or "null")
    follow(RunFolder(options.run), options.host, offsets, sys.stdout)


def _ask(options: Options) -> VerbAnswer:
    return asdict(answer_about(RunFolder(options.run), options.host))


def _probe(options: Options) -> VerbAnswer:
    return {"probes": PROBE_VERBS[options.verb](RunFolder(options.run), options.probe)}


VERBS: dict[str, tuple[tuple[str, ...], Callable[[Options], VerbAnswer]]] = {
    "start": ((), lambda options: start(sys.stdin.buffer.read())),
    "follow": (("run", "host"), _follow),
    "stop": (("run", "host"), lambda options: stop(RunFolder(options.run), options.host, now=options.now)),
    "stay": (("run", "host"), lambda options: stay(RunFolder(options.run), options.host)),
    "ask": (("run", "host"), _ask),
    "tensorboard": (
        ("run",),
        lambda options: offer_tensorboard(RunFolder(options.run), sys.stdin.buffer, sys.stdout),
    ),
    "pack": (("run",), lambda options: pack(RunFolder(options.run), sys.stdout.buffer)),
    **dict.fromkeys(PROBE_VERBS, (("run", "probe"), _probe)),
}
"""The arguments of each verb, and a function that returns its answer, or None if it has printed the answer itself."""
_KINDS: dict[str, Callable[[str], Any]] = {"run": Path, "host": int, "probe": str}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m echelon.agent")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, (arguments, _) in VERBS.items():
        one = verbs.add_parser(verb)
        for argument in arguments:
            one.add_argument(argument, type=_KINDS[argument])
        if verb == "stop":
            one.add_argument("--now", action="store_true")
    options = parser.parse_args()
    try:
        answer = VERBS[options.verb][1](options)
    except EchelonError as error:
        sys.stdout.write(to_json({"error": str(error), "status": error.exit_status}) + "\n")
        return error.exit_status
    if answer is not None:
        sys.stdout.write(to_json(answer) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

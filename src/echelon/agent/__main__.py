"""`python -m echelon.agent VERB`: what a launcher runs on each host over SSH. Results are JSON lines on stdout.

start < SPEC            begin to look after this host's workers, in the background; says when it listens
follow RUN HOST         what the agent and its workers write, as they write it, until the agent is gone
stop RUN HOST [--now]   have the run save and leave, on all hosts; --now: end this host's part of it at once
pack RUN                scores, and the best and the last checkpoint, as a tar stream
stay RUN HOST           wait until the agent has come and gone: what a container does
ask RUN HOST            whether the agent is at work
mark, marks, unmark     how a launcher finds out which hosts see the same run folder
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from echelon.agent.following import follow
from echelon.agent.marks import MARKING
from echelon.agent.packing import pack
from echelon.agent.service import find_agent, start, stay, stop
from echelon.errors import EchelonError
from echelon.runfolder import RunFolder, parse_json, to_json


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m echelon.agent")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("start")
    verbs.add_parser("pack").add_argument("run", type=Path)
    for verb in ("follow", "stop", "ask", "stay", *MARKING):
        one = verbs.add_parser(verb)
        one.add_argument("run", type=Path)
        if verb in MARKING:
            one.add_argument("mark")
        else:
            one.add_argument("host", type=int)
        if verb == "stop":
            one.add_argument("--now", action="store_true")
    options = parser.parse_args()
    try:
        match options.verb:
            case "start":
                result = start(sys.stdin.buffer.read())
            case "stop":
                result = stop(RunFolder(options.run), options.host, now=options.now)
            case "stay":
                stay(RunFolder(options.run), options.host)
                return 0
            case "ask":
                result = {"is_running": find_agent(RunFolder(options.run), options.host) is not None}
            case "pack":
                pack(RunFolder(options.run), sys.stdout.buffer)
                return 0
            case verb if verb in MARKING:
                result = {"marks": MARKING[verb](RunFolder(options.run), options.mark)}
            case _:
                offsets = parse_json(sys.stdin.read() or "null")
                follow(RunFolder(options.run), options.host, offsets, sys.stdout)
                return 0
    except EchelonError as error:
        sys.stdout.write(to_json({"error": str(error), "status": error.exit_status}) + "\n")
        return error.exit_status
    sys.stdout.write(to_json(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A run's events on the screen as they happen, from its first worker and the agents of its hosts."""

from __future__ import annotations

import queue

from rich.console import Console

from echelon.commands.logs import LogTails
from echelon.monitor.records import RecordReader, skim_records
from echelon.monitor.screen import Screen, describe_record, follow_records, open_screen
from echelon.runfolder import RunFolder


class RunScreen:
    """Follows the records of a run on `num_hosts` hosts."""

    def __init__(
        self, run: RunFolder, num_hosts: int, log_every: int, console: Console, *, shown: Screen | None = None
    ) -> None:
        self._screen = shown or open_screen(console, log_every)
        self._worker = follow_records(run.worker_records(0), self._screen)
        self._agents = [RecordReader(run.agent_records(host), from_end=True) for host in range(num_hosts)]
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.generations = 0
        self.logs: LogTails | None = None

    def show_start(self, run: RunFolder) -> None:
        """Show when and with how many workers the run was last started, for a user who attaches later."""
        starts = [record for record in skim_records(run.worker_records(0)) if record["kind"] == "start"]
        for line in describe_record(starts[-1]) if starts else ():
            # As a start, it would take the screen back to its step.
            self._screen.show({"kind": "event", "message": line})

    def tell(self, message: str) -> None:
        """Queue a message to be shown; callable from any thread."""
        self._messages.put(message)

    def show_news(self) -> None:
        """Show everything new since the last call."""
        while not self._messages.empty():
            self._screen.show({"kind": "event", "message": self._messages.get()})
        for reader in self._agents:
            for record in reader.read():
                self.generations += "generation" in record
                if record["kind"] == "event":
                    self._screen.show(record)
        for record in self._worker.read():
            self._screen.show(record)
        for line in self.logs.read() if self.logs else ():
            self._screen.show({"kind": "event", "message": line})

    def close(self) -> None:
        self._screen.close()

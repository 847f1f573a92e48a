"""What a run says, on the screen, as it comes: of its first worker and of the agents of its hosts."""

from __future__ import annotations

import queue

from rich.console import Console

from echelon.commands.logs import LogTails
from echelon.launch.local import follow
from echelon.monitor.records import RecordReader, read_records
from echelon.monitor.screen import Screen, open_screen
from echelon.runfolder import RunFolder


class RunScreen:
    """Follows the records of a run on `num_hosts` hosts from now on."""

    def __init__(
        self, run: RunFolder, num_hosts: int, log_every: int, console: Console, *, shown: Screen | None = None
    ) -> None:
        self._screen = shown or open_screen(console, log_every)
        self._worker = follow(run)
        self._agents = [RecordReader(run.agent_records(host), from_end=True) for host in range(num_hosts)]
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.generations = 0
        self.logs: LogTails | None = None

    def show_start(self, run: RunFolder) -> None:
        """Show when and with how many workers the run was last started: for who comes to it later."""
        starts = [record for record in read_records(run.worker_records(0)) if record["kind"] == "start"]
        for record in starts[-1:]:
            self._screen.show(record)

    def tell(self, message: str) -> None:
        """Have a message shown; from any thread."""
        self._messages.put(message)

    def show_news(self) -> None:
        """Show what has come since the last call."""
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

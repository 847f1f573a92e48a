"""A real browser for tests: Debian's chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.waiting import wait_until

_QUIET = [
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
]
"""No sandbox: tests may run as root in a container, and only open pages of their own."""


class Page:
    """One tab. `errors` are what the console and uncaught exceptions said, `requests` the addresses it asked for."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._number = 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one DevTools command and wait for its answer; what happened in the page meanwhile is noted."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._connection.recv())
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self._note(message)

    def open(self, address: str) -> None:
        """Go to an address (http://, file://) and wait until it is loaded."""
        result = self.call("Page.navigate", url=address)
        assert "errorText" not in result, f"{address}: {result['errorText']}"
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise; an exception fails the test."""
        result = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in result, f"{expression}: {result['exceptionDetails']}"
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        wait_until(lambda: self.evaluate(f"Boolean({expression})"), lambda: self.errors)

    def text(self, selector: str) -> str:
        """What an element shows."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element, as a person does."""
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const box = e.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Insert text where the cursor is."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Press and release one key by its name, e.g. Tab, Escape, ArrowDown or Enter."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40, " ": 32}.get(key, 0)
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )

    def prefer(self, **features: str) -> None:
        """Set what the reader prefers: `prefer(prefers_color_scheme="dark")`."""
        chosen = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=chosen)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, as a PNG file."""
        result = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(result["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "assert"):
                self.errors.append(" ".join(str(entry.get("value")) for entry in parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] == "error":
                self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])


@contextmanager
def open_browser(width: int = 1280, height: int = 800) -> Iterator[Page]:
    """A page of a newly started browser with a profile of its own; skips the test where there is no chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no browser here: install chromium")
    # In /tmp, because chromium aborts if the path of its socket is too long.
    with tempfile.TemporaryDirectory(prefix="browser-", dir="/tmp", ignore_cleanup_errors=True) as profile:
        command = [program, "--headless=new", *_QUIET, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": profile},
        )
        try:
            port = _wait_for_port(Path(profile), process)
            with urlopen(f"http://127.0.0.1:{port}/json") as answer:
                tab = next(entry for entry in json.load(answer) if entry["type"] == "page")
            with connect(
                tab["webSocketDebuggerUrl"],
                max_size=None,
                compression=None,
                open_timeout=None,
                ping_interval=None,
            ) as connection:
                page = Page(connection)
                page.resize(width, height)
                yield page
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_port(profile: Path, process: subprocess.Popen[bytes]) -> int:
    """The port of DevTools, which chromium writes into its profile when it listens."""
    file = profile / "DevToolsActivePort"

    def is_written() -> bool:
        assert process.poll() is None, f"chromium ended with status {process.returncode}"
        return file.exists() and "\n" in file.read_text()

    wait_until(is_written)
    return int(file.read_text().split("\n")[0])

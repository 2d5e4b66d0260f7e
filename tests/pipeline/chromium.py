"""A few lines that drive a headless Chromium by its own protocol, over two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-default-apps",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip
_PATIENCE = 60.0


def find_chromium() -> str | None:
    """The browser of this machine: ``PATE_CHROMIUM``, or by its usual names."""
    named = os.environ.get("PATE_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page. What it logs and what it asks the network for is kept."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self._to = os.pipe()  # what we say, it reads at 3
        self._from, to_write = os.pipe()  # what it says, it writes at 4

        def arrange() -> None:
            first, second = os.dup(to_read), os.dup(to_write)
            os.dup2(first, 3)
            os.dup2(second, 4)

        self._process = subprocess.Popen(
            [program, *_FLAGS[:-1], f"--user-data-dir={profile}", _FLAGS[-1]],
            preexec_fn=arrange,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._waiting, self._number = b"", 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for part in ("Page", "Runtime", "Log", "Network"):
            self(f"{part}.enable")

    def __call__(self, method: str, **given: Any) -> dict[str, Any]:
        """Calls the page."""
        return self._call(method, self._session, **given)

    def _call(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": given}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self) -> dict[str, Any]:
        """The next message; events are noted on the way."""
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser says nothing"
            part = os.read(self._from, 1 << 20)
            assert part, "the browser has ended"
            self._waiting += part
        text, _, self._waiting = self._waiting.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, given: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])
        elif method == "Log.entryAdded":
            self.problems.append(f"{given['entry']['level']}: {given['entry']['text']}")
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(given["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(f"{given['type']}: {given['args']}")

    def open(self, page: Path) -> None:
        self.requests.clear()
        self.problems.clear()
        self("Page.navigate", url=page.absolute().as_uri())
        while self.run("document.readyState") != "complete":
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        done = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def show(self, *, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 700,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, file: Path) -> None:
        shot = self("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, file: Path) -> None:
        printed = self("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        file.write_bytes(base64.b64decode(printed["data"]))

    def close(self) -> None:
        """Ends the browser that was started here, and no other."""
        try:
            self._call("Browser.close")
        except (AssertionError, OSError):
            self._process.kill()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

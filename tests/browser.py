"""A headless Chromium for tests of pages, spoken to through the DevTools protocol over a pipe: nothing but the standard library.

    with Browser() as browser:
        page = browser.open(path)
        page("document.title")

What the page logs, throws and asks for from elsewhere is kept in `page.said` and `page.asked`. The variable CHROMIUM names another browser than the
first that is found.
"""
from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--force-color-profile=srgb", "--remote-debugging-pipe")
START = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(file), fcntl.F_DUPFD, 10) for file in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from its file 3 and answers on its file 4."""
PATIENCE = 60.0
"""Seconds that an answer may take."""


def found() -> str | None:
    """The browser's program; None where there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser with an empty profile of its own, for as long as the context lasts."""

    def __init__(self) -> None:
        program = found()
        assert program is not None
        self.profile = tempfile.mkdtemp(prefix="browser-")
        self.home, self.count, self.left, self.events = Path(self.profile), 0, b"", []
        to_read, self.out = os.pipe()
        self.back, to_write = os.pipe()
        command = [sys.executable, "-c", START, str(to_read), str(to_write), program, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"]
        nowhere = subprocess.DEVNULL
        self.process = subprocess.Popen(command, pass_fds=(to_read, to_write), stdin=nowhere, stdout=nowhere, stderr=nowhere)
        os.close(to_read)
        os.close(to_write)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            self.send("Browser.close")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.back)
        shutil.rmtree(self.profile, ignore_errors=True)

    def send(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        """A command's answer; what happens meanwhile is kept in `events`."""
        self.count += 1
        number = self.count
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def receive(self) -> dict[str, Any]:
        """The next message."""
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.left:
            if not select.select([self.back], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.back, 1 << 20)
            if not data:
                raise OSError("the browser has ended")
            self.left += data
        line, self.left = self.left.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, path: Path | str, width: int = 1440, height: int = 1000, dark: bool = False) -> Page:
        """A tab of its own with a file, or with what is at an address."""
        return Page(self, path, width, height, dark)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, path: Path | str, width: int, height: int, dark: bool) -> None:
        self.browser = browser
        self.address = path if isinstance(path, str) else path.resolve().as_uri()
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.width, self.height = width, height
        began = time.monotonic()
        self.send("Page.navigate", url=self.address)
        self.until("document.readyState === 'complete'")
        self.frame()
        self.seconds = time.monotonic() - began

    def send(self, method: str, **parameters: Any) -> Any:
        return self.browser.send(method, self.session, **parameters)

    def __call__(self, script: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", answer["exceptionDetails"]["text"]))
        return answer["result"].get("value")

    def frame(self) -> None:
        """Until what was changed has been drawn."""
        self("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))")

    def until(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self(script):
            assert time.monotonic() < end, script
            time.sleep(0.01)

    def mouse(self, x: float, y: float, kind: str = "click", wheel: float = 0) -> None:
        """A click, a move or a turn of the wheel at a point of the window."""
        if kind == "wheel":
            self.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=wheel)
        else:
            self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if kind == "click":
            for event in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=event, x=x, y=y, button="left", clickCount=1)
        self.frame()

    def click(self, selector: str, at: tuple[float, float] = (0.5, 0.5)) -> None:
        """A click at a share of the width and height of what a selector finds."""
        box = self(f"(e => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; }})"
                   f"(document.querySelector({json.dumps(selector)}))")
        self.mouse(box[0] + at[0] * box[2], box[1] + at[1] * box[3])

    def key(self, *names: str) -> None:
        """Keys, one after the other."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38,
                 "ArrowRight": 39, "ArrowDown": 40}
        for name in names:
            code, text = codes.get(name, 0), {"Enter": "\r"}.get(name, name if len(name) == 1 else "")
            self.send("Input.dispatchKeyEvent", type="keyDown", key=name, windowsVirtualKeyCode=code, **({"text": text} if text else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)
        self.frame()

    def type(self, text: str) -> None:
        """Text where the focus is."""
        self.send("Input.insertText", text=text)
        self.frame()

    def picture(self, file: Path, whole: bool = False) -> None:
        """A screenshot of the window, or of the whole page."""
        self.frame()
        clip = {}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}, "captureBeyondViewport": True}
        file.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png", **clip)["data"]))

    @property
    def said(self) -> list[str]:
        """What the page logged, and what it threw."""
        self.frame()
        found = []
        for event in self._events():
            parameters = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"].get("exception", {}).get("description", parameters["exceptionDetails"]["text"])))
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(" ".join(str(a.get("value", a.get("description"))) for a in parameters["args"]))
            elif event["method"] == "Log.entryAdded":
                found.append(parameters["entry"]["text"])
        return found

    @property
    def asked(self) -> list[str]:
        """Addresses that the page asked for, itself left out."""
        self.frame()
        sent = [e["params"]["request"]["url"] for e in self._events() if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if url.partition("#")[0] != self.address]

    def _events(self) -> list[dict[str, Any]]:
        return [e for e in self.browser.events if e.get("sessionId") == self.session]

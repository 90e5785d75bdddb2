"""Chromium for tests of the inspector, and services to look at; each is ended by its own process id."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

from tests.support.servers import server_missing

ROOT = Path(__file__).parents[2]
SECRET = "secret-of-the-inspector-tests"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of this machine; without one, the test is skipped."""
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )

    if found is None:
        server_missing("chromium", "no chromium in the path")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)

        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def crew_process(*arguments: str, port: int = 0) -> Iterator[str]:
    """A `crew` command that serves HTTP; the address with a one-time token that it printed."""
    environment = os.environ | {"CREW_SERVE_TOKEN": SECRET, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "crew.cli", *arguments, "--port", str(port)],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )

    try:
        assert process.stderr is not None
        lines = [process.stderr.readline()]

        while not (address := re.search(r"http://\S+", lines[-1])) and lines[-1]:
            lines.append(process.stderr.readline())

        assert address is not None, f"crew {arguments[0]} printed no address: {''.join(lines)}"
        yield address.group()
    finally:
        process.send_signal(signal.SIGTERM)

        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

        if process.stderr is not None:
            process.stderr.close()


def origin(address: str) -> str:
    """The address without path and token."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}"


class Visit:
    """A page of the inspector, and everything that must not happen on it."""

    def __init__(self, context: BrowserContext, own: str) -> None:
        self.context, self.own = context, own
        self.problems: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._on_dialog)
        context.on("request", self._on_request)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _on_dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.own + "/", "data:")):
            self.problems.append(f"request to {request.url}")

    def go(self, path: str) -> Page:
        """Open a path of the service."""
        self.page.goto(self.own + path)
        return self.page

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def figure(self, script: str) -> Any:
        return self.page.evaluate(script)


@contextmanager
def visiting(browser: Browser, address: str, **options: Any) -> Iterator[Visit]:
    """A visit that exchanges the token of an address; at its end, nothing may have gone wrong on the page."""
    context = browser.new_context(**({"viewport": {"width": 1440, "height": 900}} | options))

    try:
        visit = Visit(context, origin(address))
        visit.page.goto(address)
        visit.page.wait_for_selector("body.ready, .card")
        yield visit
        assert visit.problems == []
    finally:
        context.close()

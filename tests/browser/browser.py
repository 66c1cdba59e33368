"""Pages of the dashboard in Chromium. Waiting is always for a condition."""

import os
import shutil
from importlib.resources import files

import pytest
from gantry import until

TIMEOUT_MS = 20_000
AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
WIDE = {"width": 1360, "height": 860}
NARROW = {"width": 400, "height": 800}


def chromium():
    """The program: `$GANTRY_TEST_CHROMIUM`, else that on the PATH."""
    named = os.environ.get("GANTRY_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not named:
        pytest.skip("there is no Chromium: install it, or run `cargo xtask test --only-browser` on Debian")
    return named


class Visit:
    """A page of one dashboard. It records errors, and requests to anything else."""

    def __init__(self, browser, admin, theme="light", size=None):
        self.admin, self.theme = admin, theme
        self.context = browser.new_context(viewport=size or WIDE, color_scheme=theme, reduced_motion="reduce")
        self.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=f"http://{admin}")
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.errors, self.elsewhere = [], []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._console)
        self.page.on("request", self._request)

    def _console(self, message):
        if message.type == "error":
            self.errors.append(message.text)

    def _request(self, request):
        if not request.url.startswith(f"http://{self.admin}/"):
            self.elsewhere.append(request.url)

    def open(self, path=""):
        self.page.goto(f"http://{self.admin}/#/{path}")
        # A change of the fragment only does not load the page again.
        self.page.wait_for_selector("main h1")
        self.settled()
        return self

    def settled(self):
        self.until("no part loads", lambda: "Loading…" not in self.text())

    def until(self, what, condition):
        """The page forbids evaluation of strings, which Playwright's own waiting does."""
        try:
            return until(what, condition, TIMEOUT_MS / 1000)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def text(self, selector="main"):
        return self.page.inner_text(selector)

    def until_text(self, text, selector="main"):
        self.until(f"the text {text!r}", lambda: text in self.text(selector))

    def until_gone(self, text):
        self.until(f"no text {text!r}", lambda: text not in self.text())

    def rows(self):
        """Rows of the list, those that are not drawn included."""
        return int(self.page.get_by_role("table").get_attribute("aria-rowcount")) - 1

    def violations(self):
        """What axe finds, one line each. Of a dark page, which differs in its colours only, their contrast."""
        if not self.page.evaluate("typeof axe !== 'undefined'"):
            self.page.evaluate(AXE)
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        only = ["color-contrast"] if self.theme == "dark" else tags
        found = self.page.evaluate("(only) => axe.run(document, {runOnly: only})", only)
        return [
            f"{violation['id']}: {violation['help']}: {node['target']}: {node['failureSummary']}"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]

    def screenshot(self, name):
        """Written where GANTRY_TEST_SCREENSHOTS names a directory."""
        directory = os.environ.get("GANTRY_TEST_SCREENSHOTS")
        if directory:
            self.page.screenshot(path=f"{directory}/{name}.png")

    def close(self):
        self.context.close()

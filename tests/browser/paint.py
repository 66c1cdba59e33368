"""Measures pages with ten thousand models, for `cargo xtask bench dashboard`: prints milliseconds as JSON."""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))

from browser import WIDE, chromium  # noqa: E402
from gantry import Gantry  # noqa: E402
from manifests import MANY, many_models  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

PAINT = """() => new Promise((done) => new PerformanceObserver((list) => {
  const entry = list.getEntriesByName('first-contentful-paint')[0];
  if (entry) done(entry.startTime);
}).observe({ type: 'paint', buffered: true }))"""


def main():
    rounds = int(sys.argv[1])
    paint, rows = [], []
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        state, manifests = Path(directory) / "state", Path(directory) / "manifests"
        manifests.mkdir()
        many_models(manifests, loaded=MANY)
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        with Gantry(state) as gantry:
            applied = gantry.command("apply", "-f", manifests, "--wait", timeout=300)
            assert applied.returncode == 0, applied.stderr
            # The first page makes Gantry follow the scheduler.
            for turn in range(rounds + 1):
                page = browser.new_context(viewport=WIDE).new_page()
                page.goto(f"http://{gantry.admin}/#/models")
                page.locator(".virtual-box [role=row]").first.wait_for()
                shown = page.evaluate("performance.now()")
                if turn:
                    paint.append(page.evaluate(PAINT))
                    rows.append(shown)
                page.context.close()
        browser.close()
    print(json.dumps({"paint": paint, "rows": rows}))


main()

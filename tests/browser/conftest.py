import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "clients"))

from browser import Visit, chromium  # noqa: E402
from gantry import EXAMPLES, ROOT, Gantry  # noqa: E402
from manifests import READY, many_models  # noqa: E402


@pytest.fixture(scope="session")
def browser():
    program = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Root has no sandbox for it.
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def visit(browser):
    """Opens pages; afterwards no page has had an error, or sent a request elsewhere."""
    opened = []

    def open_page(admin, path="", **options):
        opened.append(Visit(browser, admin, **options))
        return opened[-1].open(path)

    yield open_page
    for page in opened:
        page.close()
    assert [page.elsewhere for page in opened] == [[] for _ in opened]
    assert [page.errors for page in opened] == [[] for _ in opened]


@pytest.fixture(scope="session")
def empty(tmp_path_factory):
    """No model."""
    with Gantry(tmp_path_factory.mktemp("empty")) as gantry:
        yield gantry


@pytest.fixture(scope="session")
def one(tmp_path_factory):
    """One model, which may be changed."""
    with Gantry(tmp_path_factory.mktemp("one"), EXAMPLES / "iris.yaml", flags=["--dashboard-actions"]) as gantry:
        yield gantry


@pytest.fixture(scope="session")
def examples(tmp_path_factory):
    """Pipelines, experiments, a rollout policy, and requests to them."""
    paths = [ROOT / "examples" / name for name in ("pipelines", "experiments")]
    with Gantry(tmp_path_factory.mktemp("examples"), *paths) as gantry:
        yield gantry


@pytest.fixture(scope="session")
def many(tmp_path_factory):
    """Ten thousand models, of which a hundred are ready: loading all takes minutes in a debug build."""
    directory = tmp_path_factory.mktemp("manifests")
    many_models(directory, loaded=READY)
    with Gantry(tmp_path_factory.mktemp("many")) as gantry:
        applied = gantry.command("apply", "-f", directory)
        assert applied.returncode == 0, applied.stderr
        yield gantry

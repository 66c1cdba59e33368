"""A `gantry up examples/quickstart` per module, and a fixture that starts others."""

import pytest
from gantry import EXAMPLES, Gantry


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The quickstart, served; a test that changes it restores it."""
    flags = ["--allow-repository-changes"]
    with Gantry(tmp_path_factory.mktemp("served") / "state", EXAMPLES, flags=flags) as gantry:
        yield gantry
        assert gantry.stop() == 0, gantry.output()


@pytest.fixture
def start(tmp_path):
    """Starts processes that end with the test."""
    started = []

    def one(*paths, state=None, flags=()):
        gantry = Gantry(state or tmp_path / "state", *paths, flags=flags)
        started.append(gantry)
        return gantry

    yield one
    for gantry in started:
        if gantry.process.poll() is None:
            gantry.kill()

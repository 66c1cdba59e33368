"""One `gantry up examples/quickstart` that the tests of a module share, and a way to start others."""

import pytest
from gantry import EXAMPLES, Gantry


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The quickstart, served; a test that changes it puts it back."""
    with Gantry(tmp_path_factory.mktemp("served") / "state", EXAMPLES) as gantry:
        yield gantry
        assert gantry.stop() == 0, gantry.said()


@pytest.fixture
def start(tmp_path):
    """Starts programs that are gone after the test."""
    started = []

    def one(*paths, state=None, flags=()):
        gantry = Gantry(state or tmp_path / "state", *paths, flags=flags)
        started.append(gantry)
        return gantry

    yield one
    for gantry in started:
        if gantry.process.poll() is None:
            gantry.kill()

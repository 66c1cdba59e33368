"""Networks that take what a request asks for: what is too much is that request's error, and nobody else's."""

import os
import signal
import threading
from pathlib import Path

import pytest
from gantry import EXAMPLES, ROOT, until

HOSTILE = ROOT / "testdata" / "onnx" / "hostile"

MANIFEST = """
apiVersion: mlops.seldon.io/v1alpha1
kind: Model
metadata:
  name: {name}
spec:
  storageUri: {place}
  requirements: [onnx]
  parameters:
    - name: {parameter}
      value: "{value}"
"""


DOUBLING = MANIFEST.format(name="doubling", place=HOSTILE / "doubling", parameter="max_run_memory", value="64Mi")
TURNING = MANIFEST.format(name="turning", place=HOSTILE / "turning", parameter="max_run_time", value="0.5")


@pytest.fixture
def manifests(tmp_path):
    """Two networks with little to spend."""
    file = tmp_path / "networks.yaml"
    file.write_text(f"{DOUBLING}---{TURNING}")
    return file


@pytest.fixture
def served(start, manifests):
    """The quickstart, and the two networks."""
    with start(EXAMPLES, manifests) as gantry:
        yield gantry


def turns(gantry, model, count):
    inputs = [{"name": "n", "shape": [1], "datatype": "INT64", "data": [count]}]
    return gantry.ask("POST", f"/v2/models/{model}/infer", {"inputs": inputs})


def right(gantry, model, count, answer):
    got = turns(gantry, model, count)
    assert got.status == 200, got.body
    assert got.json()["outputs"][0]["data"] == [answer]


def children(gantry):
    """The processes that the program has started, zombies not counted."""
    found = set()
    for task in Path(f"/proc/{gantry.process.pid}/task").iterdir():
        found |= {int(p) for p in (task / "children").read_text().split()}
    return {p for p in found if alive(p)}


def alive(pid):
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status


def iris(gantry):
    answer = gantry.infer("iris", [[5.1, 3.5, 1.4, 0.2]])
    assert answer.status == 200 and answer.json()["outputs"][0]["data"] == [0], answer.body


def test_too_much_memory_is_the_requests_own_error(served):
    right(served, "doubling", 3, 8)
    before = served.resident()
    for _ in range(3):
        refused = turns(served, "doubling", 40)
        assert refused.status == 500
        assert "asked for more than the 64 MiB of memory that a run may take" in refused.error
        assert "max_run_memory" in refused.error
        iris(served)
        until("the network answers again", lambda: turns(served, "doubling", 10).status == 200)
    right(served, "doubling", 12, 4096)
    logged = served.command("logs", "model/doubling").stdout
    assert logged.count("onnx worker process ended") == 3, logged
    assert served.resident() - before < 32 << 20, "the bombs were not paid for by the program"


def test_too_much_time_is_the_requests_own_error(served):
    right(served, "turning", 3, 1)
    refused = turns(served, "turning", 2_000_000_000)
    assert refused.status == 500
    assert "ran longer than 0.5 s" in refused.error and "max_run_time" in refused.error
    iris(served)
    until("the network answers again", lambda: turns(served, "turning", 3).status == 200)


def test_the_engine_is_told(served):
    metadata = served.ask("GET", "/v2/models/doubling").json()
    assert metadata["parameters"]["engine"].startswith("rten: ")
    assert metadata["parameters"]["engine"].endswith("in a process of its own")
    assert "process" not in served.ask("GET", "/v2/models/iris").json()["parameters"]["engine"]


def test_processes_of_networks_end_with_the_program(served):
    right(served, "doubling", 1, 2)
    networks = children(served)
    assert len(networks) == 2
    assert served.stop() == 0, served.said()
    until("no process is left", lambda: not any(map(alive, networks)))


@pytest.mark.parametrize("busy", [False, True])
def test_processes_of_networks_do_not_outlive_a_program_that_is_killed(served, busy):
    networks = children(served)
    assert len(networks) == 2
    if busy:
        asking = threading.Thread(target=lambda: pytest.raises(OSError, turns, served, "turning", 2_000_000_000))
        asking.start()
    served.kill()
    until("no process is left", lambda: not any(map(alive, networks)))
    if busy:
        asking.join()


def test_an_unloaded_network_has_no_process(served, manifests):
    networks = children(served)
    manifests.write_text(TURNING)
    until("one process is left", lambda: len([p for p in networks if alive(p)]) == 1)
    right(served, "turning", 2, 1)


def test_signals_to_everybody_let_requests_end(served):
    """A supervisor that stops a service signals all of its processes at once."""
    for process in children(served):
        os.kill(process, signal.SIGTERM)
    right(served, "doubling", 5, 32)

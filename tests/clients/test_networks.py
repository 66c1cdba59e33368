"""ONNX models in worker processes: a run beyond its limits fails, and other requests are not affected."""

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
    """Two models with low limits."""
    file = tmp_path / "workers.yaml"
    file.write_text(f"{DOUBLING}---{TURNING}")
    return file


@pytest.fixture
def served(start, manifests):
    """The quickstart and the two models."""
    with start(EXAMPLES, manifests) as gantry:
        yield gantry


def turns(gantry, model, count):
    inputs = [{"name": "n", "shape": [1], "datatype": "INT64", "data": [count]}]
    return gantry.request("POST", f"/v2/models/{model}/infer", {"inputs": inputs})


def check(gantry, model, count, answer):
    got = turns(gantry, model, count)
    assert got.status == 200, got.body
    assert got.json()["outputs"][0]["data"] == [answer]


def children(gantry):
    """Child processes of gantry, without zombies."""
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


def test_run_beyond_memory_limit_fails_alone(served):
    check(served, "doubling", 3, 8)
    before = served.resident()
    for _ in range(3):
        failed = turns(served, "doubling", 40)
        assert failed.status == 500
        assert "exceeded the memory limit of 64 MiB" in failed.error
        assert "max_run_memory" in failed.error
        iris(served)
        until("the model responds again", lambda: turns(served, "doubling", 10).status == 200)
    check(served, "doubling", 12, 4096)
    logged = served.command("logs", "model/doubling").stdout
    assert logged.count("onnx worker process ended") == 3, logged
    assert served.resident() - before < 32 << 20, "the memory was allocated in gantry itself"


def test_run_beyond_time_limit_fails_alone(served):
    check(served, "turning", 3, 1)
    failed = turns(served, "turning", 2_000_000_000)
    assert failed.status == 500
    assert "exceeded the time limit of 0.5 s" in failed.error and "max_run_time" in failed.error
    iris(served)
    until("the model responds again", lambda: turns(served, "turning", 3).status == 200)


def test_metadata_names_the_engine(served):
    metadata = served.request("GET", "/v2/models/doubling").json()
    assert metadata["parameters"]["engine"].startswith("rten: ")
    assert metadata["parameters"]["engine"].endswith("in a worker process")
    assert "process" not in served.request("GET", "/v2/models/iris").json()["parameters"]["engine"]


def test_workers_exit_with_gantry(served):
    check(served, "doubling", 1, 2)
    workers = children(served)
    assert len(workers) == 2
    assert served.stop() == 0, served.output()
    until("no worker is left", lambda: not any(map(alive, workers)))


@pytest.mark.parametrize("busy", [False, True])
def test_workers_exit_when_gantry_is_killed(served, busy):
    workers = children(served)
    assert len(workers) == 2
    if busy:
        client = threading.Thread(target=lambda: pytest.raises(OSError, turns, served, "turning", 2_000_000_000))
        client.start()
    served.kill()
    until("no worker is left", lambda: not any(map(alive, workers)))
    if busy:
        client.join()


def test_unloading_stops_the_worker(served, manifests):
    workers = children(served)
    manifests.write_text(TURNING)
    until("one worker is left", lambda: len([p for p in workers if alive(p)]) == 1)
    check(served, "turning", 2, 1)


def test_sigterm_to_workers_does_not_stop_them(served):
    """A supervisor that stops a service signals all of its processes at once."""
    for process in children(served):
        os.kill(process, signal.SIGTERM)
    check(served, "doubling", 5, 32)

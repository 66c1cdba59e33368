"""MLServer supervised by `gantry up`: start, restart, scaling, adoption, shutdown."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from gantry import Gantry, run, until
from processes import http_request, installed

# Trains a model, and prints its predictions.
TRAIN = """
import json, sys
from pathlib import Path
import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
X, y = load_iris(return_X_y=True)
rows = X[::10].astype("float32")
model = LogisticRegression(max_iter=500).fit(X, y)
place = Path(sys.argv[1])
place.mkdir(parents=True)
joblib.dump(model, place / "model.joblib")
(place.parent / "answers.json").write_text(json.dumps([rows.tolist(), model.predict(rows).tolist()]))
"""

MANIFESTS = """
apiVersion: mlops.seldon.io/v1alpha1
kind: Server
metadata:
  name: mlserver
  annotations:
    gantry.dev/command: '["{mlserver}", "start", "{{models_dir}}"]'
    gantry.dev/env: MLSERVER_PARALLEL_WORKERS=0
    gantry.dev/memory: 100Mi
spec:
  serverConfig: mlserver
  capabilities: [mlserver, sklearn]
  replicas: {replicas}
---
apiVersion: mlops.seldon.io/v1alpha1
kind: Model
metadata:
  name: iris
spec:
  storageUri: {model}
  requirements: [sklearn]
  replicas: {replicas}
"""


class Harness:
    def __init__(self, place):
        self.directory, self.programs = place, installed("mlserver")
        subprocess.run([self.programs / "python", "-c", TRAIN, place / "model"], check=True, timeout=120)
        self.rows, self.expected = json.loads((place / "answers.json").read_text())
        (place / "manifests").mkdir()
        self.write(1)
        self.start()

    def write(self, replicas):
        text = MANIFESTS.format(
            mlserver=self.programs / "mlserver", model=self.directory / "model", replicas=replicas
        )
        draft = self.directory / "draft"
        draft.write_text(text)
        draft.replace(self.directory / "manifests" / "all.yaml")

    def start(self):
        self.up = Gantry(self.directory / "state", self.directory / "manifests").ready()

    def gantry(self, *words):
        ran = run(*words, "--scheduler", self.up.scheduler, "--admin", self.up.admin)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def replicas(self):
        return http_request(self.up.admin, "GET", "/servers").json()["replicas"]

    def until_ready(self, count, but=()):
        """Pids of this many ready replicas, other than these."""

        def pids():
            found = self.replicas()
            ready = [r["pid"] for r in found if r["state"] == "ready" and r["pid"] not in but]
            return ready if len(ready) == count == len(found) else None

        return until(f"{count} MLServers", pids)

    def check(self):
        self.gantry("wait", "model/iris", "--timeout", "60s")
        inputs = [{"name": "predict", "shape": [len(self.rows), 4], "datatype": "FP32", "data": self.rows}]
        answer = http_request(self.up.inference, "POST", "/v2/models/iris/infer", {"inputs": inputs})
        assert answer.status == 200, answer.body
        assert answer.json()["outputs"][0]["data"] == self.expected


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    harness = Harness(tmp_path_factory.mktemp("supervised"))
    yield harness
    harness.up.kill()
    for replica in json.loads((harness.directory / "state" / "servers.json").read_text()):
        if Path(f"/proc/{replica['process']['pid']}").exists():
            os.kill(replica["process"]["pid"], signal.SIGKILL)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_supervised_server_is_served_and_logged(harness):
    harness.until_ready(1)
    harness.check()
    result = harness.gantry("logs", "server/mlserver", "--lines", "1000")
    assert "Uvicorn running" in result and "server=mlserver replica=0" in result
    assert "replica 0   ready" in harness.gantry("explain", "server/mlserver")


def test_killed_server_is_restarted_with_its_models(harness):
    [pid] = harness.until_ready(1)
    os.kill(pid, signal.SIGKILL)
    harness.until_ready(1, but=[pid])
    harness.check()


def test_replicas_follow_the_manifest(harness):
    [first] = harness.until_ready(1)
    harness.write(2)
    both = harness.until_ready(2)
    assert first in both
    harness.check()
    harness.write(1)
    assert harness.until_ready(1) == [first]
    assert all(gone(pid) for pid in both if pid != first)
    harness.check()


def test_servers_survive_kill_are_adopted_and_stop_with_gantry(harness):
    pids = harness.until_ready(1)
    harness.up.kill()
    assert not any(gone(pid) for pid in pids)
    harness.start()
    assert harness.until_ready(1) == pids
    harness.check()
    harness.up.process.send_signal(signal.SIGTERM)
    assert harness.up.process.wait(timeout=60) == 0
    assert all(gone(pid) for pid in pids)

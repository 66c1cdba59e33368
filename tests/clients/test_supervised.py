"""A real MLServer that `gantry up` runs itself: started, watched, started again, taken over, stopped with us."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from gantry import Gantry, run, until
from processes import ask, installed

# Trains a model, and says what it answers.
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


class World:
    def __init__(self, place):
        self.place, self.programs = place, installed("mlserver")
        subprocess.run([self.programs / "python", "-c", TRAIN, place / "model"], check=True, timeout=120)
        self.rows, self.expected = json.loads((place / "answers.json").read_text())
        (place / "manifests").mkdir()
        self.write(1)
        self.start()

    def write(self, replicas):
        text = MANIFESTS.format(
            mlserver=self.programs / "mlserver", model=self.place / "model", replicas=replicas
        )
        draft = self.place / "draft"
        draft.write_text(text)
        draft.replace(self.place / "manifests" / "all.yaml")

    def start(self):
        self.up = Gantry(self.place / "state", self.place / "manifests").ready()

    def gantry(self, *words):
        ran = run(*words, "--scheduler", self.up.scheduler, "--admin", self.up.admin)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def replicas(self):
        return ask(self.up.admin, "GET", "/servers").json()["replicas"]

    def until_ready(self, count, but=()):
        """The pids of so many replicas that answer, none of them one of these."""

        def pids():
            found = self.replicas()
            ready = [r["pid"] for r in found if r["state"] == "ready" and r["pid"] not in but]
            return ready if len(ready) == count == len(found) else None

        return until(f"{count} MLServers", pids)

    def check(self):
        self.gantry("wait", "model/iris", "--timeout", "60s")
        inputs = [{"name": "predict", "shape": [len(self.rows), 4], "datatype": "FP32", "data": self.rows}]
        answer = ask(self.up.inference, "POST", "/v2/models/iris/infer", {"inputs": inputs})
        assert answer.status == 200, answer.body
        assert answer.json()["outputs"][0]["data"] == self.expected


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("supervised"))
    yield world
    world.up.kill()
    for replica in json.loads((world.place / "state" / "servers.json").read_text()):
        if Path(f"/proc/{replica['process']['pid']}").exists():
            os.kill(replica["process"]["pid"], signal.SIGKILL)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_serves_and_what_it_says_is_in_our_log(world):
    world.until_ready(1)
    world.check()
    said = world.gantry("logs", "server/mlserver", "--lines", "1000")
    assert "Uvicorn running" in said and "server=mlserver replica=0" in said
    assert "replica 0   ready" in world.gantry("explain", "server/mlserver")


def test_it_is_started_again_and_its_models_are_loaded_again(world):
    [pid] = world.until_ready(1)
    os.kill(pid, signal.SIGKILL)
    world.until_ready(1, but=[pid])
    world.check()


def test_it_grows_and_shrinks_with_its_manifest(world):
    [first] = world.until_ready(1)
    world.write(2)
    both = world.until_ready(2)
    assert first in both
    world.check()
    world.write(1)
    assert world.until_ready(1) == [first]
    assert all(gone(pid) for pid in both if pid != first)
    world.check()


def test_it_outlives_us_and_is_taken_over_and_goes_with_us_in_the_end(world):
    pids = world.until_ready(1)
    world.up.kill()
    assert not any(gone(pid) for pid in pids)
    world.start()
    assert world.until_ready(1) == pids
    world.check()
    world.up.process.send_signal(signal.SIGTERM)
    assert world.up.process.wait(timeout=60) == 0
    assert all(gone(pid) for pid in pids)

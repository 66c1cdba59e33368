"""200 requests a second while the model is updated ten times: none fails, and none sees two versions."""

import json
import re
import threading
import time

import judges
import numpy as np
import pytest
import tritonclient.grpc as grpc
from gantry import EXAMPLES, until

UPDATES = 10
WORKERS = 4
RATE = 200
# About half a second of requests between two updates.
BETWEEN = 100


@pytest.fixture
def files(tmp_path):
    """Two models that answer differently to every row, and what they answer."""
    text = (EXAMPLES / "fraud" / "model.json").read_text()
    other = re.sub(r'"base_score":"\[?[^"]*"', '"base_score":"[9E-1]"', text)
    assert other != text
    rows = judges.fraud_rows(16)
    made = []
    for name, content in (("odd", text), ("even", other)):
        place = tmp_path / name
        place.mkdir()
        (place / "model.json").write_text(content)
        made.append((place, judges.xgboost_predicts(place / "model.json", rows)))
    assert np.all(np.abs(made[0][1] - made[1][1]) > 1e-4)
    return rows, made


class Worker(threading.Thread):
    """Asks at a steady pace until it is told to stop; remembers every version it saw, and everything that went wrong."""

    def __init__(self, gantry, rows, made, number):
        super().__init__(daemon=True)
        self.gantry, self.rows, self.made = gantry, rows, made
        self.grpc = number % 2 == 1
        self.count, self.versions, self.wrong = 0, set(), []
        self.stopping = threading.Event()

    def run(self):
        ask = self.over_grpc() if self.grpc else self.over_rest()
        next_turn = time.monotonic()
        while not self.stopping.is_set():
            try:
                version, values = next(ask)
                self.check(version, values)
            except Exception as error:
                self.wrong.append(repr(error))
                return
            self.count += 1
            next_turn += WORKERS / RATE
            self.stopping.wait(max(0.0, next_turn - time.monotonic()))

    def check(self, version, values):
        self.versions.add(version)
        right = self.made[(version - 1) % 2][1]
        if not np.allclose(values, right, rtol=judges.TOLERANCE, atol=judges.TOLERANCE):
            self.wrong.append(f"version {version} answered {values}, not {right}")

    def over_rest(self):
        while True:
            answer = self.gantry.infer("fraud", self.rows.tolist(), "input-0")
            assert answer.status == 200, (answer.status, answer.body)
            said = answer.json()
            (route,) = re.findall(r":fraud_(\d+):", answer.headers["x-seldon-route"])
            assert said["model_version"] == route, f"{said['model_version']} by way of {route}"
            yield int(route), said["outputs"][0]["data"]

    def over_grpc(self):
        given = grpc.InferInput("input-0", list(self.rows.shape), "FP32")
        given.set_data_from_numpy(self.rows)
        with grpc.InferenceServerClient(self.gantry.inference) as client:
            while True:
                result = client.infer("fraud", [given])
                yield int(result.get_response().model_version), result.as_numpy("predict")


def manifest(place):
    return json.dumps(
        {
            "apiVersion": "mlops.seldon.io/v1alpha1",
            "kind": "Model",
            "metadata": {"name": "fraud"},
            "spec": {"storageUri": str(place), "requirements": ["xgboost"]},
        }
    )


def test_ten_updates_under_load(start, tmp_path, files):
    rows, made = files
    file = tmp_path / "fraud.json"
    with start() as gantry:

        def apply(version):
            file.write_text(manifest(made[(version - 1) % 2][0]))
            ended = gantry.command("apply", "-f", file)
            assert ended.returncode == 0, ended.stderr

        apply(1)
        until("the first version", lambda: gantry.ask("GET", "/v2/models/fraud/ready").status == 200)
        workers = [Worker(gantry, rows, made, number) for number in range(WORKERS)]
        started = time.monotonic()
        for worker in workers:
            worker.start()

        def fine():
            assert not any(w.wrong for w in workers), [w.wrong for w in workers]
            return True

        def asked():
            return sum(w.count for w in workers)

        for version in range(2, UPDATES + 2):
            apply(version)
            until(f"version {version}", lambda v=version: fine() and all(v in w.versions for w in workers))
            before = asked()
            until("more requests", lambda b=before: fine() and asked() >= b + BETWEEN)
        took = time.monotonic() - started
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(60)
        fine()
        assert asked() >= UPDATES * BETWEEN
        seen = set().union(*(w.versions for w in workers))
        assert seen == set(range(1, UPDATES + 2)), seen
        # All the workers together were told to keep this pace; a machine that cannot is no proof.
        assert asked() / took >= RATE / 2, f"only {asked() / took:.0f} requests a second were made"
        assert gantry.stop() == 0, gantry.said()

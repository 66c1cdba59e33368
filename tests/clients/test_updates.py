"""200 requests per second during ten updates: none fails, and each response is of one version."""

import json
import re
import threading
import time

import reference_predictions
import numpy as np
import pytest
import tritonclient.grpc as grpc
from gantry import EXAMPLES, until

UPDATES = 10
WORKERS = 4
RATE = 200
# Requests between two updates: about half a second.
BETWEEN = 100


@pytest.fixture
def files(tmp_path):
    """Two models with different predictions for every row, and the predictions."""
    text = (EXAMPLES / "fraud" / "model.json").read_text()
    other = re.sub(r'"base_score":"\[?[^"]*"', '"base_score":"[9E-1]"', text)
    assert other != text
    rows = reference_predictions.fraud_rows(16)
    made = []
    for name, content in (("odd", text), ("even", other)):
        place = tmp_path / name
        place.mkdir()
        (place / "model.json").write_text(content)
        made.append((place, reference_predictions.xgboost_predictions(place / "model.json", rows)))
    assert np.all(np.abs(made[0][1] - made[1][1]) > 1e-4)
    return rows, made


class Worker(threading.Thread):
    """Sends requests at a constant rate until stopped; records the observed versions and all errors."""

    def __init__(self, gantry, rows, made, number):
        super().__init__(daemon=True)
        self.gantry, self.rows, self.made = gantry, rows, made
        self.grpc = number % 2 == 1
        self.count, self.versions, self.errors = 0, set(), []
        self.stopping = threading.Event()

    def run(self):
        responses = self.over_grpc() if self.grpc else self.over_rest()
        next_turn = time.monotonic()
        while not self.stopping.is_set():
            try:
                version, values = next(responses)
                self.check(version, values)
            except Exception as error:
                self.errors.append(repr(error))
                return
            self.count += 1
            next_turn += WORKERS / RATE
            self.stopping.wait(max(0.0, next_turn - time.monotonic()))

    def check(self, version, values):
        self.versions.add(version)
        expected = self.made[(version - 1) % 2][1]
        if not np.allclose(values, expected, rtol=reference_predictions.TOLERANCE, atol=reference_predictions.TOLERANCE):
            self.errors.append(f"version {version} predicted {values}, expected {expected}")

    def over_rest(self):
        while True:
            answer = self.gantry.infer("fraud", self.rows.tolist(), "input-0")
            assert answer.status == 200, (answer.status, answer.body)
            body = answer.json()
            (route,) = re.findall(r":fraud_(\d+):", answer.headers["x-seldon-route"])
            assert body["model_version"] == route, f"{body['model_version']} routed to {route}"
            yield int(route), body["outputs"][0]["data"]

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
        until("the first version", lambda: gantry.request("GET", "/v2/models/fraud/ready").status == 200)
        workers = [Worker(gantry, rows, made, number) for number in range(WORKERS)]
        started = time.monotonic()
        for worker in workers:
            worker.start()

        def fine():
            assert not any(w.errors for w in workers), [w.errors for w in workers]
            return True

        def sent():
            return sum(w.count for w in workers)

        for version in range(2, UPDATES + 2):
            apply(version)
            until(f"version {version}", lambda v=version: fine() and all(v in w.versions for w in workers))
            before = sent()
            until("more requests", lambda b=before: fine() and sent() >= b + BETWEEN)
        took = time.monotonic() - started
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(60)
        fine()
        assert sent() >= UPDATES * BETWEEN
        seen = set().union(*(w.versions for w in workers))
        assert seen == set(range(1, UPDATES + 2)), seen
        # A machine that cannot keep the rate proves nothing.
        assert sent() / took >= RATE / 2, f"only {sent() / took:.0f} requests per second were sent"
        assert gantry.stop() == 0, gantry.output()

"""Pipelines and experiments that change, and a step's server that is killed, while requests arrive at a constant rate."""

import http.client
import json
import math
import re
import shutil
import threading
import time
from collections import Counter

import numpy as np
import pytest
import tritonclient.grpc as grpc
from gantry import EXAMPLES, TIMEOUT, until
from processes import Stack, free_ports

PAYMENT = [[950.0, 3.0, 210.0, 5.0]]
IRIS = [[5.1, 3.5, 1.4, 0.2]]
WORKERS = 4


def manifest(kind, name, spec):
    return json.dumps({"apiVersion": "mlops.seldon.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})


def model(name, place, requirement):
    return manifest("Model", name, {"storageUri": str(place), "requirements": [requirement]})


class Rest:
    """Requests on one connection. The result is (status, headers, body)."""

    def __init__(self, address, path, name, rows, headers=None):
        tensor = {"name": name, "shape": [len(rows), len(rows[0])], "datatype": "FP32", "data": rows}
        self.request = ("POST", path, json.dumps({"inputs": [tensor]}), headers or {})
        self.connection = http.client.HTTPConnection(address, timeout=TIMEOUT)

    def __call__(self):
        self.connection.request(*self.request)
        response = self.connection.getresponse()
        return response.status, response.headers, json.loads(response.read())


class Load:
    """Calls at a constant rate in all, from several threads; `check` returns what is recorded of a result."""

    def __init__(self, rate, clients, check):
        self.interval, self.check = len(clients) / rate, check
        self.seen, self.errors = [[] for _ in clients], []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=pair, daemon=True) for pair in zip(clients, self.seen)]

    def run(self, client, seen):
        next_turn = time.monotonic()
        while not self.stopping.is_set():
            try:
                seen.append(self.check(client()))
            except Exception as error:
                self.errors.append(repr(error))
                return
            # Calls that are late are made up for; a machine that stalls does not lower the number of calls.
            next_turn += self.interval
            self.stopping.wait(max(0.0, next_turn - time.monotonic()))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join(TIMEOUT)

    def results(self):
        assert not self.errors, self.errors[:3]
        return [result for seen in self.seen for result in list(seen)]

    def mark(self):
        """The number of results of each thread."""
        return [len(seen) for seen in self.seen]

    def since(self, mark, count):
        """Waits until every thread has a share of `count` results after a mark, and returns those."""
        share = math.ceil(count / len(self.seen))

        def enough():
            assert not self.errors, self.errors[:3]
            return all(len(seen) >= start + share for seen, start in zip(self.seen, mark))

        until(f"{count} more requests", enough)
        return [result for seen, start in zip(self.seen, mark) for result in seen[start:]]


def test_pipeline_and_models_change_ten_times_under_load(start, tmp_path):
    """The version names both outputs of the response: two versions in one response would show two numbers."""
    other = shutil.copytree(EXAMPLES / "fraud", tmp_path / "other")
    text = (EXAMPLES / "fraud" / "model.json").read_text()
    (other / "model.json").write_text(re.sub(r'"base_score": ?"[^"]*"', '"base_score":"[2.5E-1]"', text))
    places = [EXAMPLES / "fraud", other]
    models = ["risk", "second"]
    file = tmp_path / "changing.json"

    def pipeline(version):
        steps = [{"name": name, "tensorMap": {"pair.inputs.payment": "input-0"}} for name in models]
        renamed = {f"{name}.outputs.predict": f"{name}-{version}" for name in models}
        return manifest("Pipeline", "pair", {"steps": steps, "output": {"steps": models, "tensorMap": renamed}})

    def over_grpc(address):
        client = grpc.InferenceServerClient(address)
        payment = grpc.InferInput("payment", [1, 4], "FP32")
        payment.set_data_from_numpy(np.float32(PAYMENT))

        def call():
            response = client.infer("pair", [payment], headers={"seldon-model": "pair.pipeline"}).get_response()
            return 200, None, {"outputs": [{"name": output.name} for output in response.outputs]}

        return call

    def version(result):
        status, headers, body = result
        assert status == 200, body
        versions = {output["name"].rsplit("-", 1)[1] for output in body["outputs"]}
        assert len(versions) == 1 and len(body["outputs"]) == 2, body
        [found] = versions
        assert headers is None or headers["x-pipeline-version"] == found, (headers["x-pipeline-version"], body)
        return int(found)

    with start() as gantry:

        def apply(text):
            file.write_text(text)
            ended = gantry.command("apply", "-f", file, "--wait")
            assert ended.returncode == 0, ended.stderr

        for name in models:
            apply(model(name, places[0], "xgboost"))
        apply(pipeline(1))
        clients = [Rest(gantry.inference, "/v2/pipelines/pair/infer", "payment", PAYMENT) for _ in range(WORKERS // 2)]
        clients += [over_grpc(gantry.inference) for _ in range(WORKERS // 2)]
        with Load(200, clients, version) as load:
            for number in range(2, 12):
                apply(pipeline(number))
                apply(model("risk", places[(number + 1) % 2], "xgboost"))
                until(f"version {number}", lambda n=number: load.results() and all(seen[-1:] == [n] for seen in load.seen))
                load.since(load.mark(), 40)
        results = load.results()
        assert set(results) == set(range(1, 12))
        for seen in load.seen:
            assert seen == sorted(seen), "a request was answered by an older version"
        assert gantry.stop() == 0, gantry.output()


def test_experiment_changes_under_load(start, tmp_path):
    """Each split is within three sigma, and no request fails while it changes."""
    file = tmp_path / "experiment.json"

    def route(result):
        status, headers, body = result
        assert status == 200, body
        return headers["x-seldon-route"]

    def split(first, second, **more):
        candidates = [{"name": "a", "weight": first}, {"name": "b", "weight": second}]
        return manifest("Experiment", "split", {"default": "a", "candidates": candidates} | more)

    with start() as gantry:

        def apply(text):
            file.write_text(text)
            ended = gantry.command("apply", "-f", file, "--wait")
            assert ended.returncode == 0, ended.stderr

        for name in "abc":
            apply(model(name, EXAMPLES / "iris", "onnx"))
        infer = "/v2/models/a/infer"
        clients = [Rest(gantry.inference, infer, "X", IRIS) for _ in range(WORKERS)]
        sticky = Rest(gantry.inference, infer, "X", IRIS, {"x-seldon-route": ":b_1:"})
        with Load(500, clients, route) as load:
            for first, second, more in [
                (50, 50, {}),
                (90, 10, {}),
                (1, 99, {}),
                (50, 50, {"mirror": {"name": "c", "percent": 100}}),
            ]:
                apply(split(first, second, **more))
                share = second / (first + second)
                # The status is ready when every gateway has the split. Three sigma are exceeded once in 370 times, and
                # three times in a row once in 50 million.
                counts = []
                while True:
                    routes = Counter(load.since(load.mark(), 1000))
                    total = sum(routes.values())
                    counts.append((routes, total))
                    assert set(routes) <= {":a_1:", ":b_1:"}, routes
                    if abs(routes[":b_1:"] - share * total) <= 3 * math.sqrt(total * share * (1 - share)):
                        break
                    assert len(counts) < 3, (first, second, counts)
                assert {route(sticky()) for _ in range(20)} == {":b_1:"}
            ended = gantry.command("delete", "experiment/split")
            assert ended.returncode == 0, ended.stderr
            until("the default alone", lambda: set(load.since(load.mark(), 100)) == {":a_1:"})
        load.results()
        assert gantry.stop() == 0, gantry.output()


@pytest.fixture
def stack(tmp_path):
    made = Stack(tmp_path)
    yield made
    made.close()


def test_killed_server_fails_its_step_alone(stack, tmp_path):
    """Two servers; a pipeline over both, and one over the server that stays."""

    def serve(name, port):
        models = tmp_path / f"{name}-models"
        models.mkdir(exist_ok=True)
        return stack.start("runtime", models, "--explicit", f"--port={port}")

    ports = dict(zip(("left", "right"), free_ports(2)))
    servers = {name: serve(name, port) for name, port in ports.items()}
    for name, port in ports.items():
        flags = ("--capabilities", name)
        stack.agent(*flags, name=name, kind="builtin", http_port=port, grpc_port=port, models=tmp_path / f"{name}-models")
    for name in ("left", "right"):
        ended = stack.apply(f"{name}-risk", EXAMPLES / "fraud", name)
        assert ended.returncode == 0, ended.stderr
    for name, steps in (("both", ("left-risk", "right-risk")), ("alone", ("left-risk",))):
        file = tmp_path / f"{name}.json"
        file.write_text(manifest("Pipeline", name, {"steps": [{"name": s} for s in steps], "output": {"steps": list(steps)}}))
        ended = stack.command("apply", "-f", file, "--wait")
        assert ended.returncode == 0, ended.stderr

    def clients(pipeline):
        return [Rest(stack.inference, f"/v2/pipelines/{pipeline}/infer", "input-0", PAYMENT) for _ in range(2)]

    def fine(result):
        assert result[0] == 200, result
        return result[0]

    def named(result):
        status, _, body = result
        assert status == 200 or "right-risk" in body["error"], body
        return status

    with Load(50, clients("alone"), fine) as alone, Load(50, clients("both"), named) as both:
        assert set(both.since(both.mark(), 50)) == {200}
        servers["right"].kill()
        until("errors that name the step", lambda: any(status != 200 for status in both.results()))
        alone.since(alone.mark(), 50)
        serve("right", ports["right"])
        until("the recovery", lambda: set(both.since(both.mark(), 20)) == {200})
        alone.since(alone.mark(), 50)
    both.results()
    assert set(alone.results()) == {200}

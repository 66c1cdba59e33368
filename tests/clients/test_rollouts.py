"""Models and Pipelines under a RolloutPolicy while requests arrive at a constant rate: a good version is promoted, a bad one is
rolled back."""

import http.client
import json
import re
import shutil
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from gantry import EXAMPLES, TIMEOUT, until
from processes import Stack, free_ports
from test_graphs_under_load import PAYMENT, WORKERS, Load, Rest, manifest, model

RATE = 200

# Latencies on a loaded machine say nothing about a version: wide margins.
POLICY = """
apiVersion: gantry.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: careful}
spec:
  targetRef: {kind: %s, name: risk}
  strategy:
    canary:
      steps: [{weight: 20}, {weight: 50}]
  analysis: {sequential: {latency: {tolerated: 0.5, rejected: 0.9}}}
"""


class FailingProxy:
    """In front of the REST port of a server: requests for a model that `fails` matches are answered with 500."""

    def __init__(self, upstream):
        self.fails = None
        proxy, connections = self, threading.local()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def forward(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if proxy.fails and proxy.fails.search(self.path):
                    return self.answer(500, "application/json", b'{"error":"out of order"}')
                if not hasattr(connections, "one"):
                    connections.one = http.client.HTTPConnection(upstream, timeout=TIMEOUT)
                headers = {"content-type": self.headers.get("content-type", "application/json")}
                connections.one.request(self.command, self.path, body, headers)
                response = connections.one.getresponse()
                self.answer(response.status, response.headers.get("content-type", "application/json"), response.read())

            do_GET = do_POST = forward

            def answer(self, status, content, body):
                self.send_response(status)
                self.send_header("content-type", content)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def stack(tmp_path):
    made = Stack(tmp_path)
    yield made
    made.close()


def test_good_version_is_promoted_and_bad_one_is_rolled_back(stack, tmp_path):
    """The stable version fails no request; after the rollback no request fails."""
    places = [EXAMPLES / "fraud"]
    text = (EXAMPLES / "fraud" / "model.json").read_text()
    for score in ("2.5E-1", "3.5E-1"):
        place = shutil.copytree(EXAMPLES / "fraud", tmp_path / f"fraud-{score}")
        (place / "model.json").write_text(re.sub(r'"base_score": ?"[^"]*"', f'"base_score":"[{score}]"', text))
        places.append(place)
    models = tmp_path / "models"
    models.mkdir()
    (port,) = free_ports(1)
    stack.start("runtime", models, "--explicit", f"--port={port}")
    proxy = FailingProxy(f"127.0.0.1:{port}")
    stack.agent("--capabilities", "xgboost", kind="builtin", http_port=proxy.port, grpc_port=port, models=models)

    def apply(text, *flags):
        file = tmp_path / "applied.yaml"
        file.write_text(text)
        ended = stack.command("apply", "-f", file, *flags)
        assert ended.returncode == 0, ended.stderr

    def rollout():
        ended = stack.command("rollout", "status", "risk", "--output=json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def version_or_failure(result):
        status, headers, body = result
        if status == 500:
            return "failed"
        assert status == 200, body
        return body["model_version"]

    apply(POLICY % "Model")
    apply(model("risk", places[0], "xgboost"), "--wait")
    clients = [Rest(stack.inference, "/v2/models/risk/infer", "input-0", PAYMENT) for _ in range(WORKERS)]
    with Load(RATE, clients, version_or_failure) as load:
        assert set(load.since(load.mark(), 100)) == {"1"}
        apply(model("risk", places[1], "xgboost"))
        until("the promotion", lambda: rollout()["stable"]["version"] == 2)
        until("all requests at version 2", lambda: set(load.since(load.mark(), 100)) == {"2"})
        shared = Counter(load.results())
        assert "failed" not in shared and shared["1"] and shared["2"], shared

        proxy.fails = re.compile("_3/infer")
        apply(model("risk", places[2], "xgboost"))
        until("the rollback", lambda: any(entry["outcome"] == "RolledBack" for entry in rollout()["history"]))
        until("all requests at version 2", lambda: set(load.since(load.mark(), 100)) == {"2"})
        found = rollout()
        assert found["stable"]["version"] == 2, found
        assert "5xx" in found["failed"][-1]["message"], found
        leaked = Counter(load.results())["failed"]
        assert 0 < leaked, "no request reached the bad version"
        print(f"requests that failed before the rollback: {leaked}")
        described = stack.command("get", "models", "-o", "wide").stdout
        assert "rolled back" in described, described


def test_good_version_of_a_pipeline_is_promoted_and_bad_one_is_rolled_back(start, tmp_path):
    """In `gantry up`. The stable version fails no request; a request runs on one version; after the rollback none fails."""
    names = ["first", "second"]

    def pipeline(version, broken=False):
        steps = [{"name": name, "tensorMap": {"risk.inputs.payment": "input-0"}} for name in names]
        if broken:
            # A trigger that never comes: runs of this version have no output.
            steps[1]["triggers"] = ["first.outputs.misspelled"]
        renamed = {f"{name}.outputs.predict": f"{name}-{version}" for name in names}
        output = {"steps": names[1:] if broken else names, "tensorMap": renamed}
        return manifest("Pipeline", "risk", {"steps": steps, "output": output})

    def version_or_failure(result):
        status, headers, body = result
        version = headers["x-pipeline-version"]
        if status == 400:
            return f"{version} failed"
        assert status == 200, body
        assert {output["name"] for output in body["outputs"]} == {f"{name}-{version}" for name in names}, body
        return version

    with start() as gantry:

        def apply(text, *flags):
            file = tmp_path / "applied.yaml"
            file.write_text(text)
            ended = gantry.command("apply", "-f", file, *flags)
            assert ended.returncode == 0, ended.stderr

        def rollout():
            ended = gantry.command("rollout", "status", "pipeline/risk", "--output=json")
            assert ended.returncode == 0, ended.stderr
            return json.loads(ended.stdout)

        apply(POLICY % "Pipeline")
        for name in names:
            apply(model(name, EXAMPLES / "fraud", "xgboost"), "--wait")
        apply(pipeline(1), "--wait")
        path = "/v2/pipelines/risk/infer"
        clients = [Rest(gantry.inference, path, "payment", PAYMENT) for _ in range(WORKERS)]
        with Load(RATE, clients, version_or_failure) as load:
            assert set(load.since(load.mark(), 100)) == {"1"}
            apply(pipeline(2))
            until("the promotion", lambda: rollout()["stable"]["version"] == 2)
            until("all requests at version 2", lambda: set(load.since(load.mark(), 100)) == {"2"})
            shared = Counter(load.results())
            assert set(shared) == {"1", "2"}, shared

            apply(pipeline(3, broken=True))
            until("the rollback", lambda: any(entry["outcome"] == "RolledBack" for entry in rollout()["history"]))
            until("all requests at version 2", lambda: set(load.since(load.mark(), 100)) == {"2"})
            found = rollout()
            assert (found["kind"], found["stable"]["version"]) == ("Pipeline", 2), found
            results = Counter(load.results())
            assert set(results) == {"1", "2", "3 failed"}, results
            print(f"requests that failed before the rollback: {results['3 failed']}")
            for words in (["get", "pipelines", "-o", "wide"], ["describe", "pipeline/risk"], ["explain", "pipeline/risk"]):
                shown = gantry.command(*words).stdout
                assert "rolled back" in shown, shown
            # The same spec is not tried again; a corrected one is.
            apply(pipeline(3, broken=True))
            apply(pipeline(4), "--wait")
            until("all requests at version 4", lambda: set(load.since(load.mark(), 100)) == {"4"})
        assert set(load.results()) == {"1", "2", "3 failed", "4"}
        assert gantry.stop() == 0, gantry.output()


DRIFT = """
apiVersion: gantry.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: watchful}
spec:
  targetRef: {kind: Model, name: risk}
  strategy: {blueGreen: {}}
  analysis: {interval: 1s}
  bake: 3s
  drift: {output: predict, windows: 2, minOutputs: 50}
"""


def test_model_whose_outputs_drift_after_the_bake_returns_to_the_version_before(start, tmp_path):
    """In `gantry up`. The distribution during the bake is the reference; other payments have other scores."""
    other = shutil.copytree(EXAMPLES / "fraud", tmp_path / "other")
    text = (EXAMPLES / "fraud" / "model.json").read_text()
    (other / "model.json").write_text(re.sub(r'"base_score": ?"[^"]*"', '"base_score":"[2.5E-1]"', text))
    with start() as gantry:

        def apply(text, *flags):
            file = tmp_path / "applied.yaml"
            file.write_text(text)
            ended = gantry.command("apply", "-f", file, *flags)
            assert ended.returncode == 0, ended.stderr

        def rollout():
            ended = gantry.command("rollout", "status", "risk", "--output=json")
            assert ended.returncode == 0, ended.stderr
            return json.loads(ended.stdout)

        def score(result):
            status, _, body = result
            assert status == 200, body
            return body["model_version"], body["outputs"][0]["data"][0]

        apply(DRIFT)
        apply(model("risk", EXAMPLES / "fraud", "xgboost"), "--wait")
        path = "/v2/models/risk/infer"
        clients = [Rest(gantry.inference, path, "input-0", PAYMENT) for _ in range(WORKERS)]
        with Load(RATE, clients, score) as load:
            apply(model("risk", other, "xgboost"))
            until("the bake has ended", lambda: (found := rollout())["stable"]["version"] == 2 and found["watch"] == "Drift")
            # Windows with the same payments show no drift.
            load.since(load.mark(), 3 * RATE)
            assert rollout()["stable"]["version"] == 2
            [(_, before)] = set(load.since(load.mark(), 40))
            for client in clients:
                client.request = Rest(gantry.inference, path, "input-0", [[20.0, 14.0, 1.0, 0.0]]).request
            until("the return", lambda: rollout()["stable"]["version"] == 1)
            assert all(after != before for version, after in load.since(load.mark(), 100) if version == "2")
            found = rollout()
            assert found["failed"][-1]["reason"] == "Drifted", found
            assert "output predict" in found["failed"][-1]["message"], found
            print(found["failed"][-1]["message"])
        load.results()
        assert gantry.stop() == 0, gantry.output()


MIRROR = """
apiVersion: gantry.dev/v1alpha1
kind: RolloutPolicy
metadata: {name: shadow}
spec:
  targetRef: {kind: Model, name: risk}
  strategy: {mirrorFirst: {percent: 50, steps: [{weight: 50}], compare: {}}}
  analysis: {sequential: {latency: {tolerated: 0.5, rejected: 0.9}}}
"""


def test_version_that_answers_differently_is_found_with_copies(start, tmp_path):
    """In `gantry up`. No client gets an answer of a version whose answers to copies differ; an equal one is promoted."""
    other = shutil.copytree(EXAMPLES / "fraud", tmp_path / "other")
    equal = shutil.copytree(EXAMPLES / "fraud", tmp_path / "equal")
    text = (EXAMPLES / "fraud" / "model.json").read_text()
    (other / "model.json").write_text(re.sub(r'"base_score": ?"[^"]*"', '"base_score":"[2.5E-1]"', text))
    with start() as gantry:

        def apply(text, *flags):
            file = tmp_path / "applied.yaml"
            file.write_text(text)
            ended = gantry.command("apply", "-f", file, *flags)
            assert ended.returncode == 0, ended.stderr

        def rollout():
            ended = gantry.command("rollout", "status", "risk", "--output=json")
            assert ended.returncode == 0, ended.stderr
            return json.loads(ended.stdout)

        def version(result):
            status, _, body = result
            assert status == 200, body
            return body["model_version"]

        apply(MIRROR)
        apply(model("risk", EXAMPLES / "fraud", "xgboost"), "--wait")
        clients = [Rest(gantry.inference, "/v2/models/risk/infer", "input-0", PAYMENT) for _ in range(WORKERS)]
        with Load(RATE, clients, version) as load:
            apply(model("risk", other, "xgboost"))
            until("the rollback", lambda: any(entry["outcome"] == "RolledBack" for entry in rollout()["history"]))
            found = rollout()
            assert found["failed"][-1]["reason"] == "OutputsDiffer", found
            assert set(load.results()) == {"1"}
            apply(model("risk", equal, "xgboost"))
            until("the promotion", lambda: rollout()["stable"]["version"] == 3)
        assert set(load.results()) == {"1", "3"}
        assert gantry.stop() == 0, gantry.output()

"""Pipelines and experiments of `gantry up` over REST and gRPC, with the examples and with changing manifests."""

import math
import shutil
import threading
from collections import Counter

import numpy as np
import pytest
import reference_predictions
import tritonclient.grpc as grpc
from gantry import EXAMPLES, ROOT, until

PAYMENT = [[950.0, 3.0, 210.0, 5.0]]
DAY = [[2.0, 8.0, 18.0, 0.0]]
IRIS = [[5.1, 3.5, 1.4, 0.2]]


def tensor(name, rows, datatype="FP32"):
    return {"name": name, "shape": [len(rows), len(rows[0])], "datatype": datatype, "data": rows}


def manifest(kind, name, spec):
    return f"apiVersion: mlops.seldon.io/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Copies of the examples, served and watched."""
    import gantry

    place = tmp_path_factory.mktemp("graphs")
    shutil.copytree(ROOT / "examples", place / "examples")
    paths = [place / "examples" / name for name in ("pipelines", "experiments")]
    with gantry.Gantry(place / "state", *paths) as served:
        served.place = place / "examples"
        yield served
        assert served.stop() == 0, served.output()


def expected():
    risk = reference_predictions.xgboost_predictions(EXAMPLES / "fraud" / "model.json", np.float32(PAYMENT))
    return float(risk[0])


def test_start_screen_lists_pipelines_and_experiments(graphs):
    lines = [" ".join(line.split()) for line in graphs.out]
    assert "checkout pipeline ready 2 steps" in lines, graphs.output()
    assert "half experiment ready 50 iris-a : 50 iris-b" in lines, graphs.output()


def test_pipeline_over_rest(graphs):
    body = {"inputs": [tensor("payment", PAYMENT), tensor("day", DAY, "FP64")]}
    for path, headers in [
        ("/v2/pipelines/checkout/infer", {}),
        ("/v2/models/any/infer", {"seldon-model": "checkout.pipeline"}),
    ]:
        response = graphs.request("POST", path, body, headers)
        assert response.status == 200, response.body
        outputs = {output["name"]: output["data"] for output in response.json()["outputs"]}
        assert outputs["risk"][0] == pytest.approx(expected(), rel=1e-5)
        assert set(outputs) == {"risk", "rentals"}
        assert response.headers["x-pipeline-version"] == "1"
        routes = " ".join(response.headers.get_all("x-seldon-route"))
        assert ":checkout.pipeline:" in routes and ":risk_1:" in routes, routes


def test_step_without_its_tensor_does_not_run(graphs):
    response = graphs.request("POST", "/v2/pipelines/checkout/infer", {"inputs": [tensor("payment", PAYMENT)]})
    assert [output["name"] for output in response.json()["outputs"]] == ["risk"]
    nothing = graphs.request("POST", "/v2/pipelines/checkout/infer", {"inputs": [tensor("other", PAYMENT)]})
    assert nothing.status == 400 and "payment" in nothing.error, nothing.body


def test_pipeline_over_grpc(graphs):
    client = grpc.InferenceServerClient(graphs.inference)
    payment = grpc.InferInput("payment", [1, 4], "FP32")
    payment.set_data_from_numpy(np.float32(PAYMENT))
    result = client.infer("checkout", [payment], headers={"seldon-model": "checkout.pipeline"})
    assert result.as_numpy("risk")[0] == pytest.approx(expected(), rel=1e-5)
    bad = grpc.InferInput("payment", [1, 3], "FP32")
    bad.set_data_from_numpy(np.float32([[1, 2, 3]]))
    with pytest.raises(Exception) as error:
        client.infer("checkout", [bad], headers={"seldon-model": "checkout.pipeline"})
    assert "risk : " in str(error.value) and "UNKNOWN" in str(error.value)


def test_errors_name_the_step_and_the_pipeline(graphs):
    bad = {"inputs": [tensor("payment", [[1.0, 2.0, 3.0]])]}
    failed = graphs.request("POST", "/v2/pipelines/checkout/infer", bad)
    assert failed.status == 400 and failed.error.startswith("risk : "), failed.body
    assert graphs.request("POST", "/v2/pipelines/other/infer", bad).status == 404
    assert graphs.request("GET", "/v2/pipelines/checkout/ready").status == 200
    assert graphs.request("GET", "/v2/pipelines/other/ready").status == 404
    unknown = graphs.command("pipeline", "infer", "chekout", '{"inputs": []}')
    assert unknown.returncode == 3 and unknown.stderr.endswith("\nDid you mean checkout?\n"), unknown


def test_trace_lists_every_step(graphs):
    request = '{"inputs":[{"name":"payment","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
    ran = graphs.command("pipeline", "infer", "checkout", "--trace", request)
    first, risk, rentals = ran.stdout.splitlines()
    assert first.startswith("checkout answered in ") and first.endswith("(version 1)."), ran.stdout
    assert risk.split()[0] == "risk" and "builtin-0" in risk and "input-0 → predict" in risk
    assert rentals.split()[0] == "rentals" and rentals.endswith("skipped: tensor checkout.inputs.day is absent")


def routes_of(graphs, count, path="/v2/models/iris-a/infer", **headers):
    found = Counter()
    for _ in range(count):
        response = graphs.request("POST", path, {"inputs": [tensor("X", IRIS)]}, headers)
        assert response.status == 200, response.body
        found[response.headers["x-seldon-route"]] += 1
    return found


def test_experiment_splits_within_three_sigma(graphs):
    count = 1000
    for path, headers in [
        ("/v2/models/iris-a/infer", {}),
        ("/v2/models/any/infer", {"seldon-model": "half.experiment"}),
    ]:
        # An exact split exceeds three sigma once in 370 times, and three times in a row once in 50 million.
        seen = []
        for _ in range(3):
            found = routes_of(graphs, count, path, **headers)
            assert set(found) == {":iris-a_1:", ":iris-b_1:"}, found
            seen.append(found)
            if abs(found[":iris-a_1:"] - count / 2) <= 3 * math.sqrt(count / 4):
                break
        else:
            raise AssertionError(seen)
    assert set(routes_of(graphs, 20, "/v2/models/iris-b/infer")) == {":iris-b_1:"}, "only the default is split"


def test_route_header_is_sticky(graphs):
    for route in (":iris-a_1:", ":iris-b_1:"):
        assert set(routes_of(graphs, 30, **{"x-seldon-route": route})) == {route}


def test_experiment_over_grpc(graphs):
    client = grpc.InferenceServerClient(graphs.inference)
    flower = grpc.InferInput("X", [1, 4], "FP32")
    flower.set_data_from_numpy(np.float32(IRIS))
    names = {client.infer("iris-a", [flower]).get_response().model_name for _ in range(40)}
    assert names == {"iris-a_1", "iris-b_1"}


def test_mirror_receives_copies(graphs):
    text = graphs.request("GET", "/top", at=graphs.admin).json()
    before = next(m["requests"] for m in text["models"] if m["name"] == "iris-c")
    routes_of(graphs, 200)

    def copied():
        models = graphs.request("GET", "/top", at=graphs.admin).json()["models"]
        return next(m["requests"] for m in models if m["name"] == "iris-c") > before

    until("a copy at the mirror", copied)


class Load(threading.Thread):
    """Requests for a model or pipeline until stopped; records routes and failures."""

    def __init__(self, graphs, path, body):
        super().__init__(daemon=True)
        self.graphs, self.path, self.body = graphs, path, body
        self.responses, self.failures = [], []
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.is_set():
            response = self.graphs.request("POST", self.path, self.body)
            if response.status == 200:
                self.responses.append(response)
            else:
                self.failures.append(response.body)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.join(60)


def test_weights_change_under_load_without_a_failure(graphs):
    file = graphs.place / "experiments" / "half.yaml"
    original = file.read_text()
    with Load(graphs, "/v2/models/iris-a/infer", {"inputs": [tensor("X", IRIS)]}) as load:
        for weights in [(100, 0), (0, 100), (90, 10)]:
            text = original.replace("weight: 50", f"weight: {weights[0]}", 1).replace("weight: 50", f"weight: {weights[1]}", 1)
            file.write_text(text)
            until(
                f"the weights {weights}",
                lambda: f"weight: {weights[0]}" in graphs.command("get", "experiment/half", "-o", "yaml").stdout,
            )
            routes_of(graphs, 20)
    assert load.responses and not load.failures, load.failures[:3]
    file.write_text(original)
    until("the original weights", lambda: graphs.command("get", "experiment/half", "-o", "yaml").stdout.count("weight: 50") == 2)


def test_pipeline_changes_under_load_without_a_failure(graphs):
    file = graphs.place / "pipelines" / "checkout.yaml"
    original = file.read_text()
    body = {"inputs": [tensor("payment", PAYMENT)]}
    with Load(graphs, "/v2/pipelines/checkout/infer", body) as load:
        for version in range(2, 6):
            name = "risk" if version % 2 else "danger"
            file.write_text(original.replace("risk.outputs.predict: risk", f"risk.outputs.predict: {name}"))
            until(
                f"version {version}",
                lambda: graphs.request("POST", "/v2/pipelines/checkout/infer", body).headers["x-pipeline-version"]
                == str(version),
            )
    assert load.responses and not load.failures, load.failures[:3]
    for response in load.responses:
        version = int(response.headers["x-pipeline-version"])
        [output] = response.json()["outputs"]
        assert output["name"] == ("risk" if version % 2 else "danger"), (version, output)
    file.write_text(original)


def test_objects_of_a_removed_file_are_removed(graphs):
    folder = graphs.place / "pipelines"
    (folder / "extra.yaml").write_text(
        manifest("Pipeline", "extra", "{steps: [{name: risk}], output: {steps: [risk]}}")
        + "---\n"
        + manifest("Experiment", "pair", "{resourceType: pipeline, candidates: [{name: extra, weight: 1}]}")
    )
    body = {"inputs": [tensor("input-0", PAYMENT)]}
    until("the new pipeline", lambda: graphs.request("POST", "/v2/pipelines/extra/infer", body).status == 200)
    header = {"seldon-model": "pair.experiment"}
    until("the new experiment", lambda: graphs.request("POST", "/v2/models/x/infer", body, header).status == 200)
    (folder / "extra.yaml").unlink()
    until("the removal", lambda: graphs.request("POST", "/v2/pipelines/extra/infer", body).status == 404)
    gone = graphs.command("get", "experiment/pair")
    assert gone.returncode == 3, gone


def test_invalid_graph_changes_nothing(graphs):
    file = graphs.place / "pipelines" / "broken.yaml"
    file.write_text(manifest("Pipeline", "broken", "{steps: [{name: a, inputs: [b]}, {name: b, inputs: [a]}]}"))
    until("the message", lambda: any("has a cycle" in line for line in graphs.err))
    file.unlink()
    body = {"inputs": [tensor("payment", PAYMENT)]}
    assert graphs.request("POST", "/v2/pipelines/checkout/infer", body).status == 200


def test_pipelines_and_experiments_survive_a_kill(start, tmp_path):
    state = tmp_path / "kept"
    gantry = start(ROOT / "examples" / "pipelines", ROOT / "examples" / "experiments", state=state).ready()
    gantry.kill()
    again = start(state=state).ready()
    body = {"inputs": [tensor("payment", PAYMENT)]}
    until("the pipeline", lambda: again.request("POST", "/v2/pipelines/checkout/infer", body).status == 200)
    header = {"seldon-model": "half.experiment"}
    flower = {"inputs": [tensor("X", IRIS)]}
    until("the experiment", lambda: again.request("POST", "/v2/models/x/infer", flower, header).status == 200)

"""MLServer with `gantry agent`: scikit-learn models are loaded, updated under load, evicted and reloaded by requests, and
unloaded."""

import json
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpc
from gantry import until
from processes import Stack, responds, http_request, free_ports, installed, metric, mlserver

# Trains two models with different predictions, and prints the predictions.
TRAIN = """
import json, sys
from pathlib import Path
import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
X, y = load_iris(return_X_y=True)
rows = X[::10].astype("float32")
for name, labels in (("one", y), ("two", y + 10)):
    model = LogisticRegression(max_iter=500).fit(X, labels)
    place = Path(sys.argv[1]) / name
    place.mkdir(parents=True)
    joblib.dump(model, place / "model.joblib")
    answers = model.predict(rows).tolist()
    (place.parent / f"{name}.json").write_text(json.dumps([rows.tolist(), answers]))
broken = Path(sys.argv[1]) / "broken"
broken.mkdir()
(broken / "model.joblib").write_bytes(b"cnowhere_to_be_found\\nthing\\n.")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    subprocess.run([installed("mlserver") / "python", "-c", TRAIN, place], check=True, timeout=120)
    return place


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    stack = Stack(tmp_path_factory.mktemp("mlserver"))
    yield stack
    stack.close()


class Harness:
    """MLServer and its agent; both can be restarted."""

    def __init__(self, stack):
        self.stack = stack
        self.models = stack.directory / "models"
        self.models.mkdir()
        self.ports = free_ports(3)
        self.at = f"127.0.0.1:{self.ports[0]}"
        self.server = mlserver(stack, self.models, self.ports)
        self.start_agent()

    def start_agent(self):
        self.agent = self.stack.agent(
            *("--memory", 1_000_000, "--overcommit", 200, "--health-check-interval", 1),
            name="mlserver",
            kind="mlserver",
            http_port=self.ports[0],
            grpc_port=self.ports[1],
            models=self.models,
        )

    def holds(self):
        index = http_request(self.at, "POST", "/v2/repository/index", {"ready": True}).json()
        return {model["name"] for model in index}


@pytest.fixture(scope="module")
def harness(stack, trained):
    return Harness(stack)


def expected_predictions(trained, name):
    return json.loads((trained / f"{name}.json").read_text())


def check(stack, model, trained, name):
    rows, expected = expected_predictions(trained, name)
    answer = stack.infer(model, rows)
    assert answer.status == 200, answer.body
    assert answer.json()["outputs"][0]["data"] == expected


def test_model_is_served_over_rest_and_grpc(harness, trained):
    stack = harness.stack
    applied = stack.apply("iris", trained / "one", "sklearn", memory="100k")
    assert applied.returncode == 0, applied.stderr + harness.agent.output()
    check(stack, "iris", trained, "one")
    assert harness.holds() == {"iris_1"}
    rows, expected = expected_predictions(trained, "one")
    given = grpc.InferInput("predict", [len(rows), 4], "FP32")
    given.set_data_from_numpy(np.array(rows, dtype=np.float32))
    with grpc.InferenceServerClient(stack.inference) as client:
        assert client.is_model_ready("iris")
        result = client.infer("iris", [given])
        assert result.get_response().model_name == "iris_1"
        assert result.as_numpy("predict").flatten().tolist() == expected
    # Over a mebibyte: the model name is rewritten in a streamed message.
    many = np.tile(np.array(rows, dtype=np.float32), (8000, 1))
    given = grpc.InferInput("predict", list(many.shape), "FP32")
    given.set_data_from_numpy(many)
    with grpc.InferenceServerClient(stack.inference) as client:
        assert client.infer("iris", [given]).as_numpy("predict").flatten().tolist() == expected * 8000
    assert metric(harness.agent.metrics, "seldon_model_infer_total") >= 3


def test_update_under_load_fails_no_request(harness, trained):
    stack = harness.stack
    wrong, answered, seen, stop = [], [], [set() for _ in range(4)], threading.Event()
    answers_of = {"1": expected_predictions(trained, "one"), "2": expected_predictions(trained, "two")}

    def work(mine):
        rows = answers_of["1"][0]
        while not stop.is_set():
            try:
                answer = stack.infer("iris", rows)
                assert answer.status == 200, answer.body
                body = answer.json()
                version = body["model_version"]
                assert body["outputs"][0]["data"] == answers_of[version][1], (version, body)
                mine.add(version)
                answered.append(version)
            except Exception as error:
                wrong.append(repr(error))
                return

    workers = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in seen]
    for worker in workers:
        worker.start()

    def fine(condition):
        assert not wrong, (wrong, harness.agent.output())
        return condition()

    until("answers of version 1", lambda: fine(lambda: answered.count("1") >= 100))
    assert stack.apply("iris", trained / "two", "sklearn", memory="100k").returncode == 0
    until("answers of version 2", lambda: fine(lambda: all("2" in mine for mine in seen)))
    until("the end of version 1", lambda: fine(lambda: harness.holds() == {"iris_2"}))
    until("more answers", lambda: fine(lambda: answered.count("2") >= 100))
    stop.set()
    for worker in workers:
        worker.join(60)
    assert not wrong, wrong


def test_overcommitted_models_are_evicted_and_reloaded(harness, trained):
    stack = harness.stack
    for name, place in (("a", "one"), ("b", "two"), ("c", "one")):
        applied = stack.apply(name, trained / place, "sklearn", memory="600k")
        assert applied.returncode == 0, applied.stderr + harness.agent.output()
    placed = {p.name for p in harness.models.iterdir() if not p.name.startswith(".")}
    assert placed == {"iris_2", "a_1", "b_1", "c_1"}
    before = metric(harness.agent.metrics, "seldon_cache_miss_count")
    for _ in range(2):
        for name, place in (("a", "one"), ("b", "two"), ("c", "one")):
            check(stack, name, trained, place)
            held = harness.holds() & {"a_1", "b_1", "c_1"}
            assert held == {f"{name}_1"}, held
    assert metric(harness.agent.metrics, "seldon_cache_miss_count") >= before + 5
    assert metric(harness.agent.metrics, "seldon_cache_evict_count") >= 5
    for name in ("a", "b", "c"):
        assert stack.command("delete", "model", name).returncode == 0
    until("the end of all three", lambda: not {p.name for p in harness.models.iterdir()} & {"a_1", "b_1", "c_1"})


def test_load_error_of_the_server_is_in_the_status(harness, trained):
    applied = harness.stack.apply("broken", trained / "broken", "sklearn", wait=False)
    assert applied.returncode == 0
    described = until(
        "the failure",
        lambda: (d := harness.stack.command("describe", "model/broken").stdout) and "mlserver-0" in d and d,
    )
    assert "No module named 'nowhere_to_be_found'" in described, described
    assert harness.stack.command("delete", "model", "broken").returncode == 0


def test_restarted_server_gets_its_models_back(harness, trained):
    check(harness.stack, "iris", trained, "two")
    harness.server.kill()
    until("the agent to be unready", lambda: responds(harness.agent.ready, "/ready", 503))
    harness.server = mlserver(harness.stack, harness.models, harness.ports)
    harness.agent.until("the agent to be ready", lambda: responds(harness.agent.ready, "/ready"))
    until("a response", lambda: harness.stack.infer("iris", expected_predictions(trained, "two")[0]).status == 200)
    check(harness.stack, "iris", trained, "two")


def test_restarted_agent_adopts_loaded_models(harness, trained):
    harness.agent.kill()
    harness.start_agent()
    until("a response", lambda: harness.stack.infer("iris", expected_predictions(trained, "two")[0]).status == 200)
    assert harness.holds() == {"iris_2"}


# Adds up its input; a mode of "fail" makes every request fail.
SUM = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Sum(MLModel):
    async def predict(self, payload):
        values = self.decode(payload.inputs[0], NumpyCodec)
        if self.settings.parameters.extra["mode"] == "fail":
            raise RuntimeError("this operator is not implemented")
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("sum", values.sum(axis=1))])
"""


def test_model_that_fails_its_warm_up_is_not_available(harness, tmp_path):
    stack = harness.stack
    for mode in ("work", "fail"):
        place = tmp_path / mode
        place.mkdir()
        (place / "model.py").write_text(SUM)
        settings = {
            "name": "sum",
            "implementation": "model.Sum",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
            "parameters": {"extra": {"mode": mode}},
        }
        (place / "model-settings.json").write_text(json.dumps(settings))
    applied = stack.apply("sum", tmp_path / "work", "python", memory="1k")
    assert applied.returncode == 0, applied.stderr + harness.agent.output()
    applied = stack.apply("never", tmp_path / "fail", "python", memory="1k")
    assert applied.returncode != 0
    assert "warm-up" in applied.stderr and "not implemented" in applied.stderr, applied.stderr
    assert "never_1" not in harness.holds()
    for name in ("sum", "never"):
        assert stack.command("delete", "model", name, "--wait").returncode == 0


def test_unload_and_shutdown(harness, trained):
    stack = harness.stack
    assert stack.command("delete", "model", "iris").returncode == 0
    until("an empty server", lambda: not harness.holds())
    until("an empty directory", lambda: not [p for p in harness.models.iterdir() if not p.name.startswith(".")])
    assert harness.agent.terminate() == 0, harness.agent.output()

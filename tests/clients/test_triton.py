"""Triton with `gantry agent` and Python models: loaded, updated under load, evicted and reloaded by requests, unloaded."""

import platform
import queue
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpc
from gantry import until
from processes import Stack, http_request, free_ports, metric, triton

pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="the wheel is for Linux on x86-64"
)

# Adds a number to its input.
MODEL = """
import triton_python_backend_utils as triton


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({{"name": "X", "data_type": "TYPE_FP32", "dims": [-1, 4]}})
        config.add_output({{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1, 4]}})
        return config

    def execute(self, requests):
        given = [triton.get_input_tensor_by_name(r, "X").as_numpy() for r in requests]
        return [triton.InferenceResponse([triton.Tensor("Y", x + {number})]) for x in given]
"""
# Answers each request three times: with its input plus 1, 2 and 3.
DECOUPLED = """
import triton_python_backend_utils as triton


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [-1, 4]})
        config.add_output({"name": "Y", "data_type": "TYPE_FP32", "dims": [-1, 4]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            given = triton.get_input_tensor_by_name(request, "X").as_numpy()
            sender = request.get_response_sender()
            for number in (1, 2, 3):
                sender.send(triton.InferenceResponse([triton.Tensor("Y", given + number)]))
            sender.send(flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
ROWS = [[1.0, 2.0, 3.0, 4.0], [0.5, 0.25, 0.0, -1.0]]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """Models with versions and a configuration, or as a bare file."""
    place = tmp_path_factory.mktemp("artifacts")
    for version, number in ((1, 100), (2, 10)):
        folder = place / "versions" / str(version)
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(MODEL.format(number=number))
    (place / "versions" / "config.pbtxt").write_text('name: "another"\nbackend: "python"\n')
    for number in (20, 30):
        bare = place / f"plus{number}"
        bare.mkdir()
        (bare / "model.py").write_text(MODEL.format(number=number))
    decoupled = place / "decoupled"
    decoupled.mkdir()
    (decoupled / "model.py").write_text(DECOUPLED)
    broken = place / "broken"
    broken.mkdir()
    (broken / "model.py").write_text("raise ValueError('this model is broken on purpose')\n")
    return place


class Harness:
    def __init__(self, place):
        self.stack = Stack(place)
        self.models = place / "models"
        self.models.mkdir()
        self.ports = free_ports(3)
        self.at = f"127.0.0.1:{self.ports[0]}"
        self.server = triton(self.stack, self.models, self.ports)
        try:
            self.agent = self.stack.agent(
                *("--memory", 1_000_000, "--overcommit", 100, "--health-check-interval", 1),
                name="triton",
                kind="triton",
                http_port=self.ports[0],
                grpc_port=self.ports[1],
                models=self.models,
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.server.output()}") from None

    def holds(self):
        index = http_request(self.at, "POST", "/v2/repository/index", {"ready": True}).json()
        return {model["name"] for model in index if model.get("state") == "READY"}


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    harness = Harness(tmp_path_factory.mktemp("triton"))
    yield harness
    harness.stack.close()


def plus(stack, model):
    """The number that a model adds; `None` while it does not respond."""
    answer = stack.infer(model, ROWS, "X")
    assert answer.status == 200, answer.body
    return (np.array(answer.json()["outputs"][0]["data"]).reshape(2, 4) - np.array(ROWS)).round(3).mean()


def test_model_is_served_over_rest_and_grpc(harness, artifacts):
    applied = harness.stack.apply("adder", artifacts / "versions", "triton", "python", memory="100k")
    assert applied.returncode == 0, applied.stderr + harness.agent.output() + harness.server.output()
    assert plus(harness.stack, "adder") == 10, "the highest version"
    assert harness.holds() == {"adder_1"}
    given = grpc.InferInput("X", [2, 4], "FP32")
    given.set_data_from_numpy(np.array(ROWS, dtype=np.float32))
    with grpc.InferenceServerClient(harness.stack.inference) as client:
        assert client.is_model_ready("adder")
        result = client.infer("adder", [given])
        assert result.get_response().model_name == "adder_1"
        assert np.allclose(result.as_numpy("Y"), np.array(ROWS) + 10)


def test_update_under_load_fails_no_request(harness, artifacts):
    wrong, seen, stop = [], [set() for _ in range(3)], threading.Event()

    def work(mine):
        while not stop.is_set():
            try:
                mine.add(plus(harness.stack, "adder"))
            except Exception as error:
                wrong.append(repr(error))
                return

    workers = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in seen]
    for worker in workers:
        worker.start()

    def fine(condition):
        assert not wrong, (wrong, harness.agent.output())
        return condition()

    until("answers of version 1", lambda: fine(lambda: all(10 in mine for mine in seen)))
    applied = harness.stack.apply("adder", artifacts / "plus20", "triton", memory="100k")
    assert applied.returncode == 0, applied.stderr + harness.agent.output()
    until("answers of version 2", lambda: fine(lambda: all(20 in mine for mine in seen)))
    until("the end of version 1", lambda: fine(lambda: harness.holds() == {"adder_2"}))
    stop.set()
    for worker in workers:
        worker.join(60)
    assert not wrong, wrong
    assert set().union(*seen) == {10, 20}


def test_decoupled_model_streams_its_responses(harness, artifacts):
    applied = harness.stack.apply("counter", artifacts / "decoupled", "triton", "python", memory="100k")
    assert applied.returncode == 0, applied.stderr + harness.agent.output() + harness.server.output()
    given = grpc.InferInput("X", [2, 4], "FP32")
    given.set_data_from_numpy(np.array(ROWS, dtype=np.float32))
    answers = queue.Queue()
    with grpc.InferenceServerClient(harness.stack.inference) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for name in ("first", "second"):
            client.async_stream_infer("counter", [given], request_id=name, enable_empty_final_response=True)
            for number in (1, 2, 3):
                result, error = answers.get(timeout=60)
                assert error is None, error
                assert result.get_response().id == name
                assert np.allclose(result.as_numpy("Y"), np.array(ROWS) + number)
            result, error = answers.get(timeout=60)
            assert error is None, error
            assert result.get_response().parameters["triton_final_response"].bool_param
        client.stop_stream()
    assert harness.stack.command("delete", "model", "counter").returncode == 0


def test_overcommitted_models_are_evicted_and_reloaded(harness, artifacts):
    for name, place in (("a", "plus20"), ("b", "plus30")):
        applied = harness.stack.apply(name, artifacts / place, "triton", memory="600k")
        assert applied.returncode == 0, applied.stderr + harness.agent.output()
    for _ in range(2):
        for name, number in (("a", 20), ("b", 30)):
            assert plus(harness.stack, name) == number
            until("the eviction", lambda n=name: harness.holds() & {"a_1", "b_1"} == {f"{n}_1"})
    assert metric(harness.agent.metrics, "seldon_cache_evict_count") >= 3


def test_load_error_of_the_server_is_in_the_status(harness, artifacts):
    assert harness.stack.apply("broken", artifacts / "broken", "triton", wait=False).returncode == 0
    described = until(
        "the failure",
        lambda: (d := harness.stack.command("describe", "model/broken").stdout) and "triton-0" in d and d,
    )
    assert "broken on purpose" in described, described


def test_unload_and_shutdown(harness):
    for name in ("adder", "a", "b", "broken"):
        assert harness.stack.command("delete", "model", name).returncode == 0
    until("an empty server", lambda: not harness.holds())
    until("an empty directory", lambda: not [p for p in harness.models.iterdir() if not p.name.startswith(".")])
    assert harness.agent.terminate() == 0, harness.agent.output()

"""The protocol besides inference: health, metadata, repository, statistics."""

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from gantry import EXAMPLES, until
from reference_predictions import CASES, close
from tritonclient.utils import InferenceServerException

INTERFACES = {
    "iris": ("onnx", [("X", "FP32", [-1, 4])], [("label", "INT64", [-1]), ("probabilities", "FP32", [-1, 3])]),
    "fraud": ("xgboost", [("input-0", "FP32", [-1, 4])], [("predict", "FP32", [-1])]),
    "demand": ("lightgbm", [("input-0", "FP64", [-1, 4])], [("predict", "FP64", [-1])]),
}


@pytest.fixture(params=["http", "grpc"])
def client(request, served):
    """A client per protocol; both return dictionaries."""
    if request.param == "http":
        with http.InferenceServerClient(served.inference) as made:
            yield made
    else:
        with grpc.InferenceServerClient(served.inference) as made:
            yield AsDictionaries(made)


class AsDictionaries:
    """The gRPC client with the response format of the HTTP client."""

    NAMES = {"get_server_metadata", "get_model_metadata", "get_inference_statistics", "get_model_repository_index"}

    def __init__(self, client):
        self.client = client

    def __getattr__(self, name):
        call = getattr(self.client, name)
        if name not in self.NAMES:
            return call

        def wrapper(*arguments, **named):
            answer = call(*arguments, as_json=True, **named)
            return answer.get("models", []) if name == "get_model_repository_index" else answer

        return wrapper


def infer(client, case):
    kind = grpc if isinstance(client, AsDictionaries) else http
    given = kind.InferInput(case.input, list(case.rows.shape), case.datatype)
    given.set_data_from_numpy(case.rows)
    return client.infer(case.name, [given])


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    for name in INTERFACES:
        assert client.is_model_ready(name)
        assert client.is_model_ready(name, "1")


def test_unknown_model_is_not_ready(served):
    with http.InferenceServerClient(served.inference) as client:
        assert not client.is_model_ready("absent")
    with grpc.InferenceServerClient(served.inference) as client:
        assert not client.is_model_ready("absent")


def test_server_metadata(client):
    result = client.get_server_metadata()
    assert result["name"] == "gantry"
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(result["extensions"])


@pytest.mark.parametrize("name", INTERFACES)
def test_model_metadata_matches_the_file(client, name):
    platform, inputs, outputs = INTERFACES[name]
    result = client.get_model_metadata(name)

    def shown(tensors):
        return [(t["name"], t["datatype"], [int(d) for d in t["shape"]]) for t in tensors]

    # As in Seldon Core v2, a response has the version that served it.
    assert (result["name"], result["platform"], result["versions"]) == (f"{name}_1", platform, ["1"])
    assert (shown(result["inputs"]), shown(result["outputs"])) == (inputs, outputs)


def test_repository_index_lists_every_model(client):
    result = client.get_model_repository_index()
    assert [(m["name"], m["state"]) for m in result] == [(n, "READY") for n in sorted(INTERFACES)]


def test_statistics_count(client):
    case = CASES[1]

    def counts():
        (one,) = client.get_inference_statistics(case.name)["model_stats"]
        stats = one["inference_stats"]
        return [int(n) for n in (one["inference_count"], stats["success"]["count"], stats["fail"].get("count", 0))]

    infer(client, case)
    before = counts()
    for _ in range(3):
        infer(client, case)
    rows = len(case.rows)
    assert [after - b for after, b in zip(counts(), before, strict=True)] == [3 * rows, 3, 0]
    everything = client.get_inference_statistics()["model_stats"]
    assert {m["name"] for m in everything} >= {"fraud_1"}


def test_unload_and_load_again(served, client):
    case = CASES[2]
    client.unload_model(case.name)
    until("the unload", lambda: not served.request("GET", f"/v2/models/{case.name}/ready").status == 200)
    with pytest.raises(InferenceServerException):
        infer(client, case)
    for other in CASES[:2]:
        infer(client, other)
    # Returns when the model serves; it waits for the unload.
    client.load_model(case.name)
    close(infer(client, case).as_numpy("predict"), case.expected["predict"])


def test_load_directly_after_unload(client):
    case = CASES[1]
    for _ in range(5):
        client.unload_model(case.name)
        client.load_model(case.name)
        close(infer(client, case).as_numpy("predict"), case.expected["predict"])


def test_load_and_unload_need_the_flag(start):
    gantry = start(EXAMPLES)
    gantry.ready()
    for kind in http, grpc:
        with kind.InferenceServerClient(gantry.inference) as client:
            for call in client.load_model, client.unload_model:
                with pytest.raises(InferenceServerException, match="--allow-repository-changes"):
                    call("iris")
            assert client.is_model_ready("iris")


def test_loading_unknown_model_is_explained(client):
    with pytest.raises(InferenceServerException, match="absent"):
        client.load_model("absent")
    with pytest.raises(InferenceServerException, match="absent"):
        client.unload_model("absent")


def test_admin(served):
    assert served.request("GET", "/livez", at=served.admin).status == 200
    assert served.request("GET", "/readyz", at=served.admin).status == 200
    before = served.metric("seldon_model_infer_total")
    case = CASES[0]
    assert served.infer("iris", case.rows.tolist()).status == 200
    assert served.metric("seldon_model_infer_total") == before + 1


def test_unsupported_datatypes_are_rejected(served):
    rows = CASES[0].rows
    texts = np.array([[b"a", b"b", b"c", b"d"]], dtype=object)
    halves = rows[:1].astype(np.float16)
    with grpc.InferenceServerClient(served.inference) as client:
        for datatype, data in (("BYTES", texts), ("FP16", halves)):
            given = grpc.InferInput("X", [1, 4], datatype)
            given.set_data_from_numpy(data)
            with pytest.raises(InferenceServerException, match="X.*FP32") as refused:
                client.infer("iris", [given])
            assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    with http.InferenceServerClient(served.inference) as client:
        for datatype, data in (("BYTES", texts), ("FP16", halves)):
            given = http.InferInput("X", [1, 4], datatype)
            given.set_data_from_numpy(data)
            with pytest.raises(InferenceServerException, match="X.*FP32") as refused:
                client.infer("iris", [given])
            assert refused.value.status() == "400"


def test_fp16_inputs_of_tree_models(served):
    case = CASES[1]
    rows = np.array([[12.5, 3, 40.25, 1000]], dtype=np.float16)
    given = http.InferInput(case.input, [1, 4], "FP16")
    given.set_data_from_numpy(rows)
    with http.InferenceServerClient(served.inference) as client:
        result = client.infer(case.name, [given]).as_numpy("predict")
    from reference_predictions import fraud

    close(result, fraud(rows.astype(np.float32)))

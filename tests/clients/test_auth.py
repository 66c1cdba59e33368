"""Authentication with the clients that people use: requests, tritonclient over REST and gRPC."""

import hashlib

import numpy
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
from gantry import EXAMPLES
from tritonclient.utils import InferenceServerException

KEY = "gantry_of_this_test"
BODY = {"inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]}


@pytest.fixture
def served(start, tmp_path):
    config = tmp_path / "auth.yaml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    config.write_text(f"keys:\n- name: iris\n  sha256: {digest}\n  allow: {{models: [iris]}}\n")
    gantry = start(EXAMPLES, flags=[f"--auth-config={config}"])
    return gantry.ready()


def headers(key):
    return {"authorization": f"Bearer {key}"} if key else {}


@pytest.mark.parametrize(
    "key, model, status", [(None, "iris", 401), ("wrong", "iris", 401), (KEY, "iris", 200), (KEY, "fraud", 403)]
)
def test_requests(served, key, model, status):
    url = f"http://{served.inference}/v2/models/{model}/infer"
    for sent in (headers(key), {"x-api-key": key} if key else {}):
        answer = requests.post(url, json=BODY, headers=sent, timeout=20)
        assert answer.status_code == status, answer.text
        assert ("www-authenticate" in answer.headers) == (status == 401)
        assert KEY not in answer.text + str(answer.headers)


def inputs(client):
    tensor = client.InferInput("X", [1, 4], "FP32")
    tensor.set_data_from_numpy(numpy.array([[5.1, 3.5, 1.4, 0.2]], dtype=numpy.float32))
    return [tensor]


@pytest.mark.parametrize("library", [tritonclient.http, tritonclient.grpc])
def test_tritonclient(served, library):
    client = library.InferenceServerClient(served.inference)
    assert client.is_server_live() and client.is_server_ready()
    for key in (None, "wrong"):
        with pytest.raises(InferenceServerException, match="credential"):
            client.infer("iris", inputs(library), headers=headers(key))
    with pytest.raises(InferenceServerException, match="may not do this"):
        client.infer("fraud", inputs(library), headers=headers(KEY))
    answer = client.infer("iris", inputs(library), headers=headers(KEY))
    assert answer.as_numpy("label") is not None
    assert client.get_model_metadata("iris", headers=headers(KEY))
    client.close()

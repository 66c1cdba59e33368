"""Predictions through every client equal those of the original libraries, for every example model."""

import gzip
import json
import queue
import shutil
import subprocess

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from reference_predictions import CASES, close

each_model = pytest.mark.parametrize("case", CASES, ids=repr)
TYPES = {"FP32": np.float32, "FP64": np.float64}


def tensor(kind, case, rows=None):
    rows = case.rows if rows is None else rows
    made = kind.InferInput(case.input, list(rows.shape), case.datatype)
    made.set_data_from_numpy(rows)
    return made


def check(result, case):
    for name, right in case.expected.items():
        close(result.as_numpy(name), right)
    assert result.as_numpy("absent") is None


@each_model
def test_triton_http(served, case):
    with http.InferenceServerClient(served.inference) as client:
        check(client.infer(case.name, [tensor(http, case)]), case)


@each_model
def test_triton_grpc(served, case):
    with grpc.InferenceServerClient(served.inference) as client:
        check(client.infer(case.name, [tensor(grpc, case)]), case)


@each_model
@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_binary_and_json_mixed(served, case, binary_in, binary_out):
    given = http.InferInput(case.input, list(case.rows.shape), case.datatype)
    given.set_data_from_numpy(case.rows, binary_data=binary_in)
    wanted = [http.InferRequestedOutput(name, binary_data=binary_out) for name in case.expected]
    with http.InferenceServerClient(served.inference) as client:
        check(client.infer(case.name, [given], outputs=wanted), case)


@each_model
def test_plain_json(served, case):
    answer = served.infer(case.name, case.rows.tolist(), case.input, case.datatype)
    assert answer.status == 200, answer.body
    outputs = {o["name"]: o for o in answer.json()["outputs"]}
    assert outputs.keys() == case.expected.keys()
    for name, right in case.expected.items():
        assert outputs[name]["shape"] == list(right.shape)
        close(outputs[name]["data"], right)


@each_model
def test_single_rows_equal_the_batch(served, case):
    with http.InferenceServerClient(served.inference) as client:
        for index in range(len(case.rows)):
            result = client.infer(case.name, [tensor(http, case, case.rows[index : index + 1])])
            for name, right in case.expected.items():
                close(result.as_numpy(name), right[index : index + 1])


def test_printed_curl_command_works(served):
    curl = next(line.strip() for line in served.out if line.strip().startswith("curl "))
    if shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    result = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["outputs"], result.stdout


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_compressed_requests_over_http(served, how):
    case = CASES[0]
    with http.InferenceServerClient(served.inference) as client:
        given = [tensor(http, case)]
        check(client.infer(case.name, given, request_compression_algorithm=how), case)
        check(client.infer(case.name, given, response_compression_algorithm=how), case)


@pytest.mark.parametrize("how", ["gzip", "deflate"])
def test_compressed_requests_over_grpc(served, how):
    case = CASES[0]
    with grpc.InferenceServerClient(served.inference) as client:
        check(client.infer(case.name, [tensor(grpc, case)], compression_algorithm=how), case)


def test_gzip_request_body(served):
    case = CASES[0]
    body = {"inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": case.rows[0].tolist()}]}
    packed = gzip.compress(json.dumps(body).encode())
    answer = served.request("POST", "/v2/models/iris/infer", packed, {"content-encoding": "gzip"})
    assert answer.status == 200, answer.body


def test_stream_responds_in_order(served):
    case = CASES[1]
    answers = queue.Queue()
    with grpc.InferenceServerClient(served.inference) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for index in range(20):
            row = case.rows[index % len(case.rows)][None]
            client.async_stream_infer(case.name, [tensor(grpc, case, row)], request_id=str(index))
        for index in range(20):
            result, error = answers.get(timeout=60)
            assert error is None, error
            assert result.get_response().id == str(index)
            close(result.as_numpy("predict"), case.expected["predict"][index % len(case.rows)])
        client.stop_stream()


def test_stream_continues_after_an_error(served):
    case = CASES[1]
    answers = queue.Queue()
    with grpc.InferenceServerClient(served.inference) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("absent", [tensor(grpc, case)])
        _, error = answers.get(timeout=60)
        assert "absent" in str(error)
        client.async_stream_infer(case.name, [tensor(grpc, case)])
        result, error = answers.get(timeout=60)
        assert error is None, error
        check(result, case)
        client.stop_stream()


def test_concurrent_async_requests(served):
    case = CASES[2]
    with http.InferenceServerClient(served.inference, concurrency=8) as client:
        for result in [client.async_infer(case.name, [tensor(http, case)]) for _ in range(40)]:
            check(result.get_result(), case)


def test_classification_extension(served):
    case = CASES[0]
    wanted = [http.InferRequestedOutput("probabilities", class_count=1)]
    with http.InferenceServerClient(served.inference) as client:
        result = client.infer(case.name, [tensor(http, case)], outputs=wanted).as_numpy("probabilities")
    for text, label in zip(np.ravel(result), case.expected["label"], strict=True):
        assert int(text.decode().split(":")[1]) == label


def test_response_has_request_id_and_route(served):
    case = CASES[0]
    body = {"id": "seven", "inputs": [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": case.rows[0].tolist()}]}
    answer = served.request("POST", "/v2/models/iris/infer", body, {"x-request-id": "abc"})
    assert answer.json()["id"] == "seven"
    assert answer.headers["x-request-id"] == "abc"
    assert answer.headers["x-seldon-route"] == ":iris_1:"
    assert served.infer("iris", case.rows.tolist()).headers["x-request-id"]


def test_model_header_overrides_path(served):
    case = CASES[1]
    answer = served.infer("iris", case.rows.tolist(), **{"seldon-model": "fraud"})
    close(answer.json()["outputs"][0]["data"], case.expected["predict"])

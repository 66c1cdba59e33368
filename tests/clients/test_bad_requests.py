"""Invalid requests: each gets a specific error without side effects."""

import json
import socket
import struct

import grpc
import pytest
from reference_predictions import CASES, close
from tritonclient.grpc import service_pb2, service_pb2_grpc

IRIS = "/v2/models/iris/infer"


def one(**changes):
    """A valid request for iris, with changes."""
    tensor = {"name": "X", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]} | changes
    return {"inputs": [{k: v for k, v in tensor.items() if v is not None}]}


def binary(size=16, length=None, data=b"\0" * 16, **changes):
    """A valid request with binary data, with changes; returns body and headers."""
    document = json.dumps(one(data=None, parameters={"binary_data_size": size}, **changes)).encode()
    return document + data, {"inference-header-content-length": str(len(document) if length is None else length)}


# Request, status and part of the error.
REST = [
    ("an empty body", IRIS, "", {}, 400, "empty"),
    ("no JSON", IRIS, "hello", {}, 400, "JSON object"),
    ("half of a JSON", IRIS, '{"inputs":[{', {}, 400, "not valid JSON"),
    ("JSON with a tail", IRIS, json.dumps(one()) + "x", {}, 400, "after the end"),
    ("an array", IRIS, "[]", {}, 400, "JSON object"),
    ("no inputs", IRIS, {}, {}, 400, "inputs"),
    ("inputs that are empty", IRIS, {"inputs": []}, {}, 400, "empty"),
    ("an input that is a number", IRIS, {"inputs": [1]}, {}, 400, "must be an object"),
    ("an id that is a number", IRIS, one() | {"id": 7}, {}, 400, "id must be a string"),
    ("no name", IRIS, one(name=None), {}, 400, "name"),
    ("no shape", IRIS, one(shape=None), {}, 400, "shape"),
    ("no datatype", IRIS, one(datatype=None), {}, 400, "datatype"),
    ("no data", IRIS, one(data=None), {}, 400, "data"),
    ("too little data", IRIS, one(data=[1, 2, 3]), {}, 400, "needs 4 values, got 3"),
    ("too much data", IRIS, one(data=[1, 2, 3, 4, 5]), {}, 400, "needs 4 values, got 5"),
    ("ragged rows", IRIS, one(shape=[2, 2], data=[[1, 2], [3]]), {}, 400, "differ in length"),
    ("a null", IRIS, one(data=[1, 2, 3, None]), {}, 400, "null"),
    ("a text for a number", IRIS, one(data=["a", 2, 3, 4]), {}, 400, "must be a number"),
    ("NaN", IRIS, json.dumps(one()).replace("5.1", "NaN"), {}, 400, "NaN"),
    ("a number too large", IRIS, one(data=[1e39, 2, 3, 4]), {}, 400, "out of the range of FP32"),
    ("a negative dimension", IRIS, one(shape=[-1, 4]), {}, 400, "negative"),
    ("a shape that overflows", IRIS, one(shape=[2**62, 4]), {}, 400, "too large"),
    ("a shape of gigabytes", IRIS, one(shape=[1_000_000_000, 4], data=[]), {}, 400, "allowed"),
    ("a half dimension", IRIS, one(shape=[1.5, 4]), {}, 400, "dimension"),
    ("an unknown datatype", IRIS, one(datatype="FLOAT"), {}, 400, "FLOAT"),
    ("another datatype than the model's", IRIS, one(datatype="INT64", data=[1, 2, 3, 4]), {}, 400, "FP32"),
    ("another name than the model's", IRIS, one(name="Y"), {}, 400, "Y"),
    ("another shape than the model's", IRIS, one(shape=[1, 3], data=[1, 2, 3]), {}, 400, "X"),
    ("the input twice", IRIS, {"inputs": one()["inputs"] * 2}, {}, 400, "twice"),
    ("an output that is not there", IRIS, one() | {"outputs": [{"name": "absent"}]}, {}, 400, "absent"),
    ("an output twice", IRIS, one() | {"outputs": [{"name": "label"}] * 2}, {}, 400, "twice"),
    ("deep nesting", IRIS, '{"x":' + "[" * 100_000, {}, 400, "nested"),
    ("columns that do not fit trees", "/v2/models/fraud/infer", one(shape=[1, 5], data=[1] * 5), {}, 400, "[-1,4]"),
    ("text for trees", "/v2/models/fraud/infer", one(datatype="BYTES", data=["a"] * 4), {}, 400, "numbers"),
    ("binary data that is too short", IRIS, *binary(data=b"\0" * 15), 400, "15 bytes of binary data are left"),
    ("binary data that is too long", IRIS, *binary(data=b"\0" * 17), 400, "1 bytes are left"),
    ("a size that does not fit the shape", IRIS, *binary(size=12, data=b"\0" * 12), 400, "needs 16 bytes, got 12"),
    ("a negative size", IRIS, *binary(size=-1), 400, "negative"),
    ("a header length beyond the body", IRIS, *binary(length=99_999), 400, "99999"),
    ("a header length inside the JSON", IRIS, *binary(length=9), 400, "not valid JSON"),
    ("a header length that is no number", IRIS, *binary(length="x"), 400, "not a number"),
    ("a size without the header", IRIS, binary()[0][:-16], {}, 400, "Inference-Header-Content-Length"),
    ("an unknown encoding", IRIS, one(), {"content-encoding": "br"}, 400, "br"),
    ("gzip that is none", IRIS, b"hello", {"content-encoding": "gzip"}, 400, "not valid"),
    ("an unknown model", "/v2/models/iriss/infer", one(), {}, 404, 'did you mean "iris"'),
    ("an unknown model by header", IRIS, one(), {"seldon-model": "absent"}, 404, "absent"),
    ("an unknown pipeline", "/v2/pipelines/p/infer", one(), {}, 404, "no pipeline"),
    ("an unknown path", "/v2/modles/iris/infer", one(), {}, 404, "nearest"),
    ("no path of the protocol", "/nowhere", one(), {}, 404, "nearest"),
]


@pytest.mark.parametrize(("path", "body", "headers", "status", "words"), [r[1:] for r in REST], ids=[r[0] for r in REST])
def test_rest(served, path, body, headers, status, words):
    answer = served.request("POST", path, body, headers)
    assert (answer.status, words in answer.error) == (status, True), answer.body
    assert answer.headers["content-type"] == "application/json"
    assert len(answer.error) < 500, "errors are short"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", IRIS, "POST"),
        ("POST", "/v2/models/iris", "GET"),
        ("DELETE", "/v2/health/live", "GET"),
        # KServe's servers answer here that they are alive.
        ("POST", "/", "GET"),
    ],
)
def test_methods(served, method, path, allowed):
    answer = served.request(method, path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert allowed in answer.error


def raw(served, data):
    """The response to these bytes until the connection closes or is silent."""
    host, port = served.inference.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        answer = b""
        try:
            while more := connection.recv(65536):
                answer += more
        except ConnectionResetError:
            pass
        return answer


POST = f"POST {IRIS} HTTP/1.1\r\nhost: x\r\n".encode()
WIRE = [
    ("a body that is announced too large", POST + b"content-length: 99999999999\r\n\r\n", b"413"),
    ("a length beyond any number", POST + b"content-length: 99999999999999999999999\r\n\r\n", b"400"),
    ("a negative length", POST + b"content-length: -1\r\n\r\n", b"400"),
    ("two lengths", POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}x", b"400"),
    ("a chunk that is no number", POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"4"),
    ("a header that is too large", POST + b"x-large: " + b"a" * 1_000_000 + b"\r\n\r\n", b"4"),
    ("too many headers", POST + b"x: y\r\n" * 20_000 + b"\r\n", b"4"),
    ("TLS on a plain port", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 32, b""),
    ("a body that breaks off", POST + b'content-length: 100\r\n\r\n{"inputs"', b""),
]


@pytest.mark.parametrize(("data", "status"), [w[1:] for w in WIRE], ids=[w[0] for w in WIRE])
def test_bytes(served, data, status):
    answer = raw(served, data)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 " + (status or b"4")), answer[:300]


def tensor(name="X", datatype="FP32", shape=(1, 4), values=None):
    made = service_pb2.ModelInferRequest().InferInputTensor(name=name, datatype=datatype, shape=shape)
    if values is not None:
        made.contents.fp32_contents.extend(values)
    return made


def message(*tensors, raw=(), model="iris", **more):
    return service_pb2.ModelInferRequest(model_name=model, inputs=tensors, raw_input_contents=raw, **more)


GOOD = [5.1, 3.5, 1.4, 0.2]
INVALID, UNKNOWN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED
GRPC = [
    ("no model", message(tensor(values=GOOD), model=""), INVALID, "has no model name"),
    ("an unknown model", message(tensor(values=GOOD), model="iriss"), UNKNOWN, 'did you mean "iris"'),
    ("no inputs", message(), INVALID, "no inputs"),
    ("too little data", message(tensor(values=GOOD[:3])), INVALID, "needs 4 values, got 3"),
    ("no data", message(tensor()), INVALID, "needs 4 values, got 0"),
    ("too little raw data", message(tensor(), raw=[b"\0" * 15]), INVALID, "needs 16 bytes, got 15"),
    ("raw and typed data", message(tensor(values=GOOD), raw=[b"\0" * 16]), INVALID, "use one of them"),
    ("more raw data than inputs", message(tensor(), raw=[b"\0" * 16] * 2), INVALID, "raw_input_contents has 2"),
    ("another datatype", message(tensor(datatype="INT64"), raw=[b"\0" * 32]), INVALID, "FP32"),
    ("an unknown datatype", message(tensor(datatype="FLOAT", values=GOOD)), INVALID, "FLOAT"),
    ("FP16 that is typed", message(tensor(datatype="FP16")), INVALID, "raw_input_contents"),
    ("BYTES that lie", message(tensor(datatype="BYTES", shape=[1]), raw=[struct.pack("<I", 2**31)]), INVALID, "length prefix"),
    ("a negative dimension", message(tensor(shape=[-1, 4], values=GOOD)), INVALID, "negative"),
    ("a shape that overflows", message(tensor(shape=[2**62, 4], values=GOOD)), INVALID, "too large"),
    ("another shape", message(tensor(shape=[4], values=GOOD)), INVALID, "X"),
    ("another name", message(tensor(name="Y", values=GOOD)), INVALID, "Y"),
    ("the input twice", message(tensor(values=GOOD), tensor(values=GOOD)), INVALID, "twice"),
    (
        "an output that is not there",
        message(tensor(values=GOOD), outputs=[service_pb2.ModelInferRequest().InferRequestedOutputTensor(name="absent")]),
        INVALID,
        "absent",
    ),
]


@pytest.fixture(scope="module")
def channel(served):
    with grpc.insecure_channel(served.inference) as made:
        yield made


@pytest.mark.parametrize(("request_", "code", "words"), [g[1:] for g in GRPC], ids=[g[0] for g in GRPC])
def test_grpc(channel, request_, code, words):
    with pytest.raises(grpc.RpcError) as refused:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request_, timeout=60)
    assert (refused.value.code(), words in refused.value.details()) == (code, True), refused.value


@pytest.mark.parametrize(
    ("method", "payload", "code", "words"),
    [
        ("/inference.GRPCInferenceService/ModelInfer", b"\xff\xff\xff", INVALID, "protobuf"),
        ("/inference.GRPCInferenceService/ModelGuess", b"", UNKNOWN, "ModelGuess"),
        ("/inference.Other/ModelInfer", b"", UNKNOWN, "no method"),
    ],
)
def test_grpc_bytes(channel, method, payload, code, words):
    with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(method)(payload, timeout=60)
    assert (refused.value.code(), words in refused.value.details()) == (code, True), refused.value


def test_invalid_requests_do_not_leak_memory(served, channel):
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def everything():
        for _, path, body, headers, status, _ in REST:
            assert served.request("POST", path, body, headers).status == status
        for _, data, _ in WIRE:
            raw(served, data)
        for _, request, code, _ in GRPC:
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(request, timeout=60)
            assert refused.value.code() == code

    # The first passes fill pools and caches; later ones must not grow.
    for _ in range(2):
        everything()
    before = served.resident()
    for _ in range(5):
        everything()
    grown = served.resident() - before
    assert grown < 16e6, f"{grown / 1e6:.1f} MB were added"
    assert "panicked" not in served.output()
    log = served.request("GET", "/logs?lines=5000", at=served.admin).body.decode()
    assert "panicked" not in log
    case = CASES[0]
    close(served.infer("iris", case.rows.tolist()).json()["outputs"][0]["data"], case.expected["label"])


"""InferenceServices of `gantry up`, called with the unchanged KServe SDK by path, by host and by model name."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gantry import ROOT, Gantry

CLIENT = Path(__file__).parent / "kserve_service_client.py"
ROWS = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    with Gantry(tmp_path_factory.mktemp("services") / "state", ROOT / "examples" / "kserve") as gantry:
        yield gantry
        assert gantry.stop() == 0, gantry.output()


def call(services, name, namespace, rows, tensor):
    work = {"address": services.inference, "name": name, "namespace": namespace, "rows": rows, "input": tensor}
    client = subprocess.run(
        [sys.executable, CLIENT], input=json.dumps(work), capture_output=True, text=True, timeout=120
    )
    assert client.returncode == 0, client.stderr
    return json.loads(client.stdout)


def test_sdk_reaches_a_service_by_path_host_and_name(services):
    results = call(services, "iris", "default", ROWS, "X")
    expected = results["grpc"]["infer"]
    assert expected["label"] == [0, 2]
    assert results["grpc host"] == results["grpc"]
    for place in ("path", "host", "plain"):
        one, two = results[f"v1 {place}"], results[f"v2 {place}"]
        assert one["live"] and one["ready"], place
        rows = one["predict"]["predictions"]
        assert [row["label"] for row in rows] == expected["label"], place
        scores = [score for row in rows for score in row["probabilities"]]
        assert scores == pytest.approx(expected["probabilities"]), place
        assert one["explain"] == [501, "model iris has no explainer"], place
        assert one["bad shape"][0] == 400 and "the model takes values of shape [4]" in one["bad shape"][1], place
        assert one["other model"][0] == 404, place
        assert two == results["grpc"], place


def test_framework_field_and_namespace(services):
    columns = services.request("GET", "/v2/models/fraud").json()["inputs"][0]
    rows = [[0.0] * columns["shape"][1]] * 2
    results = call(services, "fraud", "shop", rows, columns["name"])
    expected = list(results["grpc"]["infer"].values())[0]
    for place in ("path", "host", "plain"):
        assert results[f"v1 {place}"]["predict"]["predictions"] == pytest.approx(expected), place


def test_urls_and_commands(services):
    url = f"http://{services.inference}/serving"
    assert any(f"{url}/default/iris" in line for line in services.out), services.output()
    assert any(f"{url}/shop/fraud" in line for line in services.out)
    lines = services.command("get", "isvc", "--no-headers").stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["fraud", "/serving/shop/fraud", "True"],
        ["iris", "/serving/default/iris", "True"],
    ]
    described = services.command("describe", "isvc/iris")
    assert described.returncode == 0 and described.stdout.startswith("iris is ready"), described
    shown = services.command("get", "isvc/iris", "-o", "json")
    predictor = json.loads(shown.stdout)["spec"]["predictor"]
    assert predictor["model"]["modelFormat"]["name"] == "onnx"
    for host in ("iris-other.example.com", "none-default.example.com"):
        answer = services.request("GET", "/v1/models/iris", headers={"Host": host})
        assert answer.status == 404 and host in answer.error

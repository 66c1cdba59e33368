"""Process lifecycle: kill, second start, interrupt, edited files."""

import json
import os
import re
import shutil
import signal
import socket

import pytest
from gantry import EXAMPLES, run, until
from reference_predictions import CASES, close


def check_all(gantry):
    for case in CASES:
        answer = gantry.infer(case.name, case.rows.tolist(), case.input, case.datatype)
        assert answer.status == 200, answer.body
        for output in answer.json()["outputs"]:
            close(output["data"], case.expected[output["name"]])


@pytest.fixture
def copy(tmp_path):
    """An editable copy of the quickstart."""
    return shutil.copytree(EXAMPLES, tmp_path / "models")


def test_state_survives_kill_9(start, tmp_path):
    state = tmp_path / "state"
    with start(EXAMPLES, state=state) as first:
        check_all(first)
        first.kill()
    # Without paths: the loaded models are in the state.
    with start(state=state) as second:
        check_all(second)
        assert second.stop() == 0


def test_repeated_kills(start, tmp_path):
    state = tmp_path / "state"
    start(EXAMPLES, state=state).ready().kill()
    for _ in range(3):
        # Killed during the start.
        dying = start(state=state)
        until("its first line", lambda dying=dying: dying.out or dying.process.poll() is not None)
        dying.kill()
    with start(state=state) as last:
        check_all(last)


def test_second_process_on_the_same_state_is_rejected(start, tmp_path):
    state = tmp_path / "state"
    with start(EXAMPLES, state=state) as first:
        second = start(EXAMPLES, state=state)
        assert second.ended() != 0
        assert str(first.process.pid) in second.output(), second.output()
        assert str(state) in second.output()
        check_all(first)


@pytest.mark.parametrize("which", ["inference", "admin", "scheduler", "agent"])
def test_port_in_use_is_reported(start, which):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        gantry = start(EXAMPLES, flags=[f"--{which}-port={port}"])
        assert gantry.ended() != 0
        result = gantry.output()
        assert str(port) in result and f"--{which}-port" in result, result
        assert "panicked" not in result


def test_interrupt_drains_requests(start):
    with start(EXAMPLES) as gantry:
        case = CASES[0]
        inputs = [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": case.rows[0].tolist()}]
        body = json.dumps({"inputs": inputs}).encode()
        host, port = gantry.inference.split(":")
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            head = f"POST /v2/models/iris/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body[:20])
            until("the request's arrival", lambda: gantry.metric("gantry_gateway_incomplete_bodies") == 1)
            gantry.interrupt()

            def refuses():
                try:
                    socket.create_connection((host, int(port)), timeout=60).close()
                except ConnectionRefusedError:
                    return True

            until("the end of new connections", refuses)
            assert gantry.process.poll() is None, "it did not wait for the request"
            connection.sendall(body[20:])
            answer = b""
            while more := connection.recv(65536):
                answer += more
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), answer
        close(json.loads(body)["outputs"][0]["data"], case.expected["label"][:1])
        assert gantry.ended() == 0, gantry.output()
        assert "panicked" not in gantry.output()


def test_interrupt_during_start(start):
    gantry = start(EXAMPLES)
    until("its first line", lambda: gantry.out or gantry.process.poll() is not None)
    gantry.interrupt()
    # Before the handler is installed, the signal ends the process.
    assert gantry.ended() in (0, -signal.SIGINT), gantry.output()
    with start(EXAMPLES) as again:
        check_all(again)


def test_manifest_edits_are_applied_and_invalid_ones_reported(start, copy):
    with start(copy) as gantry:
        manifest = copy / "iris.yaml"
        good = manifest.read_text()

        # An invalid edit is reported with its position; the previous version still serves.
        manifest.write_text(good.replace("storageUri", "storageURL"))
        until("the complaint", lambda: any("storageURL" in line for line in gantry.err))
        result = "\n".join(gantry.err)
        assert re.search(r"iris\.yaml:\d+", result) and "storageUri" in result, result
        check_all(gantry)

        # A model is added, one changed, one removed.
        manifest.write_text(good)
        (copy / "second.yaml").write_text(good.replace("name: iris", "name: second"))
        until("the new model", lambda: gantry.request("GET", "/v2/models/second/ready").status == 200)
        rows = CASES[0].rows.tolist()
        close(gantry.infer("second", rows).json()["outputs"][0]["data"], CASES[0].expected["label"])

        shutil.copy(copy / "fraud" / "model.json", copy / "fraud" / "next")
        text = (copy / "fraud" / "next").read_text()
        changed = re.sub(r'"base_score":"\[?[^"]*"', '"base_score":"[9E-1]"', text)
        assert changed != text
        (copy / "fraud" / "next").write_text(changed)
        os.replace(copy / "fraud" / "next", copy / "fraud" / "model.json")
        fraud = CASES[1]

        def serves_the_new_file():
            answer = gantry.infer("fraud", fraud.rows.tolist(), fraud.input)
            assert answer.status == 200, answer.body
            return answer.headers["x-seldon-route"] == ":fraud_2:"

        until("the new version", serves_the_new_file)

        (copy / "second.yaml").unlink()
        until("its removal", lambda: gantry.request("GET", "/v2/models/second/ready").status == 404)
        assert gantry.infer("iris", rows).status == 200
        assert gantry.stop() == 0


def test_invalid_manifests_prevent_the_start(tmp_path):
    (tmp_path / "broken.yaml").write_text("apiVersion: mlops.seldon.io/v1alpha1\nkind: Modle\n")
    state = tmp_path / "state"
    ended = run("up", tmp_path / "broken.yaml", "--state-dir", state)
    assert ended.returncode == 2 and "Modle" in ended.stderr, ended
    assert not state.exists(), "state was touched on account of a wrong file"
    ended = run("up", tmp_path / "absent", "--state-dir", state)
    assert ended.returncode == 2 and "does not exist" in ended.stderr, ended


def test_directory_of_model_files_is_served(start, tmp_path):
    place = tmp_path / "files"
    place.mkdir()
    shutil.copy(EXAMPLES / "iris" / "model.onnx", place / "flowers.onnx")
    with start(place) as gantry:
        answer = gantry.infer("flowers", CASES[0].rows.tolist())
        close(answer.json()["outputs"][0]["data"], CASES[0].expected["label"])

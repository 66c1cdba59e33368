"""Models on a real API server with a real scheduler: apply, wait, change, scale and delete."""

import json

from cluster import condition, current, model
from gantry import EXAMPLES, until

ROWS = [[5.1, 3.5, 1.4, 0.2]]


def test_model_lifecycle(kubectl, served, operate, audit):
    operate(scheduler=served.clients)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "iris")
    found = kubectl.get("model", "iris")
    assert current(found), found["status"]
    assert condition(found)[:2] == ("True", "ModelAvailable")
    assert condition(found, "ModelReady")[0] == "True"
    assert found["metadata"]["finalizers"] == ["seldon.model.finalizer"]
    assert (found["status"]["replicas"], found["status"]["availableReplicas"]) == (1, 1)
    assert found["status"]["selector"] == "server=builtin"
    assert served.infer("iris", ROWS, "X").status == 200

    # Printer columns, and kubectl diff without and with a change.
    table = kubectl("get", "mlm", "iris").splitlines()
    assert table[0].split()[:2] == ["NAME", "READY"] and "True" in table[1], table
    assert kubectl.run("diff", "-f", "-", stdin=json.dumps(model("iris", EXAMPLES / "iris", "onnx"))).returncode == 0
    assert kubectl.run("diff", "-f", "-", stdin=json.dumps(model("iris", EXAMPLES / "iris"))).returncode == 1

    # Another artifact: a new version without downtime.
    kubectl.apply(model("iris", EXAMPLES / "fraud", "xgboost"))
    changed = kubectl.until(
        "the change", "model", "iris", lambda m: current(m) and condition(m)[0] == "True" and m["metadata"]["generation"] == 2
    )
    assert "version 2" in condition(changed)[2]

    # More replicas than capacity: not ready, with a reason.
    kubectl("scale", "model", "iris", "--replicas=3")
    short = kubectl.until("the scale-up", "model", "iris", lambda m: current(m) and condition(m)[0] == "False")
    assert condition(short)[1] and condition(short)[2], short["status"]
    kubectl("scale", "model", "iris", "--replicas=1")
    kubectl.ready("model", "iris")

    kubectl("delete", "model", "iris", "--timeout=60s")
    assert kubectl.get("model", "iris") is None
    until("the unload", lambda: served.infer("iris", ROWS, "X").status == 404)


def test_unschedulable_model_reports_the_reason(kubectl, stack, operate):
    operate(scheduler=stack.clients)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    found = kubectl.until("the first status", "model", "iris", lambda m: condition(m) and current(m))
    status, reason, message = condition(found)
    assert status == "False" and reason and "server" in message, found["status"]
    # In progress, not failed, for kstatus.
    assert condition(found, "Reconciling")[0] == "True" and condition(found, "Stalled") is None


def test_api_server_rejects_invalid_models(kubectl):
    for spec, words in (
        ({"replicas": 1, "minReplicas": 3}, "minReplicas"),
        ({"storageUri": ""}, "storageUri"),
        ({"explainer": {"type": "anchor"}, "llm": {"modelRef": "x"}}, "explainer"),
        ({"replicas": -1}, "replicas"),
        ({"storagUri": "gs://x"}, "storagUri"),
    ):
        bad = model("bad", "gs://models/x", "onnx")
        bad["spec"].update(spec)
        assert words in kubectl.rejected(bad)
    assert "name" in kubectl.rejected(model("has.dots", "gs://models/x"))


def test_model_without_a_scheduler_can_be_deleted(kubectl, operate):
    operate()
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    found = kubectl.until("the first status", "model", "iris", lambda m: condition(m))
    assert condition(found)[1] == "SchedulerUnreachable" and "SeldonRuntime" in condition(found)[2]
    kubectl("delete", "model", "iris", "--timeout=50s")


def test_namespace_with_models_can_be_deleted(kubectl, served, operate):
    operate(scheduler=served.clients)
    kubectl.apply(*(model(f"m{i}", EXAMPLES / "iris", "onnx") for i in range(3)))
    for i in range(3):
        kubectl.ready("model", f"m{i}")
    kubectl("delete", "namespace", kubectl.namespace, "--timeout=60s", timeout=90)


def test_models_are_reloaded_into_an_empty_scheduler(kubectl, served, operate, tmp_path):
    operator = operate(scheduler=served.clients)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "iris")
    served.scheduler.kill()
    until("the disconnect", lambda: any("scheduler disconnected" in line for line in operator.lines))
    # Loaded models keep serving, and the status stays.
    assert condition(kubectl.get("model", "iris"))[0] == "True"
    assert served.infer("iris", ROWS, "X").status == 200
    host, port = served.clients.split(":")
    agents = served.agents.split(":")[1]
    # A scheduler without state.
    served.scheduler = served.start(
        *("scheduler", "--state-dir", tmp_path / "another", "--scheduler-port", port, "--agent-port", agents),
        "--health-probe-port=0",
    )
    kubectl.apply(model("other", EXAMPLES / "fraud", "xgboost"))
    kubectl.ready("model", "other")
    kubectl.ready("model", "iris")
    until("the inference", lambda: served.infer("iris", ROWS, "X").status == 200)


def test_model_deleted_while_the_operator_is_down_is_unloaded(kubectl, served, operate):
    operator = operate(scheduler=served.clients)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "iris")
    operator.terminate()
    kubectl("patch", "model", "iris", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
    kubectl("delete", "model", "iris", "--timeout=50s")
    operate(scheduler=served.clients)
    until("the unload", lambda: served.infer("iris", ROWS, "X").status == 404)

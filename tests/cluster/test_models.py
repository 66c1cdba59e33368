"""Models on a real API server: applied, waited for, changed, scaled, deleted with kubectl; served by a real scheduler."""

import json

from cluster import condition, current, model
from gantry import EXAMPLES, until

ROWS = [[5.1, 3.5, 1.4, 0.2]]


def test_a_model_is_served_changed_scaled_and_deleted(kubectl, served, operate, audit):
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

    # kubectl's own eyes: a table, a diff that finds nothing, and one that finds something.
    table = kubectl("get", "mlm", "iris").splitlines()
    assert table[0].split()[:2] == ["NAME", "READY"] and "True" in table[1], table
    assert kubectl.run("diff", "-f", "-", stdin=json.dumps(model("iris", EXAMPLES / "iris", "onnx"))).returncode == 0
    assert kubectl.run("diff", "-f", "-", stdin=json.dumps(model("iris", EXAMPLES / "iris"))).returncode == 1

    # Another artifact: a new version, never a moment without one.
    kubectl.apply(model("iris", EXAMPLES / "fraud", "xgboost"))
    changed = kubectl.until(
        "the change", "model", "iris", lambda m: current(m) and condition(m)[0] == "True" and m["metadata"]["generation"] == 2
    )
    assert "version 2" in condition(changed)[2]

    # More replicas than there are servers for: not ready, and it says why.
    kubectl("scale", "model", "iris", "--replicas=3")
    short = kubectl.until("the wish for more", "model", "iris", lambda m: current(m) and condition(m)[0] == "False")
    assert condition(short)[1] and condition(short)[2], short["status"]
    kubectl("scale", "model", "iris", "--replicas=1")
    kubectl.ready("model", "iris")

    kubectl("delete", "model", "iris", "--timeout=60s")
    assert kubectl.get("model", "iris") is None
    until("the end of the model", lambda: served.infer("iris", ROWS, "X").status == 404)


def test_what_cannot_be_served_says_why_and_comes_when_it_can(kubectl, stack, operate):
    operate(scheduler=stack.clients)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    found = kubectl.until("the first word", "model", "iris", lambda m: condition(m) and current(m))
    status, reason, message = condition(found)
    assert status == "False" and reason and "server" in message, found["status"]
    # It may come by itself: in progress, not failed, for whoever reads conditions as kstatus does.
    assert condition(found, "Reconciling")[0] == "True" and condition(found, "Stalled") is None


def test_the_api_server_refuses_what_the_scheduler_would(kubectl):
    for spec, words in (
        ({"replicas": 1, "minReplicas": 3}, "minReplicas"),
        ({"storageUri": ""}, "storageUri"),
        ({"explainer": {"type": "anchor"}, "llm": {"modelRef": "x"}}, "explainer"),
        ({"replicas": -1}, "replicas"),
        ({"storagUri": "gs://x"}, "storagUri"),
    ):
        bad = model("bad", "gs://models/x", "onnx")
        bad["spec"].update(spec)
        assert words in kubectl.refused(bad)
    assert "name" in kubectl.refused(model("has.dots", "gs://models/x"))


def test_a_model_without_a_scheduler_can_be_deleted(kubectl, operate):
    operate()
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    found = kubectl.until("the first word", "model", "iris", lambda m: condition(m))
    assert condition(found)[1] == "SchedulerUnreachable" and "SeldonRuntime" in condition(found)[2]
    kubectl("delete", "model", "iris", "--timeout=20s")


def test_a_namespace_with_models_goes_away_without_help(kubectl, served, operate):
    operate(scheduler=served.clients)
    kubectl.apply(*(model(f"m{i}", EXAMPLES / "iris", "onnx") for i in range(3)))
    for i in range(3):
        kubectl.ready("model", f"m{i}")
    kubectl("delete", "namespace", kubectl.namespace, "--timeout=60s", timeout=90)


def test_the_scheduler_comes_back_empty_handed_and_is_told_again(kubectl, served, operate, tmp_path):
    operator = operate(scheduler=served.clients)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "iris")
    served.scheduler.kill()
    until("the loss to be noticed", lambda: any("is lost" in line for line in operator.lines))
    # What is loaded goes on serving: the status stays, and so do the answers.
    assert condition(kubectl.get("model", "iris"))[0] == "True"
    assert served.infer("iris", ROWS, "X").status == 200
    host, port = served.clients.split(":")
    agents = served.agents.split(":")[1]
    # A scheduler that lost everything it had.
    served.scheduler = served.start(
        *("scheduler", "--state-dir", tmp_path / "another", "--scheduler-port", port, "--agent-port", agents),
        "--health-probe-port=0",
    )
    kubectl.apply(model("other", EXAMPLES / "fraud", "xgboost"))
    kubectl.ready("model", "other")
    kubectl.ready("model", "iris")
    until("the model's answers", lambda: served.infer("iris", ROWS, "X").status == 200)


def test_what_was_deleted_behind_the_operators_back_is_unloaded(kubectl, served, operate):
    operator = operate(scheduler=served.clients)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "iris")
    operator.terminate()
    kubectl("patch", "model", "iris", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
    kubectl("delete", "model", "iris", "--timeout=20s")
    operate(scheduler=served.clients)
    until("the end of the model", lambda: served.infer("iris", ROWS, "X").status == 404)

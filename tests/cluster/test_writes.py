"""Number of writes by the operator, from the audit log."""

import collections

from cluster import as_list, condition, current, custom, model
from gantry import EXAMPLES, until

COUNT = 50


def test_few_writes_per_model_and_none_in_steady_state(kubectl, served, operate, audit):
    operator = operate(scheduler=served.clients)
    kubectl.apply(*(model(f"m{i}", EXAMPLES / "iris", "onnx") for i in range(COUNT)))
    for i in range(COUNT):
        kubectl.ready("model", f"m{i}")
    writes = audit.writes("gantry")
    mine = [w for w in writes if w[1].startswith(("models", "events"))]
    verbs = collections.Counter(w[:2] for w in mine)
    assert len(mine) <= 4 * COUNT, verbs
    conflicts = [w for w in writes if w[3] == 409]
    assert not conflicts, [w[:4] for w in conflicts]

    # Steady state: no writes, also after a restart.
    before = len(audit.writes("gantry"))
    operator.terminate()
    again = operate(scheduler=served.clients)
    again.until("its caches", lambda: any("scheduler connected" in line for line in again.lines))
    # Reconciled as soon as a later change is visible.
    kubectl.apply(model("last", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "last")
    late = [w for w in audit.writes("gantry")[before:] if w[2] != "last"]
    assert not late, [w[:4] for w in late]


def test_two_writes_per_pipeline_and_none_in_steady_state(kubectl, served, operate, audit):
    count = 1000
    operator = operate(scheduler=served.clients)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "iris")
    pipelines = [custom("Pipeline", f"p{i}", {"steps": [{"name": "iris"}]}) for i in range(count)]
    kubectl("create", "-f", "-", stdin=as_list(pipelines), timeout=300)
    kubectl("wait", "--for=condition=Ready", "pipelines", "--all", "--timeout=300s", timeout=310)
    mine = lambda: [w for w in audit.writes("gantry") if w[1].startswith(("pipelines", "events"))]
    writes = collections.Counter(w[2] for w in mine())
    assert len(writes) == count and max(writes.values()) <= 2, writes.most_common(5)

    # Steady state: no writes, also after a restart.
    before = len(mine())
    operator.terminate()
    again = operate(scheduler=served.clients)
    again.until("its caches", lambda: any("scheduler connected" in line for line in again.lines))
    # Reconciled as soon as a later change is visible.
    kubectl.apply(custom("Pipeline", "last", {"steps": [{"name": "iris"}]}))
    kubectl.ready("pipeline", "last")
    late = [w for w in mine()[before:] if w[2] != "last"]
    assert not late, [w[:4] for w in late]


def test_foreign_fields_are_kept(kubectl, served, operate):
    operate(scheduler=served.clients)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "iris")
    kubectl("label", "model", "iris", "team=blue")
    kubectl("annotate", "model", "iris", "example.com/note=kept")
    kubectl("patch", "model", "iris", "--type=merge", "-p", '{"metadata":{"finalizers":["seldon.model.finalizer","example.com/mine"]}}')
    kubectl("scale", "model", "iris", "--replicas=2")
    found = kubectl.until("the change", "model", "iris", lambda m: current(m) and m["metadata"]["generation"] == 2)
    assert found["metadata"]["labels"] == {"team": "blue"}
    assert found["metadata"]["annotations"]["example.com/note"] == "kept"
    kubectl("delete", "model", "iris", "--wait=false")
    left = kubectl.until("the removal of our finalizer", "model", "iris", lambda m: m["metadata"]["finalizers"] == ["example.com/mine"])
    assert left["metadata"]["deletionTimestamp"]
    kubectl("patch", "model", "iris", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
    until("the deletion", lambda: kubectl.get("model", "iris") is None)

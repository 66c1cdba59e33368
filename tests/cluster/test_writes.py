"""How much the operator writes: counted from the API server's own log."""

import collections

from cluster import condition, current, model
from gantry import EXAMPLES, until

COUNT = 50


def test_a_model_costs_few_writes_and_a_quiet_world_none(kubectl, served, operate, audit):
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

    # Nothing changes: nothing is written, also by an operator that starts anew.
    before = len(audit.writes("gantry"))
    operator.terminate()
    again = operate(scheduler=served.clients)
    again.until("its caches", lambda: any("the scheduler is connected" in line for line in again.lines))
    # Everything was looked at when a change is seen that came after it.
    kubectl.apply(model("last", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "last")
    late = [w for w in audit.writes("gantry")[before:] if w[2] != "last"]
    assert not late, [w[:4] for w in late]


def test_what_others_write_is_left_alone(kubectl, served, operate):
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
    left = kubectl.until("our part of the end", "model", "iris", lambda m: m["metadata"]["finalizers"] == ["example.com/mine"])
    assert left["metadata"]["deletionTimestamp"]
    kubectl("patch", "model", "iris", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
    until("the end", lambda: kubectl.get("model", "iris") is None)

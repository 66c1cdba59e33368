"""Foreign objects on a real API server: name conflicts, foreign fields, autoscaled replicas."""

import json

from cluster import condition, current, server
from gantry import until


def ours(audit, kubectl):
    """Writes of the operator in the namespace."""
    writes = audit.writes("gantry-operator")
    return [w[:4] for w in writes if w[4]["objectRef"].get("namespace") == kubectl.namespace]


def test_foreign_object_with_a_needed_name_is_unchanged(configured):
    kubectl = configured
    kubectl("create", "service", "clusterip", "gantry-0", "--tcp=80")
    before = kubectl.get("service", "gantry-0")
    kubectl.apply(server())
    taken = lambda s: condition(s) and current(s) and condition(s)[1] == "NameTaken"
    found = kubectl.until("the condition", "server", "gantry", taken)
    assert "Service gantry-0" in condition(found)[2] and "kubectl delete service gantry-0" in condition(found)[2]
    assert kubectl.get("service", "gantry-0") == before
    kubectl.until("what is not in the way", "statefulset", "gantry", lambda s: s)
    kubectl("delete", "service", "gantry-0")
    made = kubectl.until("the Service", "service", "gantry-0", lambda s: s)
    assert made["metadata"]["ownerReferences"][0]["kind"] == "Server"


def test_server_recreated_immediately_is_reconciled(configured):
    kubectl = configured
    kubectl.apply(server())
    first = kubectl.until("the set", "statefulset", "gantry", lambda s: s)["metadata"]["uid"]
    kubectl("delete", "server", "gantry", "--wait=false")
    kubectl.apply(server())
    second = kubectl.until("the next set", "statefulset", "gantry", lambda s: s and s["metadata"]["uid"] != first)
    owner = second["metadata"]["ownerReferences"][0]
    assert owner["uid"] == kubectl.get("server", "gantry")["metadata"]["uid"]


def test_foreign_fields_are_kept_without_writes(configured, audit):
    kubectl = configured
    kubectl.apply(server(replicas=2))
    kubectl.until("the budget", "poddisruptionbudget", "gantry", lambda b: b)
    kubectl.until("the status", "server", "gantry", lambda s: condition(s) and "0 of 2 pods" in condition(s)[2])
    kubectl("label", "statefulset", "gantry", "team=blue")
    kubectl("annotate", "service", "gantry-0", "example.com/note=kept")
    kubectl("patch", "statefulset", "gantry", "--type=merge", "-p", '{"spec": {"minReadySeconds": 7}}')
    mark = len(ours(audit, kubectl))
    # Reconciled as soon as a later change is visible.
    kubectl("patch", "statefulset", "gantry", "--type=merge", "-p", '{"spec": {"replicas": 5}}')
    found = kubectl.until("the drift correction", "statefulset", "gantry", lambda s: s["spec"]["replicas"] == 2)
    assert found["metadata"]["labels"]["team"] == "blue" and found["spec"]["minReadySeconds"] == 7
    assert kubectl.get("service", "gantry-0")["metadata"]["annotations"]["example.com/note"] == "kept"
    until("the log", lambda: len(ours(audit, kubectl)) > mark)
    late = [w for w in ours(audit, kubectl)[mark:] if w[1] not in ("servers/status", "events")]
    assert [w[:3] for w in late] == [("patch", "statefulsets", "gantry")], late


def test_autoscaler_owns_replicas_while_it_exists(configured, audit):
    kubectl = configured
    kubectl.apply(server(replicas=2))
    kubectl.until("the set", "statefulset", "gantry", lambda s: s and s["spec"]["replicas"] == 2)
    autoscaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "gantry"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "gantry"},
            "minReplicas": 4,
            "maxReplicas": 6,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
        },
    }
    kubectl.apply(autoscaler)
    owned = lambda s: [m["manager"] for m in s["metadata"].get("managedFields", []) if "f:replicas" in m["fieldsV1"].get("f:spec", {})]
    # The autoscaler scales to minReplicas without metrics.
    kubectl.until("the autoscaler", "statefulset", "gantry", lambda s: s["spec"]["replicas"] == 4)
    until("a Service for each", lambda: kubectl.get("service", "gantry-3"))
    live = json.loads(kubectl("get", "statefulset", "gantry", "-o", "json", "--show-managed-fields"))
    assert "gantry/server" not in owned(live), owned(live)
    # spec.replicas of the Server is ignored meanwhile.
    kubectl("scale", "server", "gantry", "--replicas=3")
    kubectl.until("the reconcile", "server", "gantry", lambda s: current(s) and s["metadata"]["generation"] == 2)
    assert kubectl.get("statefulset", "gantry")["spec"]["replicas"] == 4
    kubectl("delete", "horizontalpodautoscaler", "gantry")
    kubectl.until("the replicas of the Server", "statefulset", "gantry", lambda s: s["spec"]["replicas"] == 3)

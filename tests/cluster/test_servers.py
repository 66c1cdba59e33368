"""Servers and runtimes on a real API server: owned objects after create, change, scale and delete.

There is no node, so no pod runs; the status reports that."""

import json

from cluster import CONFIGS, condition, current, custom, runtime, server
from gantry import until


def names(kubectl, kind):
    return {o["metadata"]["name"] for o in kubectl.get(kind) or []}


def test_server_creates_a_stateful_set_with_services(configured, audit):
    kubectl = configured
    kubectl.apply(server(replicas=2, capabilities=["onnx", "fast"]))
    made = kubectl.until("the StatefulSet", "statefulset", "gantry", lambda s: s)
    assert made["spec"]["replicas"] == 2
    assert made["spec"]["podManagementPolicy"] == "Parallel"
    assert made["spec"]["serviceName"] == "gantry"
    assert made["spec"]["selector"]["matchLabels"] == {"seldon-server-name": "gantry"}
    owner = made["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Server", "gantry", True)
    containers = {c["name"]: c for c in made["spec"]["template"]["spec"]["containers"]}
    capabilities = [e["value"] for e in containers["agent"]["env"] if e["name"] == "SELDON_SERVER_CAPABILITIES"]
    assert capabilities == ["onnx,fast"]
    until("the Services", lambda: names(kubectl, "services") >= {"gantry", "gantry-0", "gantry-1"})
    until("the budget", lambda: names(kubectl, "poddisruptionbudgets") == {"gantry"})
    found = kubectl.until("the status", "server", "gantry", lambda s: condition(s) and current(s))
    assert condition(found)[0] == "False" and "pod" in condition(found)[2], found["status"]
    assert condition(found, "StatefulSetOrDeploymentReady")[0] == "False"
    assert found["status"]["selector"] == "seldon-server-name=gantry"

    kubectl("scale", "server", "gantry", "--replicas=1")
    kubectl.until("the smaller set", "statefulset", "gantry", lambda s: s["spec"]["replicas"] == 1)
    until("the deletion of a Service", lambda: "gantry-1" not in names(kubectl, "services"))
    until("the deletion of the budget", lambda: not names(kubectl, "poddisruptionbudgets"))

    kubectl("delete", "server", "gantry", "--timeout=50s")
    until("the deletion of the set", lambda: kubectl.get("statefulset", "gantry") is None)
    until("the deletion of its Services", lambda: not names(kubectl, "services"))


def test_installed_configurations_work_as_deployments(kubectl, operate):
    kubectl("apply", "-f", CONFIGS)
    operate("--use-deployments-for-servers")
    configs = ("gantry", "mlserver", "triton")
    kubectl.apply(*(custom("Server", name, {"serverConfig": name}, labels={"team": "blue"}) for name in configs))
    for name in configs:
        made = kubectl.until("the Deployment", "deployment", name, lambda d: d)
        assert made["spec"]["template"]["metadata"]["labels"]["team"] == "blue"


def test_server_waits_for_its_configuration(kubectl, operate):
    operate()
    kubectl.apply(server())
    found = kubectl.until("the status", "server", "gantry", lambda s: condition(s))
    assert condition(found)[:2] == ("False", "ServerConfigMissing") and "gantry" in condition(found)[2]
    assert condition(found, "Reconciling")
    kubectl("apply", "-f", CONFIGS / "serverconfig-gantry.yaml")
    kubectl.until("the StatefulSet", "statefulset", "gantry", lambda s: s)


def test_rejected_apply_is_reported(configured):
    kubectl = configured
    kubectl.apply(server(podSpec={"containers": [{"name": "agent", "imagePullPolicy": "Sometimes"}]}))
    found = kubectl.until(
        "the rejection", "server", "gantry", lambda s: condition(s) and condition(s)[1] == "ApplyRefused"
    )
    assert "imagePullPolicy" in condition(found)[2], condition(found)
    # A fix recovers.
    kubectl.apply(server())
    kubectl.until("the StatefulSet", "statefulset", "gantry", lambda s: s)


def test_foreign_fields_are_kept_and_drift_is_corrected(configured):
    kubectl = configured
    kubectl.apply(server())
    kubectl.until("the StatefulSet", "statefulset", "gantry", lambda s: s)
    kubectl("annotate", "statefulset", "gantry", "example.com/note=kept")
    patch = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    kubectl("patch", "statefulset", "gantry", "--type=merge", "-p", json.dumps(patch))
    grace = lambda s: s["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    put_back = kubectl.until("the drift correction", "statefulset", "gantry", lambda s: grace(s) != 1)
    assert put_back["metadata"]["annotations"]["example.com/note"] == "kept"


def test_runtime_creates_its_components(configured):
    kubectl = configured
    kubectl.apply(runtime())
    kubectl.until("the scheduler", "statefulset", "seldon-scheduler", lambda s: s)
    kubectl.until("the gateway", "deployment", "seldon-gateway", lambda s: s)
    until("the Services", lambda: names(kubectl, "services") >= {"seldon-scheduler", "seldon-mesh"})
    found = kubectl.until("the status", "seldonruntime", "seldon", lambda r: condition(r) and current(r))
    assert condition(found)[0] == "False", found["status"]
    assert condition(found, "SchedulerReady")[0] == "False"

    # A changed setting restarts the pods that reference it.
    template = lambda s: s["spec"]["template"]["metadata"].get("annotations")
    before = template(kubectl.get("deployment", "seldon-gateway"))
    kubectl.apply(runtime(config={"tracingConfig": {"otelExporterEndpoint": "otel:4317"}}))
    kubectl.until("the rollout", "deployment", "seldon-gateway", lambda d: template(d) != before)

    kubectl.apply(runtime(overrides=[{"name": "seldon-gateway", "disable": True}]))
    until("the deletion of the gateway", lambda: kubectl.get("deployment", "seldon-gateway") is None)

    # Deleted after the last Server.
    kubectl.apply(server())
    kubectl.until("the StatefulSet", "statefulset", "gantry", lambda s: s)
    kubectl("delete", "seldonruntime", "seldon", "--wait=false")
    assert kubectl.get("seldonruntime", "seldon")["metadata"]["finalizers"] == ["seldon.runtime.finalizer"]
    kubectl("delete", "server", "gantry", "--timeout=50s")
    until("the deletion of the runtime", lambda: kubectl.get("seldonruntime", "seldon") is None)
    until("the deletion of the scheduler", lambda: kubectl.get("statefulset", "seldon-scheduler") is None)


def test_namespace_with_all_kinds_can_be_deleted(configured):
    kubectl = configured
    kubectl.apply(runtime(), server(replicas=2))
    kubectl.until("the scheduler", "statefulset", "seldon-scheduler", lambda s: s)
    kubectl.until("the server", "statefulset", "gantry", lambda s: s)
    kubectl("delete", "namespace", kubectl.namespace, "--timeout=90s", timeout=120)


def test_valid_configurations_are_ready(configured):
    kubectl = configured
    for kind, name in (("seldonconfig", "default"), ("serverconfig", "gantry")):
        kubectl.ready(kind, name)

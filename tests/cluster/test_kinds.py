"""Create, get, diff, change, scale and delete of every kind, compared with snapshots. There is no node: no pod runs."""

import json

import pytest
from cluster import CONFIGS, condition, current, custom, model, runtime, server
from gantry import EXAMPLES, until
from snapshots import MADE, matches, normalized, cluster_state


def same(kubectl, *objects):
    """`kubectl diff` finds no difference."""
    ran = kubectl.run("diff", "-f", "-", stdin=listed(objects))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def differs(kubectl, *objects):
    ran = kubectl.run("diff", "-f", "-", stdin=listed(objects))
    assert ran.returncode == 1 and ran.stdout, ran.stdout + ran.stderr


def listed(objects):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def table(kubectl, kind, name):
    """The printer columns of an object."""
    head, row = kubectl("get", kind, name).splitlines()
    # Columns are separated by several spaces.
    split = lambda line: [word.strip() for word in line.replace("   ", "\t").split("\t") if word.strip()]
    return dict(zip(split(head), split(row)))


def until_ready(kubectl, kind, name, status, reason, timeout=60):
    """Waits for status and reason of Ready."""
    kubectl("wait", f"--for=condition=Ready={status}", f"{kind}/{name}", f"--timeout={timeout}s", timeout=timeout + 10)
    return kubectl.until("the status", kind, name, lambda o: o and current(o) and condition(o)[:2] == (status, reason))


def delete(kubectl, kind, name):
    kubectl("delete", kind, name, "--timeout=60s", timeout=70)
    assert kubectl.get(kind, name) is None


def owned_match(kubectl, name, conditions):
    """Waits for the conditions, then compares all owned objects."""
    for what, kind, object_name, condition in conditions:
        kubectl.until(what, kind, object_name, condition)
    matches(name, cluster_state(kubectl, MADE))


def test_server(configured):
    kubectl = configured
    first = server(replicas=2)
    kubectl.apply(first)
    same(kubectl, first)
    found = until_ready(kubectl, "server", "gantry", "False", "Progressing")
    assert "Ready" in (shown := {k.title(): v for k, v in table(kubectl, "mls", "gantry").items()}), shown
    kubectl.until("the last object", "poddisruptionbudget", "gantry", lambda b: b)
    found = kubectl.until("the status", "server", "gantry", lambda s: "0 of 2 pods" in condition(s)[2])
    matches("server", normalized(found, kubectl.namespace))
    owned_match(kubectl, "server-made", [("the set", "statefulset", "gantry", lambda s: s)])

    pods = {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "agent", "env": [{"name": "MORE", "value": "1"}]}]}
    changed = server(replicas=2, podSpec=pods, extraCapabilities=["mine"])
    differs(kubectl, changed)
    kubectl.apply(changed)
    selected = lambda s: s["spec"]["template"]["spec"].get("nodeSelector") == {"disk": "ssd"}
    owned_match(kubectl, "server-changed", [("the change", "statefulset", "gantry", selected)])

    kubectl("scale", "server", "gantry", "--replicas=1")
    kubectl.until("the smaller set", "statefulset", "gantry", lambda s: s["spec"]["replicas"] == 1)
    until("the deletion of the second replica", lambda: kubectl.get("service", "gantry-1") is None)
    until("the deletion of the budget", lambda: kubectl.get("poddisruptionbudget", "gantry") is None)
    matches("server-scaled", cluster_state(kubectl, MADE))

    delete(kubectl, "server", "gantry")
    until("the deletion of all owned objects", lambda: not cluster_state(kubectl, MADE))


def test_server_as_deployment(kubectl, operate):
    kubectl("apply", "-f", CONFIGS)
    operate("--use-deployments-for-servers")
    kubectl.apply(server(replicas=2, deploymentStrategy={"type": "Recreate"}))
    kubectl.until("the last object", "poddisruptionbudget", "gantry", lambda b: b)
    owned_match(kubectl, "server-deployment", [("the deployment", "deployment", "gantry", lambda d: d)])


def test_runtime(configured):
    kubectl = configured
    kubectl.apply(runtime())
    same(kubectl, runtime())
    found = until_ready(kubectl, "seldonruntime", "seldon", "False", "ComponentsNotReady")
    assert found["metadata"]["finalizers"] == ["seldon.runtime.finalizer"]
    assert "False" in table(kubectl, "seldonruntime", "seldon").values()
    pending = lambda r: "0 of 1 pods" in condition(r, "GatewayReady")[2] and "0 of 1 pods" in condition(r, "SchedulerReady")[2]
    found = kubectl.until("both components", "seldonruntime", "seldon", pending)
    matches("runtime", normalized(found, kubectl.namespace))
    owned_match(kubectl, "runtime-made", [("the gateway", "deployment", "seldon-gateway", lambda d: d)])

    over = [{"name": "seldon-gateway", "replicas": 2, "serviceType": "NodePort"}]
    settings = {
        "tracingConfig": {"otelExporterEndpoint": "collector:4317"},
        "agentConfig": {"rclone": {"config_secrets": ["minio"]}},
    }
    changed = runtime(overrides=over, config=settings)
    differs(kubectl, changed)
    kubectl.apply(changed)
    kubectl.until("the budget", "poddisruptionbudget", "seldon-gateway", lambda b: b)
    owned_match(kubectl, "runtime-changed", [("two gateways", "deployment", "seldon-gateway", lambda d: d["spec"]["replicas"] == 2)])

    kubectl.apply(runtime(overrides=[{"name": "seldon-gateway", "disable": True}]))
    for kind, name in (("deployment", "seldon-gateway"), ("service", "seldon-mesh"), ("role", "gantry-agent"), ("rolebinding", "gantry-agent")):
        until(f"the deletion of the {kind}", lambda: kubectl.get(kind, name) is None)
    kubectl.until("the default settings", "configmap", "seldon-tracing", lambda c: "OTEL_EXPORTER_OTLP_ENDPOINT" not in c["data"])
    matches("runtime-smaller", cluster_state(kubectl, MADE))

    delete(kubectl, "seldonruntime", "seldon")
    until("the deletion of all owned objects", lambda: not cluster_state(kubectl, MADE))


def test_model(kubectl, served, operate):
    operate(scheduler=served.clients)
    first = model("iris", EXAMPLES / "iris", "onnx")
    shown = lambda found: normalized(found, kubectl.namespace) | {"spec": None}
    kubectl.apply(first)
    same(kubectl, first)
    found = until_ready(kubectl, "model", "iris", "True", "ModelAvailable")
    assert "True" in table(kubectl, "mlm", "iris").values()
    matches("model", shown(found))
    changed = model("iris", EXAMPLES / "fraud", "xgboost")
    differs(kubectl, changed)
    kubectl.apply(changed)
    matches("model-changed", shown(kubectl.until("the change", "model", "iris", lambda m: current(m) and condition(m)[0] == "True" and m["metadata"]["generation"] == 2)))
    kubectl("scale", "model", "iris", "--replicas=3")
    matches("model-scaled", shown(kubectl.until("the scale-up", "model", "iris", lambda m: current(m) and condition(m)[0] == "False")))
    delete(kubectl, "model", "iris")


CONFIGURATIONS = {
    "serverconfig": ({"podSpec": {"containers": [{"name": "agent"}]}}, {"podSpec": {"containers": [{"name": "agent", "image": "a:2"}]}}),
    "seldonconfig": (
        {"components": [{"name": "a", "podSpec": {"containers": [{"name": "a"}]}}]},
        {"components": [{"name": "b", "podSpec": {"containers": [{"name": "b"}]}}]},
    ),
}
NAMES = {"serverconfig": "ServerConfig", "seldonconfig": "SeldonConfig", "pipeline": "Pipeline", "experiment": "Experiment"}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_configuration(kind, kubectl, operate):
    operate()
    first, second = (custom(NAMES[kind], "mine", spec) for spec in CONFIGURATIONS[kind])
    kubectl.apply(first)
    same(kubectl, first)
    matches(kind, normalized(until_ready(kubectl, kind, "mine", "True", "Valid"), kubectl.namespace))
    assert "True" in table(kubectl, kind, "mine").values()
    differs(kubectl, second)
    kubectl.apply(second)
    assert until_ready(kubectl, kind, "mine", "True", "Valid")["metadata"]["generation"] == 2
    delete(kubectl, kind, "mine")


# Short name, first and second spec, reason of Ready, finalizer.
GRAPHS = {
    "pipeline": (
        "mlp",
        {"steps": [{"name": "iris"}, {"name": "fraud", "inputs": ["iris"]}], "output": {"steps": ["fraud"]}},
        {"steps": [{"name": "iris"}], "output": {"steps": ["iris"]}},
        "PipelineReady",
        "seldon.pipeline.finalizer",
    ),
    "experiment": (
        "mlx",
        {"default": "iris", "candidates": [{"name": "iris", "weight": 50}, {"name": "fraud", "weight": 50}]},
        {"candidates": [{"name": "iris", "weight": 90}], "mirror": {"name": "fraud", "percent": 10}},
        "ExperimentReady",
        "seldon.experiment.finalizer",
    ),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_graph(kind, kubectl, served, operate):
    operate(scheduler=served.clients)
    short, first, second, reason, finalizer = GRAPHS[kind]
    first, second = (custom(NAMES[kind], "mine", spec) for spec in (first, second))
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"), model("fraud", EXAMPLES / "fraud", "xgboost"))
    for name in ("iris", "fraud"):
        kubectl.ready("model", name)
    kubectl.apply(first)
    same(kubectl, first)
    found = until_ready(kubectl, kind, "mine", "True", reason)
    assert found["metadata"]["finalizers"] == [finalizer]
    matches(kind, normalized(found, kubectl.namespace))
    assert "True" in table(kubectl, short, "mine").values()
    differs(kubectl, second)
    kubectl.apply(second)
    changed = lambda o: o["metadata"]["generation"] == 2 and current(o) and condition(o)[0] == "True"
    matches(f"{kind}-changed", normalized(kubectl.until("the change", kind, "mine", changed), kubectl.namespace))
    delete(kubectl, kind, "mine")


def test_deleted_configuration_keeps_its_workloads(configured):
    kubectl = configured
    kubectl.apply(server())
    made = kubectl.until("the set", "statefulset", "gantry", lambda s: s)
    kubectl("delete", "serverconfig", "gantry")
    until_ready(kubectl, "server", "gantry", "False", "ServerConfigMissing")
    assert kubectl.get("statefulset", "gantry")["metadata"]["uid"] == made["metadata"]["uid"]

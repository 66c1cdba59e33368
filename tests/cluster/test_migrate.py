"""Migration from Seldon Core v2 as in docs/migrate.md, and rollback."""

import json
import subprocess

import pytest
import seldon
from cluster import CRDS, condition, current, model
from gantry import EXAMPLES, environment, program, run, until

SPECS = [("model", "iris"), ("model", "odd"), ("server", "mlserver"), ("server", "older"), ("pipeline", "chain"), ("experiment", "split"), ("seldonruntime", "seldon"), ("serverconfig", "mlserver"), ("seldonconfig", "default")]
ALIKE = [("statefulset", "mlserver"), ("statefulset", "seldon-scheduler"), ("deployment", "seldon-envoy"), ("deployment", "seldon-modelgateway")]


@pytest.fixture
def left(kubectl):
    """A namespace with a Seldon Core v2 installation."""
    try:
        seldon.arrive(kubectl, EXAMPLES / "iris")
        until("the pods", lambda: len(kubectl.get("pods")) == 6)
        until("the revisions", lambda: all(revision(kubectl.get(*one)) for one in ALIKE))
        yield kubectl
    finally:
        kubectl("replace", "-f", CRDS)


def revision(found):
    """Changes exactly when pods are replaced."""
    counted = found["metadata"].get("annotations", {}).get("deployment.kubernetes.io/revision")
    return counted or found.get("status", {}).get("updateRevision")


def pods(kubectl, prefix=""):
    return {p["metadata"]["name"]: p["metadata"]["uid"] for p in kubectl.get("pods") if p["metadata"]["name"].startswith(prefix)}


def shell(kubectl, script):
    """Runs a command of docs/migrate.md."""
    words = f'kubectl() {{ "{kubectl.kubectl}" --kubeconfig "{kubectl.config}" "$@"; }}\ngantry() {{ "{program()}" "$@"; }}\n'
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", words + script], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def replace_kinds(kubectl):
    shell(kubectl, "gantry install --crds | kubectl apply --server-side --force-conflicts -f -")
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


def checked(kubectl):
    checked = run("check", "--migrate", "-n", kubectl.namespace, "--kubeconfig", kubectl.config)
    lines = [" ".join(line.split()) for line in checked.stdout.splitlines()]
    return [line for line in lines if f" in {kubectl.namespace}" in line]


def test_seldon_objects_and_workloads_are_adopted(left, served, operate, audit):
    kubectl = left
    namespace = kubectl.namespace
    specs = {one: kubectl.get(*one)["spec"] for one in SPECS}
    before = {one: kubectl.get(*one) for one in [*ALIKE, ("statefulset", "older")]}
    running = pods(kubectl)

    # `gantry check --migrate` announces the changes.
    report = checked(kubectl)
    for kind, name in ALIKE:
        word = {"statefulset": "StatefulSet", "deployment": "Deployment"}[kind]
        assert f"{word} {name} in {namespace} ok adopted without a restart" in report, report
    announced = next(line for line in report if f"StatefulSet older in {namespace}" in line)
    assert announced.endswith(
        "will change; its pods restart pod template differs in spec.containers[agent].image, spec.containers[exporter]"
    ), announced

    assert f"odd in {namespace} spec.replicas is 1, fewer than minReplicas 3" in report, report

    # CRDs first: stored objects are unchanged and writable.
    replace_kinds(kubectl)
    for one in SPECS:
        assert kubectl.get(*one)["spec"] == specs[one], one
        # Not a label: pods inherit those.
        kubectl("annotate", *one, "gantry.dev/checked=true")

    operator = operate(scheduler=served.clients)
    found = kubectl.until("its status", "model", "iris", lambda m: current(m) and condition(m)[:2] == ("True", "ModelAvailable"))
    assert found["metadata"]["finalizers"] == ["seldon.model.finalizer"]
    assert served.infer("iris", [[5.1, 3.5, 1.4, 0.2]], "X").status == 200
    odd = kubectl.until("its status", "model", "odd", lambda m: current(m) and condition(m)[1] == "InvalidSpec")
    assert condition(odd)[2] == "spec.replicas is 1, fewer than minReplicas 3"
    chain = kubectl.until("its status", "pipeline", "chain", lambda o: current(o) and condition(o)[:2] == ("True", "PipelineReady"))
    assert chain["metadata"]["finalizers"] == ["seldon.pipeline.finalizer"]
    # Its second candidate does not exist: the status of Seldon is outdated.
    lost = lambda o: current(o) and condition(o)[1] == "CandidatesNotReady" and "other" in condition(o)[2]
    split = kubectl.until("its status", "experiment", "split", lost)
    assert condition(split, "ExperimentReady")[0] == condition(split, "CandidatesReady")[0] == "False"
    for kind, name in (("seldonruntime", "seldon"), ("server", "mlserver"), ("server", "older")):
        kubectl.until("its status", kind, name, lambda o: current(o) and condition(o))

    # Matching workloads are adopted without a restart.
    for one in ALIKE:
        taken = kubectl.until("the adoption", *one, lambda w: w["metadata"]["labels"].get("app.kubernetes.io/managed-by") == "gantry")
        assert taken["spec"] == before[one]["spec"], one
        # Annotations change the generation of a Deployment.
        assert one[0] == "deployment" or taken["metadata"]["generation"] == before[one]["metadata"]["generation"], one
        assert revision(taken) == revision(before[one]), one
        assert taken["metadata"]["uid"] == before[one]["metadata"]["uid"], one
    # The others are changed as announced.
    changed = kubectl.until("the change", "statefulset", "older", lambda s: s["metadata"]["generation"] > before["statefulset", "older"]["metadata"]["generation"])
    now = {c["name"]: c for c in changed["spec"]["template"]["spec"]["containers"]}
    assert list(now) == ["rclone", "agent", "mlserver"], "removed containers are gone"
    assert now["agent"]["image"] == "seldonio/seldon-agent:2.10.2"
    assert changed["metadata"]["uid"] == before["statefulset", "older"]["metadata"]["uid"]
    until("the new pod", lambda: pods(kubectl, "older-").keys() == {"older-0"} and pods(kubectl, "older-")["older-0"] != running["older-0"])
    alike = lambda: {name: uid for name, uid in pods(kubectl).items() if not name.startswith("older-")}
    assert alike() == {name: uid for name, uid in running.items() if not name.startswith("older-")}
    # Requests find Envoy's pods still.
    mesh = kubectl.get("service", "seldon-mesh")
    assert mesh["spec"]["selector"] == {"app.kubernetes.io/name": "seldon-envoy"}
    assert [port["name"] for port in mesh["spec"]["ports"]] == ["data", "stats"]
    assert mesh["metadata"]["labels"]["app.kubernetes.io/name"] == "seldon-envoy"
    assert kubectl.get("service", "mlserver-1")["metadata"]["labels"]["seldon-server-replica-name"] == "mlserver-1"
    for one in SPECS:
        assert kubectl.get(*one)["spec"] == specs[one], one
    assert not [w for w in audit.writes("gantry") if w[3] >= 400], [w[:4] for w in audit.writes("gantry") if w[3] >= 400]

    # A restarted operator writes nothing.
    count = len(audit.writes("gantry-operator"))
    operator.terminate()
    again = operate(scheduler=served.clients)
    again.until("its caches", lambda: any("scheduler connected" in line for line in again.lines))
    kubectl("label", "model", "iris", "last=seen")
    kubectl("scale", "server", "older", "--replicas=0")
    kubectl.until("the smaller set", "statefulset", "older", lambda s: s["spec"]["replicas"] == 0)
    late = [w[:4] for w in audit.writes("gantry-operator")[count:] if "older" not in (w[2] or "") and w[1] != "servers/status"]
    assert not late, late

    # A configuration change updates adopted workloads, without leftovers of Seldon.
    config = next(o for o in seldon.configurations() if o["kind"] == "ServerConfig")
    config["spec"]["podSpec"]["containers"] = [c for c in config["spec"]["podSpec"]["containers"] if c["name"] != "rclone"]
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(config))
    names = lambda s: [c["name"] for c in s["spec"]["template"]["spec"]["containers"]]
    changed = kubectl.until("the change", "statefulset", "mlserver", lambda s: names(s) == ["agent", "mlserver"])
    # Inherited metadata survives it.
    kept = changed["spec"]["template"]["metadata"]
    assert kept["labels"].items() >= {"team": "blue", "cost-center": "7", "app.kubernetes.io/managed-by": "Helm"}.items(), kept
    assert kept["annotations"]["sidecar.istio.io/inject"] == "true", kept


def test_objects_with_seldon_finalizers_can_be_deleted(left, stack, operate):
    kubectl = left
    replace_kinds(kubectl)
    operate(scheduler=stack.clients)
    for kind, name in SPECS[:6]:
        kubectl("delete", kind, name, "--timeout=45s", timeout=60)
    kubectl("delete", "seldonruntime", "seldon", "--timeout=45s", timeout=60)
    for one in [*ALIKE, ("statefulset", "older"), ("configmap", "seldon-agent"), ("service", "mlserver-0")]:
        until(f"the deletion of {one}", lambda: kubectl.get(*one) is None)


def test_migrated_namespace_can_be_deleted(left, stack, operate):
    kubectl = left
    replace_kinds(kubectl)
    operate(scheduler=stack.clients)
    kubectl.until("the adoption", "statefulset", "mlserver", lambda w: w["metadata"]["labels"].get("app.kubernetes.io/managed-by") == "gantry")
    kubectl("delete", "namespace", kubectl.namespace, "--timeout=90s", timeout=120)


def test_webhook_validates_with_seldon_crds(left, webhook):
    kubectl = left
    bad = lambda name, **spec: model(name, "gs://models/x", "onnx", **({"replicas": 1, "minReplicas": 3} | spec))
    kubectl.apply(bad("before"))
    webhook()
    error = kubectl.rejected(bad("after"))
    assert 'admission webhook "objects.gantry.dev" denied the request: spec.replicas is 1, fewer than minReplicas 3' in error
    # Existing errors do not block other changes or deletion; new errors are rejected.
    kubectl("label", "model", "before", "team=blue")
    kubectl.apply(bad("before", memory="1Ki"))
    assert "fewer than minReplicas 4" in kubectl.rejected(bad("before", minReplicas=4))
    kubectl("delete", "model", "before", "--timeout=60s", timeout=90)


def test_rollback_to_seldon(left, operate, tmp_path):
    kubectl = left
    namespace = kubectl.namespace
    kinds = "models,servers,pipelines,experiments,seldonruntimes,seldonconfigs,serverconfigs"
    shell(
        kubectl,
        f"""kubectl get {kinds} -n {namespace} -o yaml | grep -v '^ *resourceVersion: ' > {tmp_path}/objects.yaml
        kubectl get crd -o yaml $(kubectl get crd -o name | grep mlops.seldon.io | cut -d/ -f2) | grep -v '^ *resourceVersion: ' > {tmp_path}/crds.yaml""",
    )
    specs = {one: kubectl.get(*one)["spec"] for one in SPECS}
    before = {one: kubectl.get(*one) for one in ALIKE}
    running = pods(kubectl)
    definitions = {d["metadata"]["name"]: d["spec"]["versions"] for d in kubectl.get("crd") if "seldon" in d["metadata"]["name"]}
    replace_kinds(kubectl)
    operator = operate()
    for one in ALIKE:
        kubectl.until("the adoption", *one, lambda w: w["metadata"]["labels"].get("app.kubernetes.io/managed-by") == "gantry")
    for kind, name in (("model", "iris"), ("server", "mlserver"), ("seldonruntime", "seldon")):
        kubectl.until("its status", kind, name, lambda o: current(o))
    assert operator.terminate() == 0

    shell(kubectl, f"kubectl replace -f {tmp_path}/crds.yaml")
    shell(kubectl, f"kubectl apply --server-side --force-conflicts -n {namespace} -f {tmp_path}/objects.yaml")
    back = {d["metadata"]["name"]: d["spec"]["versions"] for d in kubectl.get("crd") if "seldon" in d["metadata"]["name"]}
    assert back == definitions
    for one in SPECS:
        assert kubectl.get(*one)["spec"] == specs[one], one
    for one in ALIKE:
        assert kubectl.get(*one)["spec"] == before[one]["spec"], one
    alike = lambda found: {name: uid for name, uid in found.items() if not name.startswith("older-")}
    assert alike(pods(kubectl)) == alike(running)
    # Seldon's operator writes without field conflicts.
    for kind, name in ALIKE:
        patch = {"spec": {"template": {"metadata": {"annotations": {"seldon.io/was": "here"}}}}}
        kubectl("patch", kind, name, "--type=merge", f"--field-manager={seldon.MANAGER}", "-p", json.dumps(patch))
    # And removes its finalizers.
    for kind, name in (("model", "iris"), ("model", "odd"), ("pipeline", "chain"), ("experiment", "split"), ("seldonruntime", "seldon")):
        kubectl("delete", kind, name, "--wait=false")
        kubectl("patch", kind, name, "--type=merge", f"--field-manager={seldon.MANAGER}", "-p", '{"metadata":{"finalizers":[]}}')
        until(f"the deletion of {name}", lambda: kubectl.get(kind, name) is None)

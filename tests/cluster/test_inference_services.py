"""InferenceServices on a real API server, with kubectl and with KServe's Python SDK, unchanged.

There is no node; where a test needs ready pods, it reports them ready as a kubelet would."""

import json

import pytest
from cluster import CONFIGS, CRDS, Audit, condition, current
from gantry import until

CRDS_KSERVE = CRDS.parent / "crds-kserve"


@pytest.fixture
def kserve(kubectl, operate):
    """An operator of InferenceServices, and the built-in runtime for the namespace."""
    kubectl("apply", "-f", CRDS_KSERVE)
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    runtime = json.loads(
        kubectl("create", "-f", CONFIGS / "kserve" / "gantry.yaml", "--dry-run=client", "-o", "json")
    )
    runtime |= {"kind": "ServingRuntime", "metadata": {"name": "gantry"}}
    kubectl.apply(runtime)
    operate("--inference-services")
    return kubectl


def service(name="iris", metadata=None, **predictor):
    model = {"modelFormat": {"name": "xgboost"}, "storageUri": "s3://models/iris"}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"predictor": {"model": model, **predictor}},
    }


def names(kubectl, kind):
    return {o["metadata"]["name"] for o in kubectl.get(kind) or []}


def test_service_creates_its_objects_and_reports_why_it_waits(kserve, audit):
    kserve.apply(service(minReplicas=2, maxReplicas=4))
    deployment = kserve.until("the Deployment", "deployment", "iris-predictor", lambda d: d)
    pod = deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["replicas"] == 2
    assert pod["initContainers"][0]["args"] == ["fetch", "s3://models/iris", "/mnt/models"]
    assert "--model-name=iris" in pod["containers"][0]["args"]
    until("the autoscaler", lambda: names(kserve, "hpa") == {"iris-predictor"})
    until("the budget", lambda: names(kserve, "pdb") == {"iris-predictor"})
    found = kserve.until("the status", "isvc", "iris", lambda s: (condition(s) or [0, 0])[1] == "Unschedulable")
    assert current(found) and "no nodes available" in condition(found)[2]
    assert found["status"]["servingRuntimeName"] == "gantry"
    assert found["status"]["modelStatus"]["states"]["targetModelState"] == "Pending"

    kserve("annotate", "isvc", "iris", "serving.kserve.io/stop=true")
    until("the deletion", lambda: not names(kserve, "deployments") and not names(kserve, "services"))
    kserve("annotate", "isvc", "iris", "serving.kserve.io/stop-")
    kserve.until("the Deployment", "deployment", "iris-predictor", lambda d: d)
    kserve("delete", "isvc", "iris", "--timeout=50s")
    until("the deletion", lambda: not names(kserve, "deployments") and not names(kserve, "services"))


def test_ready_service_costs_few_writes_and_none_at_rest(kserve, kubelet, audit):
    audit = Audit()
    kserve.apply(service())
    kserve.ready("isvc", "iris")
    found = kserve.get("isvc", "iris")
    assert found["status"]["url"] == f"http://iris-predictor.{kserve.namespace}.svc.cluster.local"
    assert found["status"]["modelStatus"]["transitionStatus"] == "UpToDate"
    version = found["metadata"]["resourceVersion"]
    writes = [w[:3] for w in audit.writes() if w[4]["objectRef"].get("namespace") == kserve.namespace]
    writes = [w for w in writes if w[1] != "events"]
    assert len(writes) <= 6, writes
    # A change of another object is no reason for a write.
    kserve("label", "deployment", "iris-predictor", "injected=yes")
    other = service("other")
    kserve.apply(other)
    kserve.ready("isvc", "other")
    assert kserve.get("isvc", "iris")["metadata"]["resourceVersion"] == version


def test_no_writes_at_rest_while_others_scale_and_label(kserve, kubelet, audit):
    kserve.apply(service(minReplicas=1, maxReplicas=4))
    kserve.ready("isvc", "iris")
    # In the role of the autoscaler with metrics; the one of Kubernetes runs, too, and has none.
    kserve("scale", "deployment", "iris-predictor", "--replicas=3")
    kserve.until("the replicas", "deployment", "iris-predictor", lambda d: d["status"].get("readyReplicas") == 3)
    kserve.until("the autoscaler's status", "hpa", "iris-predictor", lambda h: condition(h, "AbleToScale"))
    # Reconciled as soon as a later change is visible.
    kserve.apply(service("first"))
    kserve.ready("isvc", "first")
    kserve.ready("isvc", "iris")

    before = audit.writes()
    assert any(w[2] == "iris-predictor" for w in before)
    version = kserve.get("isvc", "iris")["metadata"]["resourceVersion"]
    for turn in range(3):
        status = json.dumps({"status": {"currentReplicas": 3, "desiredReplicas": 3, "observedGeneration": turn}})
        kserve("patch", "hpa", "iris-predictor", "--subresource=status", "--type=merge", "-p", status)
        # In the role of an injector: a mesh, or a controller of costs.
        for kind in ("deployment", "replicaset", "service", "hpa", "pods"):
            kserve("label", kind, "--all", f"injected={turn}", "--overwrite")
    kserve.apply(service("last"))
    kserve.ready("isvc", "last")
    late = [w for w in audit.writes()[len(before) :] if w[4]["objectRef"].get("namespace") == kserve.namespace]
    assert any(w[2] == "last-predictor" for w in late)
    assert not [w[:4] for w in late if not w[2].startswith("last")]
    assert kserve.get("isvc", "iris")["metadata"]["resourceVersion"] == version
    deployment = kserve.get("deployment", "iris-predictor")
    assert deployment["spec"]["replicas"] == 3 and deployment["metadata"]["labels"]["injected"] == "2"


def test_kserve_sdk_creates_patches_waits_and_deletes(kserve, kubelet):
    from kserve import KServeClient
    from kserve.models import V1beta1InferenceService
    from kubernetes import client as kubernetes

    sdk = KServeClient(config_file=kserve.config)
    namespace = kserve.namespace

    def as_sdk(manifest):
        fields = kubernetes.ApiClient()
        return V1beta1InferenceService(
            api_version=manifest["apiVersion"],
            kind=manifest["kind"],
            metadata=kubernetes.V1ObjectMeta(**manifest["metadata"], namespace=namespace),
            spec=fields.sanitize_for_serialization(manifest["spec"]),
        )

    created = sdk.create(as_sdk(service()), namespace=namespace)
    assert created["metadata"]["generation"] == 1
    sdk.wait_isvc_ready("iris", namespace=namespace, timeout_seconds=60, polling_interval=0.5)
    change = service()
    change["spec"]["predictor"]["model"]["storageUri"] = "s3://models/better"
    patched = sdk.patch("iris", as_sdk(change), namespace=namespace)
    generation = patched["metadata"]["generation"]
    assert generation == 2
    # Complaint 7: a client can wait for the rollout of its change.
    sdk.wait_isvc_ready(
        "iris", namespace=namespace, timeout_seconds=60, polling_interval=0.5, expected_generation=generation
    )
    found = sdk.get("iris", namespace=namespace)
    args = kserve.get("deployment", "iris-predictor")["spec"]["template"]["spec"]["initContainers"][0]["args"]
    assert args[1] == "s3://models/better"
    assert found["status"]["components"]["predictor"]["latestReadyRevision"] == "iris-predictor-00002"
    assert found["status"]["components"]["predictor"]["previousRolledoutRevision"] == "iris-predictor-00001"
    sdk.delete("iris", namespace=namespace)
    until("the deletion", lambda: not names(kserve, "isvc") and not names(kserve, "deployments"))


def test_api_server_rejects_invalid_services(kserve):
    both = service()
    both["spec"]["predictor"]["sklearn"] = {"storageUri": "s3://b/x"}
    for broken, part in [
        (service("1-iris"), "metadata.name"),
        (service(minReplicas=3, maxReplicas=1), "maxReplicas"),
        (service(canaryTrafficPercent=120), "canaryTrafficPercent"),
        (both, "spec.predictor"),
        ({**service(), "spec": {"predictor": {}}}, "spec.predictor"),
    ]:
        error = kserve.rejected(broken)
        assert part in error, error


def test_services_of_kserve_are_left_alone(kserve, kubelet):
    kserve.apply(service(metadata={"finalizers": ["inferenceservice.finalizers"]}), service("ours"))
    kserve.ready("isvc", "ours")
    assert "status" not in kserve.get("isvc", "iris")
    assert names(kserve, "deployments") == {"ours-predictor"}
    # Taken over on request.
    kserve("annotate", "isvc", "iris", "gantry.dev/adopt=true")
    kserve.ready("isvc", "iris")
    kserve("patch", "isvc", "iris", "--type=merge", "-p", '{"metadata": {"finalizers": null}}')

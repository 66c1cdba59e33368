"""External metrics on a real API server: its autoscaler follows the latency of Algorithms that the operator serves."""

import json
import ssl
import threading
from http.client import HTTPSConnection

import pytest
from cluster import condition
from gantry import until
from test_algorithms import CRDS_ALGORITHM, LIFECYCLE, algorithm, prometheus, reached  # noqa: F401

API_SERVICE = "v1beta1.external.metrics.k8s.io"
METRIC = "algorithm_request_latency_ms"
# The latency that the scripted Prometheus answers is five times as long.
SCALING = {"minReplicas": 1, "maxReplicas": 4, "targetLatencyMs": 1}


@pytest.fixture
def registered(kubectl, operate):
    """Starts an operator, and registers it, or another Service, for external metrics."""
    kubectl("apply", "-f", CRDS_ALGORITHM)
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")

    def register(*flags, service="metrics", labels={"app.kubernetes.io/name": "gantry"}):
        names = [f"--external-metrics-{kind}=metrics" for kind in ("service", "secret")]
        operator = operate("--algorithms", "--external-metrics", "--external-metrics-port=0", *names, *flags)
        address = operator.until("the metrics", lambda: operator.address("metrics"))
        # The API server resolves such a Service itself: no kube-proxy is needed.
        named = {"type": "ExternalName", "externalName": "localhost"}
        kubectl.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": service}, "spec": named})
        port = int(address.rpartition(":")[2])
        spec = {
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "service": {"name": service, "namespace": kubectl.namespace, "port": port},
        }
        metadata = {"name": API_SERVICE, "labels": labels}
        kubectl.apply({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": metadata, "spec": spec})
        operator.metrics = address
        return operator

    yield register
    # While it is unavailable, namespaces are not deleted.
    kubectl("delete", "apiservice", API_SERVICE, "--ignore-not-found")


def read(kubectl, name="reco", *flags):
    selector = f"labelSelector=algorithm%3D{name}%2Ctrack%3Dstable"
    return kubectl.run("get", "--raw", f"/apis/external.metrics.k8s.io/v1beta1/namespaces/{kubectl.namespace}/{METRIC}?{selector}", *flags)


def available(kubectl):
    found = kubectl.get("apiservice", API_SERVICE)
    return condition(found, "Available")[0] == "True" if condition(found, "Available") else False


def test_autoscaler_follows_the_latency(kubectl, registered, kubelet, prometheus):
    registered()
    kubectl.apply(
        algorithm(scaling=SCALING, lifecycle=LIFECYCLE, metrics={"prometheus": {"address": prometheus.address}})
    )
    reached(kubectl, "the deployment", lambda s: s["phase"] == "Running")
    until("the availability of the API", lambda: available(kubectl))

    # kubectl reads it as any other API.
    ran = until("the latency", lambda: (r := read(kubectl)).returncode == 0 and json.loads(r.stdout)["items"] and r)
    (item,) = json.loads(ran.stdout)["items"]
    assert item["value"] == "5000m" and item["metricLabels"] == {"algorithm": "reco", "track": "stable"}, item
    listed = json.loads(kubectl("get", "--raw", "/apis/external.metrics.k8s.io/v1beta1"))
    assert [r["name"] for r in listed["resources"]] == [METRIC]
    missing = read(kubectl, "other")
    assert missing.returncode != 0 and f"Algorithm {kubectl.namespace}/other not found" in missing.stderr, missing.stderr

    # The autoscaler of the real controller manager scales by it.
    metrics = kubectl.get("hpa", "reco")["spec"]["metrics"]
    assert [m["type"] for m in metrics] == ["Resource", "External"], metrics
    kubectl.until("the scale", "deployment", "reco", lambda d: d["spec"]["replicas"] == SCALING["maxReplicas"])
    current = kubectl.until(
        "the autoscaler's metric",
        "hpa",
        "reco",
        lambda h: [m for m in h["status"].get("currentMetrics") or [] if m["type"] == "External"],
    )
    (external,) = [m for m in current["status"]["currentMetrics"] if m["type"] == "External"]
    assert external["external"]["current"]["value"] == "5", external
    assert condition(kubectl.get("algorithm", "reco"), "MetricsAvailable")[0] != "False"


def test_other_callers_get_nothing(kubectl, registered):
    operator = registered()
    until("the availability of the API", lambda: available(kubectl))
    account = f"--as=system:serviceaccount:{kubectl.namespace}:default"
    refused = read(kubectl, "reco", account)
    assert refused.returncode != 0 and "forbidden" in refused.stderr.lower(), refused.stderr

    # Past the API server: without a certificate, the handshake fails, whatever the headers claim.
    host, port = operator.metrics.split(":")
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection(host, int(port), context=anyone, timeout=10)
    headers = {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"}
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connection.request("GET", "/apis/external.metrics.k8s.io/v1beta1", headers=headers)
        connection.getresponse()


def test_certificate_rotates_without_a_failed_read(kubectl, registered):
    operator = registered("--external-metrics-certificate-lifetime=15s")
    until("the availability of the API", lambda: available(kubectl))
    failures, reads, stop = [], [], threading.Event()

    def client():
        while not stop.is_set():
            ran = kubectl.run("get", "--raw", "/apis/external.metrics.k8s.io/v1beta1")
            (reads if ran.returncode == 0 else failures).append(ran.stderr)

    thread = threading.Thread(target=client)
    thread.start()
    renewals = lambda: sum("serving a new certificate of the external metrics API" in line for line in list(operator.lines))
    try:
        operator.until("three certificates", lambda: renewals() >= 3)
    finally:
        stop.set()
        thread.join()
    assert reads and not failures, failures


def test_api_of_another_provider_is_left_alone(kubectl, registered, kubelet, prometheus):
    operator = registered(service="keda", labels={})
    operator.until("the report", lambda: any("of another provider" in line for line in list(operator.lines)))
    assert "caBundle" not in kubectl.get("apiservice", API_SERVICE)["spec"]
    kubectl.apply(
        algorithm(scaling=SCALING, lifecycle=LIFECYCLE, metrics={"prometheus": {"address": prometheus.address}})
    )
    reached(kubectl, "the deployment", lambda s: s["phase"] == "Running")
    expected = ("False", "ExternalMetricsUnavailable")
    found = kubectl.until(
        "the condition", "algorithm", "reco", lambda a: (condition(a, "MetricsAvailable") or ())[:2] == expected
    )
    assert f"Service {kubectl.namespace}/keda" in condition(found, "MetricsAvailable")[2]

"""Algorithms on a real API server, with a scripted Prometheus and a real one. There is no node: the kubelet of the tests reports
pods ready."""

import collections
import json
import os
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest
from cluster import CRDS, condition, current
from gantry import until
from processes import Process, free_ports, http_request, responds

CRDS_ALGORITHM = CRDS.parent / "crds-algorithm"
# As fast as the rules allow.
LIFECYCLE = {"canaryWeight": 20, "successThreshold": 0.99, "interval": "1s", "window": "5s", "checks": 2, "failureThreshold": 2}


class Prometheus:
    """Answers the default queries: 1000 requests of each revision, with these success rates; 1 for others."""

    def __init__(self):
        prometheus = self
        self.success, self.queries = {}, 0

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                query = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())["query"][0]
                prometheus.queries += 1
                value = 1000.0
                if query.startswith("1 - "):
                    value = prometheus.success.get(re.search(r'revision="(\w+)"', query)[1], 1.0)
                elif query.startswith("1000 * histogram"):
                    value = 5.0
                elif query.startswith("max("):
                    value = 0.0
                result = [{"metric": {}, "value": [0, str(value)]}]
                body = json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def prometheus():
    made = Prometheus()
    yield made
    made.server.shutdown()


class Traffic:
    """Serves the metrics of revisions that answer RATE requests per second each, with these shares of failures."""

    RATE = 200

    def __init__(self):
        traffic = self
        self.failing, self.served, self.at = {}, {}, time.monotonic()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = traffic.metrics().encode()
                self.send_response(200)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def metrics(self):
        now = time.monotonic()
        requests, self.at = (now - self.at) * self.RATE, now
        lines = []
        for revision, failing in list(self.failing.items()):
            good, bad = self.served.get(revision, (0.0, 0.0))
            good, bad = good + requests * (1 - failing), bad + requests * failing
            self.served[revision] = good, bad
            labels = f'algorithm="reco",namespace="{self.namespace}",revision="{revision}"'
            lines += [f'algorithm_requests_total{{{labels},code="200"}} {good}']
            lines += [f'algorithm_requests_total{{{labels},code="500"}} {bad}'] if failing else []
            # Nine in ten take up to 10 ms, all up to 25 ms.
            for limit, share in (("0.01", 0.9), ("0.025", 1), ("+Inf", 1)):
                lines += [f'algorithm_request_duration_seconds_bucket{{{labels},le="{limit}"}} {(good + bad) * share}']
        return "\n".join(lines) + "\n"


@pytest.fixture
def traffic(kubectl):
    made = Traffic()
    made.namespace = kubectl.namespace
    yield made
    made.server.shutdown()


@pytest.fixture
def real_prometheus(traffic, tmp_path):
    """Starts Prometheus, which scrapes the metrics of the test. Each start keeps address and data."""
    if not (program := os.environ.get("GANTRY_TEST_PROMETHEUS")):
        pytest.skip("GANTRY_TEST_PROMETHEUS names no Prometheus: run cargo xtask test where Debian's packages are")
    scrape = {"job_name": "tests", "static_configs": [{"targets": [f"127.0.0.1:{traffic.server.server_address[1]}"]}]}
    config = tmp_path / "prometheus.json"
    config.write_text(json.dumps({"global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"}, "scrape_configs": [scrape]}))
    at = f"127.0.0.1:{free_ports(1)[0]}"
    started = []

    def start():
        flags = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address={at}"]
        process = Process([program, *flags])
        started.append(process)
        process.until("Prometheus", lambda: responds(at, "/-/ready"))
        return process

    start.address = f"http://{at}"
    yield start
    for process in started:
        process.kill()


@pytest.fixture
def algorithms(kubectl, operate):
    kubectl("apply", "-f", CRDS_ALGORITHM)
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    kubectl.operator = operate("--algorithms")
    return kubectl


class Pods:
    """Reports the pods of both tracks ready, and answers for them: a revision of an image that is named in `bad` with 503."""

    def __init__(self, kubectl):
        self.kubectl, self.bad, self.images, self.paths = kubectl, set(), {}, []
        self.port, self.stop, self.servers = free_ports(1)[0], threading.Event(), []
        for track, address in (("stable", "127.0.0.2"), ("canary", "127.0.0.3")):
            self.serve(track, address)
        self.thread = threading.Thread(target=self.report)
        self.thread.start()

    def serve(self, track, address):
        pods = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                pods.paths.append(self.path)
                answer = f"{track} {body.decode()}".encode()
                self.send_response(503 if pods.images.get(track) in pods.bad else 200)
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer((address, self.port), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.servers.append(server)

    def report(self):
        while not self.stop.wait(0.2):
            for pod in self.kubectl.get("pods") or []:
                track = pod["metadata"]["labels"].get("ai.alien6.io/track")
                if track and not pod["status"].get("podIP"):
                    ip = "127.0.0.2" if track == "stable" else "127.0.0.3"
                    ready = [{"type": "Ready", "status": "True"}]
                    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": ready}
                    patch = json.dumps({"status": status})
                    self.kubectl.run("patch", "pod", pod["metadata"]["name"], "--subresource=status", "-p", patch)
                    self.images[track] = pod["spec"]["containers"][0]["image"]

    def close(self):
        self.stop.set()
        self.thread.join()
        for server in self.servers:
            server.shutdown()


class Clients:
    """Send 100 requests per second to the gateway until the end of the test."""

    def __init__(self, gateway, path):
        self.gateway, self.path, self.answers, self.stop = gateway, path, [], threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stop.wait(0.01):
            answer = http_request(self.gateway, "PUT", self.path, {"a": 1})
            self.answers.append((answer.status, answer.body.decode().split(" ")[0]))

    def close(self):
        self.stop.set()
        self.thread.join()


@pytest.fixture
def pods(kubectl):
    made = Pods(kubectl)
    yield made
    made.close()


def algorithm(name="reco", image="reco:1", **spec):
    return {"apiVersion": "ai.alien6.io/v1", "kind": "Algorithm", "metadata": {"name": name}, "spec": {"image": image, **spec}}


def reached(kubectl, what, wanted, name="reco"):
    return kubectl.until(what, "algorithm", name, lambda a: a.get("status") and current(a) and wanted(a["status"]))["status"]


def image(kubectl, name):
    found = kubectl.get("deployment", name)
    return found and found["spec"]["template"]["spec"]["containers"][0]["image"]


def names(kubectl, kind):
    return {o["metadata"]["name"] for o in kubectl.get(kind) or []}


def test_example_of_the_documentation_creates_its_objects(algorithms):
    kubectl = algorithms
    kubectl.apply(
        algorithm(
            "recommendation-engine-v2",
            "registry.example.com/algo/reco:2.1.4",
            replicas=3,
            resources={"gpu": "nvidia.com/gpu", "gpuCount": 2},
            scaling={"minReplicas": 1, "maxReplicas": 10, "targetLatencyMs": 50},
            lifecycle={"canaryWeight": 20, "successThreshold": 0.99, "rollbackOnDrift": True},
        )
    )
    name = "recommendation-engine-v2"
    until("the autoscaler", lambda: names(kubectl, "hpa") == {name})
    deployment = kubectl.get("deployment", name)
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert {name, f"{name}-stable"} <= names(kubectl, "services")
    assert names(kubectl, "pdb") == {name}
    configs = [c for c in names(kubectl, "configmaps") if c.startswith(f"{name}-config-")]
    assert len(configs) == 1, configs
    reached(kubectl, "the phase", lambda s: s["phase"] == "Deploying", name)
    # No finalizer: the garbage collector deletes what it owns.
    assert not kubectl.get("algorithm", name)["metadata"].get("finalizers")
    kubectl("delete", "algorithm", name, "--timeout=50s")
    until("the deletion", lambda: not names(kubectl, "deployments") and not names(kubectl, "hpa"))


def test_good_revision_is_promoted_and_bad_one_rolled_back(algorithms, kubelet, prometheus, audit):
    kubectl = algorithms
    made = algorithm(replicas=2, lifecycle=LIFECYCLE, metrics={"prometheus": {"address": prometheus.address}})
    kubectl.apply(made)
    first = reached(kubectl, "the deployment", lambda s: s["phase"] == "Running")
    assert condition(kubectl.get("algorithm", "reco"))[0] == "True"
    mine = lambda: [
        w for w in audit.writes("gantry") if w[4]["objectRef"].get("namespace") == kubectl.namespace and w[1] != "events"
    ]
    created = mine()
    assert len(created) <= 10, collections.Counter(w[:3] for w in created)

    made["spec"]["image"] = "reco:2"
    kubectl.apply(made)
    canary = reached(kubectl, "the canary", lambda s: s["phase"] == "Canary" and s.get("canaryWeight") == 20)
    assert canary["stableRevision"] == first["stableRevision"] != canary["canaryRevision"]
    assert (image(kubectl, "reco"), image(kubectl, "reco-canary")) == ("reco:1", "reco:2")
    good = reached(kubectl, "the promotion", lambda s: s["phase"] == "Running" and s["stableRevision"] == canary["canaryRevision"])
    assert image(kubectl, "reco") == "reco:2"
    until("the end of the canary", lambda: image(kubectl, "reco-canary") is None)

    made["spec"]["image"] = "reco:3"
    kubectl.apply(made)
    bad = reached(kubectl, "the canary", lambda s: s["phase"] == "Canary")["canaryRevision"]
    prometheus.success[bad] = 0.5
    back = reached(kubectl, "the rollback", lambda s: s["phase"] == "Running" and s.get("failedRevisions"))
    assert back["stableRevision"] == good["stableRevision"] and back["failedRevisions"][-1]["revision"] == bad, back
    assert image(kubectl, "reco") == "reco:2"
    assert condition(kubectl.get("algorithm", "reco"), "RolledBack")[0] == "True"
    assert condition(kubectl.get("algorithm", "reco"))[:2] == ("False", "RolledBack")
    until("the end of the canary", lambda: image(kubectl, "reco-canary") is None)

    # At rest, and after a restart of the operator: no writes.
    before = len(mine())
    kubectl.operator.terminate()
    operator = type(kubectl.operator)(kubectl, "--namespace", kubectl.namespace, "--algorithms")
    try:
        kubectl.apply(algorithm("last", replicas=1))
        reached(kubectl, "the other one", lambda s: s["phase"] == "Running", "last")
        late = [w for w in mine()[before:] if not (w[2] or "last").startswith("last")]
        assert not late, [w[:4] for w in late]
    finally:
        operator.kill()


def test_real_prometheus_decides_about_revisions_and_its_outage_holds_them(algorithms, kubelet, traffic, real_prometheus):
    kubectl = algorithms
    process = real_prometheus()
    prometheus = {"prometheus": {"address": real_prometheus.address}}
    # 24 ms at the 99th percentile: the target is met.
    made = algorithm(replicas=2, scaling={"targetLatencyMs": 30}, lifecycle=LIFECYCLE, metrics=prometheus)
    kubectl.apply(made)
    first = reached(kubectl, "the deployment", lambda s: s["phase"] == "Running")["stableRevision"]
    traffic.failing[first] = 0.0

    made["spec"]["image"] = "reco:2"
    kubectl.apply(made)
    second = reached(kubectl, "the canary", lambda s: s["phase"] == "Canary")["canaryRevision"]
    process.kill()
    held = reached(kubectl, "the outage", lambda s: s.get("consecutiveErrors", 0) >= 2)
    assert (held["phase"], held["canaryRevision"]) == ("Canary", second), held
    assert condition(kubectl.get("algorithm", "reco"), "MetricsAvailable")[0] == "False"
    traffic.failing[second] = 0.001
    real_prometheus()
    reached(kubectl, "the promotion", lambda s: s["phase"] == "Running" and s["stableRevision"] == second)
    assert image(kubectl, "reco") == "reco:2"

    made["spec"]["image"] = "reco:3"
    kubectl.apply(made)
    third = reached(kubectl, "the canary", lambda s: s["phase"] == "Canary")["canaryRevision"]
    traffic.failing[third] = 0.2
    back = reached(kubectl, "the rollback", lambda s: s["phase"] == "Running" and s.get("failedRevisions"))
    assert (back["stableRevision"], back["failedRevisions"][-1]["revision"]) == (second, third), back
    message = condition(kubectl.get("algorithm", "reco"), "RolledBack")[2]
    # The rate of failures as Prometheus extrapolates it.
    assert re.search(r"(7[89]|8[01])\.?\d*\s?%|0\.(7[89]|8[01])", message), message
    assert image(kubectl, "reco") == "reco:2"


def test_gateway_splits_requests_and_its_statistics_decide(kubectl, operate, stack, pods):
    """Any method and path, without Prometheus: a good revision is promoted, a bad one is out of the route within seconds."""
    kubectl("apply", "-f", CRDS_ALGORITHM)
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    operate("--algorithms", scheduler=stack.clients)
    lifecycle = LIFECYCLE | {"canaryWeight": 50, "minRequests": 10}
    made = algorithm(ports=[{"name": "http", "containerPort": pods.port}], lifecycle=lifecycle, expose={})
    kubectl.apply(made)
    reached(kubectl, "the route", lambda s: s["phase"] == "Running" and condition(kubectl.get("algorithm", "reco"))[0] == "True")
    path = f"/serving/{kubectl.namespace}/reco/items/7?x=1"
    until("an answer", lambda: http_request(stack.inference, "PUT", path, {"a": 1}).status == 200)
    assert pods.paths[-1] == "/items/7?x=1"
    clients = Clients(stack.inference, path)
    try:
        made["spec"]["image"] = "reco:2"
        kubectl.apply(made)
        canary = reached(kubectl, "the canary", lambda s: s["phase"] == "Canary" and s.get("canaryWeight") == 50)
        until("requests to the canary", lambda: (200, "canary") in clients.answers)
        promoted = canary["canaryRevision"]
        good = reached(kubectl, "the promotion", lambda s: s["phase"] == "Running" and s["stableRevision"] == promoted)
        assert good["lastAnalysis"]["verdict"] == "Pass" and good["lastAnalysis"]["successRate"] == 1, good
        until("the end of the canary", lambda: image(kubectl, "reco-canary") is None)
        assert image(kubectl, "reco") == "reco:2"
        assert {status for status, _ in clients.answers} == {200}, collections.Counter(clients.answers)

        pods.bad.add("reco:3")
        made["spec"]["image"] = "reco:3"
        kubectl.apply(made)
        back = reached(kubectl, "the rollback", lambda s: s["phase"] == "Running" and s.get("failedRevisions"))
        assert back["stableRevision"] == promoted and back["failedRevisions"][-1]["reason"] == "HardBreach", back
        assert condition(kubectl.get("algorithm", "reco"))[:2] == ("False", "RolledBack")
        # The stable side has lost nothing.
        assert (503, "stable") not in clients.answers and image(kubectl, "reco") == "reco:2"
        before = len(clients.answers)
        until("further requests", lambda: len(clients.answers) > before + 50)
        assert set(clients.answers[before + 5 :]) == {(200, "stable")}, clients.answers[before:]
    finally:
        clients.close()
    kubectl("delete", "algorithm", "reco", "--timeout=50s")
    until("the end of the route", lambda: http_request(stack.inference, "PUT", path, {"a": 1}).status == 404)


def test_api_server_rejects_invalid_algorithms(algorithms):
    for spec, words in (
        ({"image": ""}, "image"),
        ({"lifecycle": {"canaryWeight": 120}}, "canaryWeight"),
        ({"lifecycle": {"successThreshold": 2}}, "successThreshold"),
        ({"scaling": {"minReplicas": 3, "maxReplicas": 1}}, "maxReplicas"),
    ):
        assert words in algorithms.rejected(algorithm(**spec))

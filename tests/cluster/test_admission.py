"""The admission webhook on a real API server: kubectl output, certificate rotation, and failure of the webhook."""

import json
import socket
import threading

from cluster import Kubectl, Operator, condition, current, custom, model
from gantry import run, until
from hook import NOWHERE
from processes import metric

def config(name, size):
    claims = [{"name": "models", "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}}]
    pod = {"containers": [{"name": "server", "image": "server:1"}]}
    return custom("ServerConfig", name, {"podSpec": pod, "volumeClaimTemplates": claims})


def server(config, **metadata):
    return custom("Server", "a", {"serverConfig": config}, **metadata)


def test_kubectl_shows_warnings_and_rejections(kubectl, hook, webhook):
    operator = webhook()
    namespace = kubectl.namespace
    applied = kubectl.run("apply", "-f", "-", stdin=json.dumps(server("small")))
    assert applied.returncode == 0 and applied.stdout == "server.mlops.seldon.io/a created\n"
    assert applied.stderr.splitlines() == [
        f'Warning: spec.serverConfig: ServerConfig "small" not found in the operator\'s namespace {namespace}; no pods are created '
        "until it exists"
    ]
    kubectl.apply(config("small", "1Gi"), config("large", "2Gi"))
    made = kubectl.until("the StatefulSet", "statefulset", "a", lambda s: s)
    generation = made["metadata"]["generation"]

    # Immutable changes are rejected with a remedy.
    problem = (
        f"spec.serverConfig: volumeClaimTemplates are immutable, and those of StatefulSets {namespace}/a differ from "
        'ServerConfig "large": '
    )
    recreate = f"(kubectl delete statefulset a -n {namespace} --cascade=orphan)"

    def rejection():
        ran = kubectl.run("apply", "-f", "-", stdin=json.dumps(server("large")))
        return ran.stderr if ran.returncode else None

    # The operator's caches lag behind the API server.
    error = until("the rejection", lambda: rejection() if "large" in kubectl("get", "serverconfig") else None)
    assert 'admission webhook "objects.gantry.dev" denied the request: ' in error, error
    assert (
        f"{problem}use another name; or annotate this object with gantry.dev/admission=warn, apply it, and recreate them {recreate}"
        in error
    ), error
    assert kubectl.get("server", "a")["spec"]["serverConfig"] == "small"
    shrunk = kubectl.rejected(config("small", "2Gi"))
    assert "denied the request: spec.volumeClaimTemplates: volumeClaimTemplates are immutable" in shrunk, shrunk

    # With the annotation it is a warning; the status reports the same, and the remedy works.
    annotated = server("large", annotations={"gantry.dev/admission": "warn"})
    applied = kubectl.run("apply", "-f", "-", stdin=json.dumps(annotated))
    assert applied.returncode == 0, applied.stderr
    assert applied.stderr.splitlines() == [f"Warning: {problem}recreate them now {recreate}"]
    kubectl.until("the stuck set", "server", "a", lambda s: current(s) and condition(s)[1] == "ApplyRefused")
    assert kubectl.get("statefulset", "a")["metadata"]["generation"] == generation
    kubectl("delete", "statefulset", "a", "--cascade=orphan")
    size = lambda s: s["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    kubectl.until("the new StatefulSet", "statefulset", "a", lambda s: s and size(s) == "2Gi")

    # Deletion is never rejected.
    deleted = kubectl.run("delete", "serverconfig", "large")
    assert deleted.returncode == 0
    assert deleted.stderr.splitlines() == [
        f'Warning: ServerConfig "large" is used by Servers {namespace}/a; their pods keep running, but are not updated until it '
        "is recreated"
    ]
    # Metadata changes do not call the webhook.
    calls_before = metric(operator.admin, "gantry_operator_admissions_total")
    kubectl("label", "server", "a", "team=blue")
    kubectl("patch", "server", "a", "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/mine"]}}')
    kubectl("delete", "server", "a", "--wait=false")
    kubectl("patch", "server", "a", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
    until("the deletion", lambda: kubectl.get("server", "a") is None)
    assert metric(operator.admin, "gantry_operator_admissions_total") == calls_before + 1, "only the deletion"


def test_certificate_rotation_during_requests(kubectl, hook, webhook):
    operator = webhook("--webhook-certificate-lifetime=15s")
    warning = NOWHERE.format(kubectl.namespace)
    renewals = lambda: sum("serving a new certificate of the webhook" in line for line in list(operator.lines))
    first, bundles, requests = renewals(), set(), 0

    def one_more():
        nonlocal requests
        ran = hook.probe()
        requests += 1
        # Without a response of the webhook there would be no warning.
        assert warning in ran.stderr, f"request {requests}: {ran.stderr}\n{hook.bundle()}\n{operator.output()}"
        bundles.add(hook.bundle())
        return renewals() >= first + 3

    until("three renewals", one_more, timeout=120)
    assert len(bundles) >= 4 and any(b.count("BEGIN") == 2 for b in bundles)
    assert metric(operator.admin, "gantry_operator_webhook_certificate_expiry_seconds") > 0


def test_reapplied_configuration_keeps_the_ca_bundle(kubectl, hook, webhook):
    webhook()
    bundle = hook.bundle()
    assert bundle.startswith("-----BEGIN CERTIFICATE-----")
    for flags in ([], ["--server-side", "--force-conflicts"], ["--server-side", "--field-manager=helm", "--force-conflicts"]):
        hook.hook["timeoutSeconds"] = 3 + len(flags)
        hook.apply(*flags)
        found = kubectl.get("validatingwebhookconfiguration", hook.name)["webhooks"][0]
        assert found["timeoutSeconds"] == 3 + len(flags)
        assert hook.bundle() == bundle, flags
    # Published again after a replace.
    kubectl("replace", "-f", "-", stdin=json.dumps(hook.configuration))
    until("the caBundle", lambda: hook.bundle() == bundle)
    hook.until_called()


def test_writes_work_without_the_webhook(kubectl, hook, webhook, operate):
    operator = webhook()
    operator.kill()
    assert hook.probe().stderr == "", "no warning"

    def everything(mark):
        kubectl.apply(
            model("iris", f"gs://models/{mark}", server="nowhere"),
            config("small", "1Gi"),
            server("small"),
            custom("SeldonConfig", "default", {"components": []}),
            custom("SeldonRuntime", "seldon", {"seldonConfig": "default"}),
            custom("Pipeline", "p", {"steps": [{"name": "iris"}]}),
            custom("Experiment", "e", {"candidates": [{"name": "iris", "weight": 1}]}),
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"mark": mark}},
        )
        assert kubectl.get("model", "iris")["spec"]["storageUri"].endswith(mark)
        assert kubectl.get("configmap", "c")["data"]["mark"] == mark
        kubectl("delete", "model,server,seldonruntime,pipeline,experiment,serverconfig,seldonconfig,configmap", "--all", "--timeout=50s")

    everything("down")
    # A server that never responds.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook.point_to(f"https://127.0.0.1:{silent.getsockname()[1]}/validate")
        everything("silent")
    # A server with an invalid response.
    with socket.create_server(("127.0.0.1", 0)) as other:

        def respond():
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                connection.close()

        thread = threading.Thread(target=respond, daemon=True)
        thread.start()
        hook.point_to(f"https://127.0.0.1:{other.getsockname()[1]}/validate")
        everything("other")
        other.shutdown(socket.SHUT_RDWR)
        thread.join()
    # Restarted with the stored certificate.
    bundle = hook.bundle()
    again = operate(*hook.flags())
    hook.point_to(f"https://{again.until('the webhook', lambda: again.address('webhook'))}/validate")
    hook.until_called()
    assert hook.bundle() == bundle


def test_installed_permissions_are_minimal(kubectl, hook, operate, tmp_path):
    namespace = kubectl.namespace
    printed = run("install", "--no-crds", "--no-configs", "--webhook", "-n", namespace)
    assert printed.returncode == 0, printed.stderr
    kubectl("apply", "-f", "-", stdin=printed.stdout)
    try:
        token = kubectl("create", "token", "gantry-operator").strip()
        theirs = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
        theirs["users"] = [{"name": theirs["users"][0]["name"], "user": {"token": token}}]
        mine = tmp_path / "kubeconfig"
        mine.write_text(json.dumps(theirs))
        account = Kubectl(namespace)
        account.config = str(mine)
        started = Operator(account, "--namespace", namespace, "--webhook", "--webhook-port=0", "--leader-elect")
        try:
            of = lambda: kubectl.get("validatingwebhookconfiguration", "gantry-webhook")["webhooks"][0]["clientConfig"]
            started.until("the caBundle", lambda: of().get("caBundle"))
            assert of()["service"]["namespace"] == namespace
            assert "certificates.json" in kubectl.get("secret", "gantry-webhook")["data"]
            # An emptied Secret is filled again.
            bundle = of()["caBundle"]
            kubectl("patch", "secret", "gantry-webhook", "--type=json", "-p", '[{"op":"remove","path":"/data"}]')
            started.until("another caBundle", lambda: of()["caBundle"] != bundle)
            # The controllers work with the installed permissions, too.
            kubectl.apply(config("small", "1Gi"), server("small"))
            kubectl.until("the StatefulSet", "statefulset", "a", lambda s: s)
        finally:
            started.kill()
        may = lambda *words: account.run("auth", "can-i", *words).stdout.strip()
        assert may("get", "secret/gantry-webhook") == "yes"
        for words in (
            ("get", "secret/other"),
            ("list", "secrets"),
            ("create", "secrets"),
            ("delete", "secret/gantry-webhook"),
            ("patch", f"validatingwebhookconfigurations/{hook.name}"),
            ("create", "validatingwebhookconfigurations"),
            ("delete", "validatingwebhookconfigurations/gantry-webhook"),
        ):
            assert may(*words) == "no", words
    finally:
        kubectl("delete", "-f", "-", "--ignore-not-found", "--wait=false", stdin=printed.stdout)

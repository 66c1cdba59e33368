"""The admission webhook on a real API server: what kubectl shows, a certificate that is renewed meanwhile, and a cluster that
goes on without it."""

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


def test_kubectl_shows_warnings_and_refusals(kubectl, hook, asked):
    operator = asked()
    namespace = kubectl.namespace
    applied = kubectl.run("apply", "-f", "-", stdin=json.dumps(server("small")))
    assert applied.returncode == 0 and applied.stdout == "server.mlops.seldon.io/a created\n"
    assert applied.stderr.splitlines() == [
        f'Warning: spec.serverConfig: there is no ServerConfig "small" in namespace {namespace}, where they are looked up: no '
        "pods are made until there is one"
    ]
    kubectl.apply(config("small", "1Gi"), config("large", "2Gi"))
    made = kubectl.until("the StatefulSet", "statefulset", "a", lambda s: s)
    generation = made["metadata"]["generation"]

    # What could never be done is refused, with what to do instead; nothing was touched.
    problem = (
        f'spec.serverConfig: ServerConfig "large" has other volumeClaimTemplates than StatefulSets {namespace}/a, which cannot '
        "change theirs: "
    )
    replace = f"(kubectl delete statefulset a -n {namespace} --cascade=orphan)"

    def refused():
        ran = kubectl.run("apply", "-f", "-", stdin=json.dumps(server("large")))
        return ran.stderr if ran.returncode else None

    # The caches of the operator follow the objects; the answer does as soon as they do.
    said = until("the refusal", lambda: refused() if "large" in kubectl("get", "serverconfig") else None)
    assert 'admission webhook "objects.gantry.dev" denied the request: ' in said, said
    assert (
        f"{problem}use another name; or annotate this object with gantry.dev/admission=warn, apply it, and replace them {replace}"
        in said
    ), said
    assert kubectl.get("server", "a")["spec"]["serverConfig"] == "small"
    shrunk = kubectl.refused(config("small", "2Gi"))
    assert "denied the request: spec.volumeClaimTemplates: this change has other" in shrunk, shrunk

    # Whoever knows what comes next may; it is what the status says too, and it helps.
    lenient = server("large", annotations={"gantry.dev/admission": "warn"})
    applied = kubectl.run("apply", "-f", "-", stdin=json.dumps(lenient))
    assert applied.returncode == 0, applied.stderr
    assert applied.stderr.splitlines() == [f"Warning: {problem}now replace them {replace}"]
    kubectl.until("the stuck set", "server", "a", lambda s: current(s) and condition(s)[1] == "ApplyRefused")
    assert kubectl.get("statefulset", "a")["metadata"]["generation"] == generation
    kubectl("delete", "statefulset", "a", "--cascade=orphan")
    size = lambda s: s["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    kubectl.until("the new StatefulSet", "statefulset", "a", lambda s: s and size(s) == "2Gi")

    # Deleting is never refused.
    deleted = kubectl.run("delete", "serverconfig", "large")
    assert deleted.returncode == 0
    assert deleted.stderr.splitlines() == [
        f'Warning: ServerConfig "large" is used by Servers {namespace}/a: their pods run on, and cannot be changed until there '
        "is one of that name"
    ]
    # Labels and finalizers are nobody's business: the webhook is not even asked.
    asked_before = metric(operator.admin, "gantry_operator_admissions_total")
    kubectl("label", "server", "a", "team=blue")
    kubectl("patch", "server", "a", "--type=merge", "-p", '{"metadata":{"finalizers":["example.com/mine"]}}')
    kubectl("delete", "server", "a", "--wait=false")
    kubectl("patch", "server", "a", "--type=merge", "-p", '{"metadata":{"finalizers":[]}}')
    until("the end", lambda: kubectl.get("server", "a") is None)
    assert metric(operator.admin, "gantry_operator_admissions_total") == asked_before + 1, "the deletion, and nothing else"


def test_a_certificate_is_renewed_while_requests_go_on(kubectl, hook, asked):
    operator = asked("--webhook-certificate-lifetime=15s")
    warning = NOWHERE.format(kubectl.namespace)
    renewals = lambda: sum("shows a new certificate" in line for line in list(operator.lines))
    begun, bundles, questions = renewals(), set(), 0

    def one_more():
        nonlocal questions
        ran = hook.probe()
        questions += 1
        # Without an answer from the webhook there would be no warning: the API server would go on in silence.
        assert warning in ran.stderr, f"question {questions}: {ran.stderr}\n{hook.bundle()}\n{operator.output()}"
        bundles.add(hook.bundle())
        return renewals() >= begun + 3

    until("three renewals", one_more, timeout=120)
    assert len(bundles) >= 4 and any(b.count("BEGIN") == 2 for b in bundles)
    assert metric(operator.admin, "gantry_operator_webhook_certificate_expiry_seconds") > 0


def test_applying_the_configuration_again_does_not_disturb(kubectl, hook, asked):
    asked()
    bundle = hook.bundle()
    assert bundle.startswith("-----BEGIN CERTIFICATE-----")
    for flags in ([], ["--server-side", "--force-conflicts"], ["--server-side", "--field-manager=helm", "--force-conflicts"]):
        hook.hook["timeoutSeconds"] = 3 + len(flags)
        hook.apply(*flags)
        found = kubectl.get("validatingwebhookconfiguration", hook.name)["webhooks"][0]
        assert found["timeoutSeconds"] == 3 + len(flags)
        assert hook.bundle() == bundle, flags
    # Replaced as a whole, it comes back.
    kubectl("replace", "-f", "-", stdin=json.dumps(hook.made))
    until("the caBundle", lambda: hook.bundle() == bundle)
    hook.until_asked()


def test_without_the_webhook_everything_goes_on(kubectl, hook, asked, operate):
    operator = asked()
    operator.kill()
    assert hook.probe().stderr == "", "nobody has anything to say"

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
        kubectl("delete", "model,server,seldonruntime,pipeline,experiment,serverconfig,seldonconfig,configmap", "--all", "--timeout=30s")

    everything("down")
    # Somebody who takes connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hook.lead_to(f"https://127.0.0.1:{silent.getsockname()[1]}/validate")
        everything("silent")
    # And somebody who answers with something else.
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer():
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                connection.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        hook.lead_to(f"https://127.0.0.1:{other.getsockname()[1]}/validate")
        everything("other")
        other.shutdown(socket.SHUT_RDWR)
        thread.join()
    # It comes back, with the certificate that was there.
    bundle = hook.bundle()
    again = operate(*hook.flags())
    hook.lead_to(f"https://{again.until('the webhook', lambda: again.address('webhook'))}/validate")
    hook.until_asked()
    assert hook.bundle() == bundle


def test_the_rights_that_are_installed_are_enough_and_no_more(kubectl, hook, operate, tmp_path):
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
            # Emptied, it is filled anew.
            bundle = of()["caBundle"]
            kubectl("patch", "secret", "gantry-webhook", "--type=json", "-p", '[{"op":"remove","path":"/data"}]')
            started.until("another caBundle", lambda: of()["caBundle"] != bundle)
            # The rest of its work is within its rights, too.
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

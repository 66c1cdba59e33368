"""Certificates that the operator issues, with the permissions of an installation on a real API server."""

import base64
import json
import ssl

import pytest
from cluster import Kubectl, runtime, server
from gantry import run, until

SECRETS = {
    "gantry-scheduler-tls": {"ca.crt", "tls.crt", "tls.key"},
    "gantry-gateway-tls": {"ca.crt", "tls.crt", "tls.key"},
    "gantry-agent-tls": {"ca.crt", "agent-gantry.crt", "agent-gantry.key"},
}


@pytest.fixture
def installed(kubectl, operate, tmp_path):
    """An operator with the service account, the permissions and the flags of `gantry install`."""
    namespace = kubectl.namespace
    manifests = run("install", "--no-crds", "--no-aggregate", "-n", namespace, "--watch-namespaces", namespace).stdout
    kubectl("apply", "-f", "-", stdin=manifests)
    (operator,) = [d for d in kubectl.get("deployments") if d["metadata"]["name"] == "gantry-operator"]
    flags = [f for f in operator["spec"]["template"]["spec"]["containers"][0]["args"] if "certificate" in f]
    assert "--issue-certificates" in flags, flags
    account = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
    token = kubectl("create", "token", "gantry-operator").strip()
    account["users"] = [{"name": account["users"][0]["name"], "user": {"token": token}}]
    file = tmp_path / "operator"
    file.write_text(json.dumps(account))
    restricted = Kubectl(namespace)
    restricted.config = str(file)

    def start():
        admin, kubectl.config = kubectl.config, str(file)
        try:
            return operate(*flags)
        finally:
            kubectl.config = admin

    return start, restricted


def files(kubectl, name):
    secret = kubectl.get("secret", name)
    return {file: base64.b64decode(text) for file, text in ((secret or {}).get("data") or {}).items()}


def test_operator_issues_certificates_with_permissions_by_name(kubectl, installed, tmp_path):
    start, restricted = installed
    operator = start()
    kubectl.apply(runtime(), server())
    for name, expected in SECRETS.items():
        until(name, lambda: set(files(kubectl, name)) == expected)
    stored = files(kubectl, "gantry-certificates")
    assert list(stored) == [f"{kubectl.namespace}.json"], list(stored)

    # A certificate of each part is signed by the authority of its bundle.
    for name in SECRETS:
        found = files(kubectl, name)
        for item in (file.removesuffix(".crt") for file in found if file.endswith(".crt") and file != "ca.crt"):
            for file, text in (("ca", found["ca.crt"]), ("crt", found[f"{item}.crt"]), ("key", found[f"{item}.key"])):
                (tmp_path / file).write_bytes(text)
            ssl.create_default_context(cafile=tmp_path / "ca").load_cert_chain(tmp_path / "crt", tmp_path / "key")

    # Pods mount them, and plaintext ports are closed from the start.
    scheduler = kubectl.until("the scheduler", "statefulset", "seldon-scheduler", lambda s: s)
    pod = scheduler["spec"]["template"]["spec"]
    assert "gantry-scheduler-tls" in json.dumps(pod["volumes"])
    assert "--allow-plaintext" not in pod["containers"][0]["args"]
    agents = kubectl.until("the server", "statefulset", "gantry", lambda s: s)
    assert "agent-gantry.key" in json.dumps(agents["spec"]["template"]["spec"]["volumes"])
    gateway = kubectl.until("the gateway", "deployment", "seldon-gateway", lambda d: d)
    assert "--scheduler=seldon-scheduler:9044" in gateway["spec"]["template"]["spec"]["containers"][0]["args"]

    # Deleted and damaged Secrets are repaired by the next operator.
    before = files(kubectl, "gantry-agent-tls")
    kubectl("delete", "secret", "gantry-gateway-tls")
    damage = {"data": {"tls.key": base64.b64encode(b"nothing").decode(), "more": ""}}
    kubectl("patch", "secret", "gantry-scheduler-tls", "--type=merge", "-p", json.dumps(damage))
    operator.kill()
    start()
    until("the gateway's Secret", lambda: set(files(kubectl, "gantry-gateway-tls")) == SECRETS["gantry-gateway-tls"])
    until(
        "the scheduler's Secret",
        lambda: (found := files(kubectl, "gantry-scheduler-tls")).get("tls.key") != b"nothing"
        and set(found) == SECRETS["gantry-scheduler-tls"],
    )
    assert files(kubectl, "gantry-agent-tls") == before

    # Its permissions end there.
    for refused in (
        ("get", "secret", "default"),
        ("get", "secrets"),
        ("create", "secret", "generic", "other"),
        ("delete", "secret", "gantry-agent-tls"),
    ):
        ran = restricted.run(*refused)
        assert ran.returncode != 0 and "forbidden" in ran.stderr, (refused, ran.stdout, ran.stderr)


def test_security_check_passes_on_a_default_installation(kubectl, installed):
    start, _ = installed
    start()
    kubectl.apply(runtime(), server())
    for name in SECRETS:
        until(name, lambda: files(kubectl, name))
    for kind, name in (("statefulset", "seldon-scheduler"), ("statefulset", "gantry"), ("deployment", "seldon-gateway")):
        kubectl.until(name, kind, name, lambda found: found)

    def checked():
        ran = run("check", "--security", "-n", kubectl.namespace, "--kubeconfig", kubectl.config)
        section = ran.stdout.partition(f"\nnamespace {kubectl.namespace}\n")[2].split("\nnamespace ")[0]
        return section if "gantry-agent-tls" in section else None

    section = until("the report", checked)
    assert "by role; no rights without one" in section, section
    assert "closed beyond the pod" in section and "plaintext   " not in section.replace("9005, plaintext", ""), section
    for name in SECRETS:
        (line,) = [line for line in section.splitlines() if f"Secret {name}" in line]
        assert "valid until" in line, line

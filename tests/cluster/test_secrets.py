"""Agents read Secrets of their namespace with the permission that the operator grants."""

import json

from cluster import CONFIGS, runtime, with_server
from gantry import until


def test_agent_reads_the_listed_secrets_only(kubectl, operate, stack, tmp_path, monkeypatch):
    kubectl("apply", "-f", CONFIGS)
    operate("--agent-secrets=listed,absent")
    kubectl.apply(runtime())
    kubectl.until("the permission", "rolebinding", "gantry-agent", lambda b: b)
    for name in ("listed", "hidden"):
        # Invalid, so that its content shows in the status.
        kubectl("create", "secret", "generic", name, "--from-literal=remote={type: floppy, name: a, parameters: {}}")

    account = json.loads(kubectl("config", "view", "--raw", "-o", "json"))
    token = kubectl("create", "token", "seldon-server").strip()
    account["users"] = [{"name": account["users"][0]["name"], "user": {"token": token}}]
    account["contexts"][0]["context"]["namespace"] = kubectl.namespace
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(account))
    monkeypatch.setenv("KUBECONFIG", str(file))
    with_server(stack, "--kubernetes-secrets")

    for name, reason in (
        ("listed", "secret listed: the storage secret has a `type` that is not supported"),
        ("absent", f"Secret absent does not exist in namespace {kubectl.namespace}"),
        ("hidden", "add it to --agent-secrets of gantry install"),
    ):
        spec = {"storageUri": "s3://bucket/model", "requirements": ["onnx"], "secretName": name}
        manifest = {"apiVersion": "mlops.seldon.io/v1alpha1", "kind": "Model", "metadata": {"name": name}, "spec": spec}
        (tmp_path / "model.json").write_text(json.dumps(manifest))
        applied = stack.command("apply", "-f", tmp_path / "model.json")
        assert applied.returncode == 0, applied.stderr
        until(reason, lambda: reason in " ".join(stack.command("describe", f"model/{name}").stdout.split()))

"""A real Kubernetes API server, used with kubectl. `cargo xtask test` starts it."""

import json
import os
import subprocess
import uuid
from pathlib import Path

import pytest
from gantry import TIMEOUT, ROOT, until
from processes import Process, free_ports, program

CRDS = ROOT / "deploy" / "crds"
# Configurations installed with Gantry.
CONFIGS = ROOT / "deploy" / "config"
KINDS = "models,servers,serverconfigs,seldonruntimes,seldonconfigs,pipelines,experiments"


class Kubectl:
    """kubectl against the cluster under test, in a namespace."""

    def __init__(self, namespace=None):
        config = os.environ.get("GANTRY_TEST_KUBECONFIG")
        if not config:
            pytest.skip("no cluster: run `cargo xtask test`, or `cargo xtask k8s up` and set GANTRY_TEST_KUBECONFIG")
        self.config = config
        self.kubectl = os.environ.get("GANTRY_TEST_KUBECTL", "kubectl")
        self.namespace = namespace

    def run(self, *words, stdin=None, timeout=TIMEOUT):
        command = [self.kubectl, "--kubeconfig", self.config]
        if self.namespace:
            command += ["--namespace", self.namespace]
        # A discovery cache of its own: CRDs change during the tests.
        command += ["--cache-dir", f"/tmp/gantry-kubectl-{os.getpid()}"]
        return subprocess.run(
            [*command, *map(str, words)], input=stdin, capture_output=True, text=True, timeout=timeout
        )

    def __call__(self, *words, stdin=None, timeout=TIMEOUT):
        ran = self.run(*words, stdin=stdin, timeout=timeout)
        assert ran.returncode == 0, f"kubectl {' '.join(map(str, words))}\n{ran.stdout}{ran.stderr}"
        return ran.stdout

    def apply(self, *objects):
        return self("apply", "-f", "-", stdin=as_list(objects))

    def rejected(self, *objects):
        """The error of kubectl when the API server rejects the objects."""
        ran = self.run("apply", "-f", "-", stdin=as_list(objects))
        assert ran.returncode != 0, ran.stdout
        return ran.stderr

    def get(self, kind, name=None, **flags):
        """An object, or None; all of a kind without a name."""
        ran = self.run("get", kind, *([name] if name else []), "-o", "json", "--ignore-not-found")
        assert ran.returncode == 0, ran.stderr
        if not ran.stdout.strip():
            return None
        found = json.loads(ran.stdout)
        return found if name else found["items"]

    def ready(self, kind, name, timeout=TIMEOUT):
        self("wait", f"--for=condition=Ready", f"{kind}/{name}", f"--timeout={int(timeout)}s", timeout=timeout + 10)

    def until(self, what, kind, name, condition):
        """Waits until an object satisfies a condition; returns it."""

        def check():
            found = self.get(kind, name)
            return found if condition(found) else None

        try:
            return until(what, check)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{json.dumps(self.get(kind, name), indent=1)}") from None


def as_list(objects):
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


def condition(found, name="Ready"):
    """A condition of an object, as (status, reason, message)."""
    if not found:
        return None
    conditions = found.get("status", {}).get("conditions") or []
    found = next((c for c in conditions if c["type"] == name), None)
    return found and (found["status"], found.get("reason"), found.get("message"))


def current(found):
    """Whether the status describes the latest generation."""
    return found["status"].get("observedGeneration") == found["metadata"]["generation"]


def custom(kind, name, spec, **metadata):
    return {
        "apiVersion": "mlops.seldon.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": spec,
    }


def server(name="gantry", **spec):
    return custom("Server", name, {"serverConfig": "gantry", **spec})


def runtime(**spec):
    return custom("SeldonRuntime", "seldon", {"seldonConfig": "default", **spec})


def model(name, uri, *requirements, **spec):
    return custom("Model", name, {"storageUri": str(uri), "requirements": list(requirements), **spec})


def complete_lines(path, begin):
    """Lines of a growing file that start at an offset or later. A line that another process is still writing is left for
    the next read; the rest of a line that was incomplete at the offset is skipped."""
    with path.open("rb") as file:
        if begin:
            file.seek(begin - 1)
            file.readline()
        return [line for line in file if line.endswith(b"\n")]


class Audit:
    """Writes to the API server since construction, from its audit log."""

    def __init__(self, path=None):
        self.path = Path(path or os.environ["GANTRY_TEST_AUDIT"])
        self.begin = self.path.stat().st_size

    def writes(self, agent="gantry"):
        """Completed writes of a user agent, as (verb, resource/subresource, name, code, event)."""
        found = []
        for event in map(json.loads, complete_lines(self.path, self.begin)):
            verb, stage = event["verb"], event["stage"]
            if stage != "ResponseComplete" or verb in ("get", "list", "watch"):
                continue
            if agent not in event.get("userAgent", ""):
                continue
            about = event.get("objectRef", {})
            resource = "/".join(filter(None, [about.get("resource"), about.get("subresource")]))
            found.append((verb, resource, about.get("name"), event["responseStatus"]["code"], event))
        return found


class Operator(Process):
    """`gantry operator` against the cluster."""

    def __init__(self, kubectl, *flags, env=None):
        self.kubectl = kubectl
        words = ["operator", "--kubeconfig", kubectl.config, "--admin-port=0", *flags]
        super().__init__([program(), *words], env)
        self.admin = self.until("the operator's start", lambda: self.address("admin"))

    def leads(self):
        from processes import metric

        return metric(self.admin, "gantry_operator_leading") == 1


def namespace():
    """Creates a namespace; returns its name."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    Kubectl()("create", "namespace", name)
    return name


def with_server(stack, *flags, name="builtin"):
    """Adds a server to a scheduler: the built-in runtime and its agent."""
    models = stack.directory / "models"
    models.mkdir()
    (port,) = free_ports(1)
    runtime = stack.start("runtime", models, "--explicit", "--port", port)
    runtime.until("the runtime", lambda: any(l.startswith("serving on") for l in runtime.lines))
    stack.agent(*flags, name=name, kind="builtin", http_port=port, grpc_port=port, models=models)
    return stack

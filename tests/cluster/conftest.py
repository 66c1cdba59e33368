"""Fixtures: the cluster with CRDs, and one namespace per test."""

import json
import os
import threading

import pytest
from cluster import CONFIGS, CRDS, Audit, Kubectl, Operator, namespace, with_server
from hook import Hook
from processes import Stack

READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}

# Records a file of the repository; not a check.
collect_ignore = [] if os.environ.get("GANTRY_RECORD_UPGRADE") else ["test_upgrade.py"]


@pytest.fixture(scope="session")
def crds():
    kubectl = Kubectl()
    kubectl("apply", "-f", CRDS)
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    return kubectl


@pytest.fixture
def kubectl(crds):
    kubectl = Kubectl(namespace())
    yield kubectl
    # Not waited for: namespace deletion has its own test.
    kubectl.run("delete", "namespace", kubectl.namespace, "--wait=false")


@pytest.fixture
def stack(tmp_path):
    """A scheduler and a gateway, and servers when a test adds them."""
    stack = Stack(tmp_path)
    yield stack
    stack.close()


@pytest.fixture
def served(stack):
    """With a server: the built-in runtime and its agent."""
    return with_server(stack)


@pytest.fixture
def operate(kubectl):
    """Starts operators for the namespace; stopped after the test."""
    started = []

    def one(*flags, scheduler=None, env=None):
        words = ["--namespace", kubectl.namespace]
        if scheduler:
            words += ["--scheduler-address", scheduler]
        operator = Operator(kubectl, *words, *flags, env=env)
        started.append(operator)
        return operator

    yield one
    for operator in started:
        operator.kill()


@pytest.fixture
def configured(kubectl, operate):
    """A running operator and the default configurations."""
    kubectl("apply", "-f", CONFIGS)
    operate()
    return kubectl


@pytest.fixture
def audit():
    return Audit()


@pytest.fixture
def hook(kubectl):
    hook = Hook(kubectl)
    yield hook
    kubectl.run("delete", "validatingwebhookconfiguration", hook.name)


@pytest.fixture
def webhook(hook, operate):
    """Starts an operator whose webhook the API server calls."""

    def one(*flags):
        operator = operate(*hook.flags(), *flags)
        hook.point_to(f"https://{operator.until('the webhook', lambda: operator.address('webhook'))}/validate")
        hook.until_called()
        return operator

    return one


@pytest.fixture
def kubelet(kubectl):
    """Reports every pod of the namespace ready."""
    stop = threading.Event()

    def run():
        while not stop.wait(0.2):
            for pod in kubectl.get("pods") or []:
                conditions = pod["status"].get("conditions") or []
                if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
                    kubectl.run(
                        "patch", "pod", pod["metadata"]["name"], "--subresource=status", "-p", json.dumps(READY)
                    )

    thread = threading.Thread(target=run)
    thread.start()
    yield
    stop.set()
    thread.join()

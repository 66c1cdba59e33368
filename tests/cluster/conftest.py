"""The cluster with our CRDs, and a namespace of its own for each test."""

import os

import pytest
from cluster import CONFIGS, CRDS, Audit, Kubectl, Operator, namespace, with_server
from hook import Hook
from processes import Stack

# It writes a file of the repository, and checks nothing.
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
    # Nothing of a test holds up the end of its namespace: that is a test of its own.
    kubectl.run("delete", "namespace", kubectl.namespace, "--wait=false")


@pytest.fixture
def stack(tmp_path):
    """A scheduler and a gateway, and servers when a test adds them."""
    stack = Stack(tmp_path)
    yield stack
    stack.close()


@pytest.fixture
def served(stack):
    """The same with a server: the built-in runtime and its agent."""
    return with_server(stack)


@pytest.fixture
def operate(kubectl):
    """Starts operators for the test's namespace that are gone after the test."""
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
    """The configurations that are installed with Gantry, in the operator's namespace, and an operator."""
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
def asked(hook, operate):
    """An operator that the API server asks."""

    def one(*flags):
        operator = operate(*hook.flags(), *flags)
        hook.lead_to(f"https://{operator.until('the webhook', lambda: operator.address('webhook'))}/validate")
        hook.until_asked()
        return operator

    return one

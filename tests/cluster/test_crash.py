"""A crash after a committed write, or a failed write, converges to the same state, and no object is created or deleted
twice. The simulation covers every write; this is a sample.

The operator runs with exactly the installed RBAC permissions."""

import collections
import json
import time

import pytest
from cluster import CONFIGS, Audit, Kubectl, Operator, condition, current, custom, model, namespace, with_server
from gantry import EXAMPLES, ROOT, until
from processes import Stack
from proxy import Proxy
from snapshots import KINDS, MADE, cluster_state

# Seconds without writes until the cluster counts as settled.
QUIET_PERIOD = 1.5


@pytest.fixture(scope="module")
def rbac(crds):
    """The operator's roles, from the install manifests."""
    file = ROOT / "deploy" / "manifests" / "gantry.yaml"
    text = crds("create", "-f", file, "--dry-run=client", "--validate=false", "-o", "json")
    # Concatenated JSON documents.
    listed, at = [], 0
    while at < len(text.rstrip()):
        one, at = json.JSONDecoder().raw_decode(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
        listed.append(one)
    kept = [o for o in listed if o["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    assert len(kept) >= 2, [o["kind"] for o in listed]
    crds.apply(*kept)
    return crds


class Run:
    """One run of the scenario: a namespace with an operator behind a proxy."""

    def __init__(self, stack, place):
        self.kubectl = Kubectl(namespace())
        self.proxy = Proxy(self.kubectl.config, place)
        self.stack = stack
        self.audit = Audit()
        self.operators = []

    def start(self):
        words = ["--namespace", self.kubectl.namespace, "--scheduler-address", self.stack.clients]
        self.operators.append(Operator(self.proxy, *words))

    def kill(self):
        self.operators[-1].process.kill()
        self.proxy.cut()

    def ensure_running(self):
        """Restarts a killed operator."""
        if self.operators[-1].process.poll() is not None:
            self.start()

    def server(self, **spec):
        return custom("Server", "gantry", {"serverConfig": "gantry", **spec})

    def runtime(self, *overrides):
        return custom("SeldonRuntime", "seldon", {"seldonConfig": "default", "overrides": list(overrides)})

    def step(self, number):
        kubectl = self.kubectl
        match number:
            case 0:
                kubectl("apply", "-f", CONFIGS)
                models = [model("iris", EXAMPLES / "iris", "onnx"), model("fraud", EXAMPLES / "fraud", "xgboost")]
                kubectl.apply(self.runtime(), self.server(replicas=2), *models)
            case 1:
                pods = {"nodeSelector": {"disk": "ssd"}}
                better = model("iris", EXAMPLES / "fraud", "xgboost")
                kubectl.apply(self.server(replicas=2, podSpec=pods), self.runtime({"name": "seldon-gateway", "replicas": 2}), better)
            case 2:
                kubectl("scale", "server", "gantry", "--replicas=1")
                kubectl("scale", "model", "fraud", "--replicas=2")
            case 3:
                kubectl("delete", "model", "fraud", "--wait=false")
                kubectl.apply(self.runtime({"name": "seldon-gateway", "disable": True}))
            case 4:
                kubectl("delete", "model/iris", "server/gantry", "seldonruntime/seldon", "--wait=false")

    STEPS = 5

    def state(self):
        return cluster_state(self.kubectl, f"{KINDS},{MADE}")

    def object_counts(self):
        """Creations and deletions per object by the operator, from the audit log."""
        counted = collections.Counter()
        for verb, resource, name, code, event in self.audit.writes("gantry-operator"):
            about = event["objectRef"]
            if about.get("namespace") != self.kubectl.namespace or about["resource"] == "events":
                continue
            if verb == "patch" and code == 201:
                counted[f"{resource} {name} created"] += 1
            if verb == "delete" and code < 300:
                counted[f"{resource} {name} deleted"] += 1
        return counted

    def settle(self, done):
        """Waits until the condition holds and writes have stopped; returns the state."""
        quiet = {"since": time.monotonic(), "writes": -1}

        def settled():
            if len(self.proxy.writes) != quiet["writes"]:
                quiet.update(since=time.monotonic(), writes=len(self.proxy.writes))
            found = time.monotonic() - quiet["since"] > QUIET_PERIOD and self.state()
            return found if found and done(found) else None

        return until("a settled cluster", settled)

    def until_state(self, expected):
        def same():
            self.ensure_running()
            return self.state() == expected

        try:
            until("the same state", same)
        except AssertionError:
            found = self.state()
            differ = [k for k in found.keys() | expected.keys() if found.get(k) != expected.get(k)]
            shown = {k: {"actual": found.get(k), "expected": expected.get(k)} for k in sorted(differ)}
            log = "\n".join(self.operators[-1].output().splitlines()[-20:])
            raise AssertionError(f"{json.dumps(shown, indent=1)}\n{self.proxy.writes}\n{log}") from None

    def close(self):
        for operator in self.operators:
            operator.kill()
        self.proxy.close()
        self.kubectl.run("delete", "namespace", self.kubectl.namespace, "--wait=false")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One scheduler with a server for all runs."""
    stack = with_server(Stack(tmp_path_factory.mktemp("stack")))
    yield stack
    stack.close()


def reported(found):
    """All objects have a current status, and no model is progressing."""
    ours = [o for o in found.values() if o["apiVersion"].startswith("mlops.")]
    progressing = [o for o in ours if o["kind"] == "Model" and condition(o) and condition(o)[1] == "ModelProgressing"]
    return not progressing and all(condition(o) and current(o) and "deletionTimestamp" not in o["metadata"] for o in ours)


def gone(found):
    """Only configurations are left."""
    return all(place.split()[0] in ("SeldonConfig", "ServerConfig") for place in found)


@pytest.fixture(scope="module")
def reference(rbac, shared, tmp_path_factory):
    """A run without faults: the state after each step, object counts, and all writes."""
    scenario = Run(shared, tmp_path_factory.mktemp("reference"))
    scenario.start()
    states = []
    for number in range(Run.STEPS):
        scenario.step(number)
        states.append(scenario.settle(gone if number == Run.STEPS - 1 else reported))
    for expected in ("StatefulSet gantry", "Service gantry-1", "Deployment seldon-gateway", "Model iris", "PodDisruptionBudget gantry"):
        assert expected in states[0], sorted(states[0])
    counts = scenario.object_counts()
    assert len(scenario.proxy.writes) > 20, scenario.proxy.writes
    yield states, counts, list(scenario.proxy.writes)
    scenario.close()


def replay(scenario, reference):
    states, counts, _ = reference
    scenario.start()
    for number in range(Run.STEPS):
        scenario.step(number)
        scenario.until_state(states[number])
    try:
        until("the audit log", lambda: scenario.object_counts() == counts)
    except AssertionError:
        found = scenario.object_counts()
        raise AssertionError(f"more often than expected: {found - counts}, less often: {counts - found}") from None


@pytest.fixture
def scenario(rbac, shared, tmp_path):
    scenario = Run(shared, tmp_path)
    yield scenario
    scenario.close()


@pytest.mark.parametrize("part", [1, 4, 7, 10, 13, 16, 19, 22])
def test_crash_after_a_write_converges(part, scenario, reference):
    # Status writes may be coalesced: a run can have fewer writes than the reference.
    nth = max(1, len(reference[2]) * part // 26)
    scenario.proxy.after(nth, scenario.kill)
    replay(scenario, reference)
    assert len(scenario.operators) == 2, f"expected a crash at write {nth}"


@pytest.mark.parametrize("code", [409, 429, 500])
def test_failed_writes_converge(code, scenario, reference):
    total = len(reference[2])
    for nth in range(2, total, max(1, total // 6)):
        scenario.proxy.refuse(nth, code)
    replay(scenario, reference)
    assert len(scenario.operators) == 1

"""The operator is killed after a write was committed and before it hears of it; a write is refused. What is there in the
end is the same, and nothing came or went twice. The simulator does this for every write; here it is done for a sample.

The operator runs with the rights that it is installed with, and no others."""

import collections
import json
import time

import pytest
from cluster import CONFIGS, Audit, Kubectl, Operator, condition, current, custom, model, namespace, with_server
from gantry import EXAMPLES, ROOT, until
from processes import Stack
from proxy import Proxy
from snapshots import KINDS, MADE, world

# How long nothing must be written for a world to be at rest.
QUIET = 1.5


@pytest.fixture(scope="module")
def rights(crds):
    """The operator's rights, out of the manifests that install it."""
    file = ROOT / "deploy" / "manifests" / "gantry.yaml"
    text = crds("create", "-f", file, "--dry-run=client", "--validate=false", "-o", "json")
    # One document after the other.
    listed, at = [], 0
    while at < len(text.rstrip()):
        one, at = json.JSONDecoder().raw_decode(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
        listed.append(one)
    kept = [o for o in listed if o["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    assert len(kept) >= 2, [o["kind"] for o in listed]
    crds.apply(*kept)
    return crds


class Life:
    """A namespace with an operator behind a proxy, from its first object to its last."""

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

    def alive(self):
        """Whoever runs the operator starts it again."""
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

    def picture(self):
        return world(self.kubectl, f"{KINDS},{MADE}")

    def comings(self):
        """How often the operator made or deleted each object, by the API server's own log."""
        counted = collections.Counter()
        for verb, resource, name, code, event in self.audit.writes("gantry-operator"):
            about = event["objectRef"]
            if about.get("namespace") != self.kubectl.namespace or about["resource"] == "events":
                continue
            if verb == "patch" and code == 201:
                counted[f"{resource} {name} made"] += 1
            if verb == "delete" and code < 300:
                counted[f"{resource} {name} deleted"] += 1
        return counted

    def rest(self, done):
        """Waits until everything is as it should be and nobody writes any more; says what there is."""
        quiet = {"since": time.monotonic(), "writes": -1}

        def settled():
            if len(self.proxy.writes) != quiet["writes"]:
                quiet.update(since=time.monotonic(), writes=len(self.proxy.writes))
            found = time.monotonic() - quiet["since"] > QUIET and self.picture()
            return found if found and done(found) else None

        return until("the end of writing", settled)

    def until_as(self, expected):
        def same():
            self.alive()
            return self.picture() == expected

        try:
            until("the same state", same, timeout=40)
        except AssertionError:
            found = self.picture()
            differ = [k for k in found.keys() | expected.keys() if found.get(k) != expected.get(k)]
            shown = {k: {"is": found.get(k), "was": expected.get(k)} for k in sorted(differ)}
            said = "\n".join(self.operators[-1].output().splitlines()[-20:])
            raise AssertionError(f"{json.dumps(shown, indent=1)}\n{self.proxy.writes}\n{said}") from None

    def close(self):
        for operator in self.operators:
            operator.kill()
        self.proxy.close()
        self.kubectl.run("delete", "namespace", self.kubectl.namespace, "--wait=false")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One scheduler with a server for all lives: each leaves it as it was."""
    stack = with_server(Stack(tmp_path_factory.mktemp("stack")))
    yield stack
    stack.close()


def told(found):
    """Every object has its status, and no model is on its way."""
    ours = [o for o in found.values() if o["apiVersion"].startswith("mlops.")]
    going = [o for o in ours if o["kind"] == "Model" and condition(o) and condition(o)[1] == "ModelProgressing"]
    return not going and all(condition(o) and current(o) and "deletionTimestamp" not in o["metadata"] for o in ours)


def gone(found):
    """Only the configurations are left."""
    return all(place.split()[0] in ("SeldonConfig", "ServerConfig") for place in found)


@pytest.fixture(scope="module")
def reference(rights, shared, tmp_path_factory):
    """A life in which nothing goes wrong: what there was after each step, what came and went, and every write."""
    life = Life(shared, tmp_path_factory.mktemp("reference"))
    life.start()
    pictures = []
    for number in range(Life.STEPS):
        life.step(number)
        pictures.append(life.rest(gone if number == Life.STEPS - 1 else told))
    for wanted in ("StatefulSet gantry", "Service gantry-1", "Deployment seldon-gateway", "Model iris", "PodDisruptionBudget gantry"):
        assert wanted in pictures[0], sorted(pictures[0])
    comings = life.comings()
    assert len(life.proxy.writes) > 20, life.proxy.writes
    yield pictures, comings, list(life.proxy.writes)
    life.close()


def relive(life, reference):
    pictures, comings, _ = reference
    life.start()
    for number in range(Life.STEPS):
        life.step(number)
        life.until_as(pictures[number])
    until("the end of the log", lambda: life.comings() == comings, timeout=5)


@pytest.fixture
def life(rights, shared, tmp_path):
    life = Life(shared, tmp_path)
    yield life
    life.close()


@pytest.mark.parametrize("part", [1, 4, 7, 10, 13, 16, 19, 22])
def test_a_crash_after_a_write_changes_nothing_in_the_end(part, life, reference):
    nth = max(1, len(reference[2]) * part // 23)
    life.proxy.after(nth, life.kill)
    relive(life, reference)
    assert len(life.operators) == 2, f"it was to die at write {nth}"


@pytest.mark.parametrize("code", [409, 429, 500])
def test_writes_that_are_refused_change_nothing_in_the_end(code, life, reference):
    total = len(reference[2])
    for nth in range(2, total, max(1, total // 6)):
        life.proxy.refuse(nth, code)
    relive(life, reference)
    assert len(life.operators) == 1

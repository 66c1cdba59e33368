"""Pipelines and experiments on a real API server with a real scheduler: their models, invalid specs, deletion, restarts."""

import json

import pytest
from cluster import condition, current, custom, model
from gantry import EXAMPLES, until
from processes import http_request


def chain(name, *steps):
    inputs = [{}, *({"inputs": [step]} for step in steps[:-1])]
    spec = {"steps": [{"name": step, **given} for step, given in zip(steps, inputs)], "output": {"steps": [steps[-1]]}}
    return custom("Pipeline", name, spec)


def split(name, **weights):
    return custom("Experiment", name, {"candidates": [{"name": n, "weight": w} for n, w in weights.items()]})


IRIS = ("iris", EXAMPLES / "iris", "onnx")
FRAUD = ("fraud", EXAMPLES / "fraud", "xgboost")
BOTH = (("pipeline", "chain"), ("experiment", "split"))


def test_pipeline_serves_from_apply_to_delete(kubectl, served, operate):
    operate(scheduler=served.clients)
    kubectl.apply(model(*IRIS), chain("chain", "iris"))
    kubectl.ready("pipeline", "chain")
    inputs = [{"name": "X", "shape": [1, 4], "datatype": "FP32", "data": [5.1, 3.5, 1.4, 0.2]}]
    infer = lambda: http_request(served.inference, "POST", "/v2/pipelines/chain/infer", {"inputs": inputs})
    assert infer().status == 200
    changed = chain("chain", "iris")
    changed["spec"]["output"] = {"steps": ["iris.outputs"], "joinWindowMs": 100}
    kubectl.apply(changed)
    kubectl.until("the change", "pipeline", "chain", lambda p: p["metadata"]["generation"] == 2 and current(p) and condition(p)[0] == "True")
    assert infer().status == 200
    # The same graph in other words: another generation, but no other version.
    changed["spec"]["output"]["steps"] = ["iris"]
    kubectl.apply(changed)
    kubectl.until("the generation", "pipeline", "chain", lambda p: p["metadata"]["generation"] == 3 and current(p) and condition(p)[0] == "True")
    kubectl("delete", "pipeline", "chain", "--timeout=60s")
    assert infer().status == 404


def test_status_names_the_model_that_is_missing(kubectl, served, operate):
    operate(scheduler=served.clients)
    kubectl.apply(model(*IRIS), chain("chain", "iris", "fraud"), split("split", iris=50, fraud=50))
    for (kind, name), own in zip(BOTH, ("ModelsReady", "CandidatesReady")):
        found = kubectl.until("the status", kind, name, lambda o: condition(o) and current(o) and condition(o, own) and "fraud" in condition(o)[2])
        assert condition(found)[0] == condition(found, own)[0] == "False", found["status"]
        # In progress, not failed, for kstatus.
        assert condition(found, "Reconciling")[0] == "True" and condition(found, "Stalled") is None
    kubectl.apply(model(*FRAUD))
    for kind, name in BOTH:
        kubectl.ready(kind, name)
    # Without the model it is not ready again, and an event has the reason.
    kubectl("delete", "model", "fraud", "--timeout=60s")
    for kind, name in BOTH:
        found = kubectl.until("the loss", kind, name, lambda o: condition(o)[0] == "False")
        assert "fraud" in condition(found)[2], found["status"]
    events = lambda: {e["reason"] for e in kubectl.get("events")}
    until("the events", lambda: {"PipelineNotReady", "ExperimentNotReady"} <= events())


def ring(count):
    return [{"name": f"s{i}", "triggers" if i % 3 else "inputs": [f"s{(i + 1) % count}.outputs.x"]} for i in range(count)]


def test_api_server_rejects_invalid_pipelines_and_experiments(kubectl):
    for invalid, words in (
        (custom("Pipeline", "p", {"steps": []}), "steps"),
        (custom("Pipeline", "p", {"steps": [{"name": "p"}]}), "name"),
        (custom("Pipeline", "p", {"steps": [{"name": "a"}, {"name": "a"}]}), "Duplicate value"),
        (custom("Pipeline", "p", {"steps": [{"name": "a", "inputs": ["a"]}]}), "needs allowCycles"),
        (custom("Pipeline", "p", {"steps": [{"name": "a", "triggers": ["b.x"]}]}), "not a valid reference"),
        (custom("Pipeline", "p", {"steps": [{"name": "a"}, {"name": "b", "inputs": ["c"]}]}), "an input of a step that does not exist"),
        (custom("Pipeline", "p", {"steps": [{"name": "a"}, {"name": "b", "triggers": ["c.outputs"]}]}), "a trigger of a step that does not exist"),
        (custom("Pipeline", "p", {"steps": [{"name": f"s{i}", "triggers": ["s0" if i < 99 else "t"]} for i in range(1, 100)] + [{"name": "s0"}]}), "a trigger of a step that does not exist"),
        (custom("Pipeline", "p", {"steps": [{"name": "a"}], "output": {"steps": ["a", "p"]}}), "name a step that does not exist"),
        (custom("Pipeline", "p", {"steps": ring(2)}), "have a cycle"),
        (custom("Pipeline", "p", {"steps": ring(16)}), "have a cycle"),
        (custom("Pipeline", "p", {"steps": [{"name": "a"}], "maxStepRevisits": 1001}), "more than 1000"),
        (custom("Pipeline", "p", {"steps": [{"name": f"s{i}"} for i in range(10000)]}), "at most 640 items"),
        (custom("Experiment", "e", {"candidates": []}), "candidates"),
        (custom("Experiment", "e", {"default": "b", "candidates": [{"name": "a", "weight": 1}]}), "default"),
    ):
        assert words in kubectl.rejected(invalid)


def test_api_server_accepts_two_hundred_stacked_diamonds(kubectl):
    steps = [{"name": "s0"}]
    for i in range(200):
        steps += [{"name": f"{side}{i}", "inputs": [f"s{i}"]} for side in "lr"]
        steps.append({"name": f"s{i + 1}", "inputs": [f"l{i}", f"r{i}"]})
    kubectl.apply(custom("Pipeline", "diamonds", {"steps": steps, "output": {"steps": ["s200"]}}))
    kubectl("delete", "pipeline", "diamonds")


def test_api_server_has_the_time_for_the_largest_pipelines(kubectl):
    long = lambda name: name.ljust(253, "x")
    # Step 0 reads the pipeline, the others tensors of step 0; etcd stores at most 1.5 MB.
    for steps, kinds, count, length in ((16, ("inputs", "triggers"), 8, 512), (100, ("inputs",), 32, 400), (100, ("triggers",), 32, 400), (640, ("inputs",), 25, 50)):
        name = long if length > 253 else str
        read = lambda i, kind, n: f"{name('s0')}.outputs.{kind}-{i}-{n}-".ljust(length, "t")
        step = lambda i: {"name": name(f"s{i}"), **{kind: [read(i, kind, n) for n in range(count)] for kind in kinds if i}}
        spec = {"steps": [step(i) for i in range(steps)], "output": {"steps": [name(f"s{i}") for i in range(steps)]}}
        kubectl("create", "-f", "-", stdin=json.dumps(custom("Pipeline", "large", spec)))
        kubectl("delete", "pipeline", "large")
    loop = {"steps": ring(16), "allowCycles": True, "maxStepRevisits": 1000}
    kubectl.apply(custom("Pipeline", "loop", loop), custom("Pipeline", "unchecked", {"steps": ring(17)}))
    kubectl("delete", "pipeline", "loop", "unchecked")


@pytest.mark.parametrize("with_scheduler", (True, False))
def test_namespace_with_pipelines_can_be_deleted(with_scheduler, kubectl, served, operate):
    operate(scheduler=served.clients if with_scheduler else None)
    kubectl.apply(model(*IRIS), chain("chain", "iris"), split("split", iris=1))
    for kind, name in BOTH:
        held = kubectl.until("the status", kind, name, lambda o: condition(o) and current(o))
        assert held["metadata"]["finalizers"] == [f"seldon.{kind}.finalizer"]
    if with_scheduler:
        for kind, name in BOTH:
            kubectl.ready(kind, name)
    kubectl("delete", "namespace", kubectl.namespace, "--timeout=60s", timeout=90)


def test_empty_scheduler_gets_all_pipelines_and_experiments(kubectl, served, operate, tmp_path):
    operator = operate(scheduler=served.clients)
    kubectl.apply(model(*IRIS), chain("chain", "iris"), split("split", iris=1))
    for kind, name in BOTH:
        kubectl.ready(kind, name)
    served.scheduler.kill()
    until("the disconnect", lambda: any("scheduler disconnected" in line for line in operator.lines))
    ports = [address.split(":")[1] for address in (served.clients, served.agents)]
    # A scheduler without state.
    served.scheduler = served.start(
        *("scheduler", "--state-dir", tmp_path / "another", "--scheduler-port", ports[0], "--agent-port", ports[1]),
        "--health-probe-port=0",
    )
    kubectl.apply(chain("other", "iris"))
    kubectl.ready("pipeline", "other")
    for kind, name in BOTH:
        kubectl.ready(kind, name)

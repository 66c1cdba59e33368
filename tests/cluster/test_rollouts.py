"""RolloutPolicies on a real API server with a real scheduler and gateway, steered with `gantry rollout`."""

import json

import pytest
from cluster import condition, current, model
from gantry import EXAMPLES, until

LABELS = {"delivery": "careful"}
ROWS = [[5.1, 3.5, 1.4, 0.2]]


def policy(name="careful", target=None, **spec):
    selected = {"targetRef": {"kind": "Model", "name": target}} if target else {"selector": {"kind": "Model", "matchLabels": LABELS}}
    canary = {"canary": {"steps": [{"weight": 20}, {"weight": 50}]}}
    return {
        "apiVersion": "gantry.dev/v1alpha1",
        "kind": "RolloutPolicy",
        "metadata": {"name": name},
        "spec": {"strategy": canary, "bake": "0s", **selected, **spec},
    }


def selected(name="iris", **spec):
    made = model(name, EXAMPLES / "iris", "onnx", **spec)
    made["metadata"]["labels"] = LABELS
    return made


def another(version):
    """Another spec of the same model."""
    return selected(memory=f"{version}Mi")


def until_condition(kubectl, kind, name, status, reason):
    return kubectl.until(reason, kind, name, lambda o: o and condition(o) and current(o) and condition(o)[:2] == (status, reason))


def rollout(kubectl, what, wanted):
    """Waits for a state of the rollout of iris in the status of the policy."""
    found = lambda p: next(r for r in p["status"].get("rollouts", [{}]) if r.get("name", "iris") == "iris")
    return found(kubectl.until(what, "rolloutpolicy", "careful", lambda p: wanted(found(p))))


def steer(served, *words):
    ran = served.command("rollout", *words)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def events(kubectl, reason):
    return [e for e in kubectl.get("events") if e["reason"] == reason and e["involvedObject"]["kind"] == "RolloutPolicy"]


def test_model_is_rolled_out_promoted_and_rolled_back(kubectl, served, operate, audit):
    operator = operate(scheduler=served.clients)
    kubectl.apply(policy(), selected())
    kubectl.ready("model", "iris")
    kubectl.ready("rolloutpolicy", "careful")
    found = kubectl.get("rolloutpolicy", "careful")
    assert current(found) and condition(found, "Accepted")[0] == "True", found["status"]
    assert found["metadata"]["finalizers"] == ["gantry.dev/rollout-policy"]
    assert kubectl.run("diff", "-f", "-", stdin=json.dumps(policy())).returncode == 0

    # The new version has the weight of the first step, and the old one serves the rest.
    kubectl.apply(another(2))
    rolling = until_condition(kubectl, "model", "iris", "False", "RollingOut")
    assert condition(rolling)[2] == "version 2 is rolled out to 20 % of the requests; version 1 serves the others"
    assert rolling["status"]["availableReplicas"] == 2, rolling["status"]
    first = rollout(kubectl, "the first step", lambda r: r.get("step") == 1)
    assert (first["phase"], first["stable"], first["candidate"]) == (
        "Progressing",
        {"version": 1, "weight": 80},
        {"version": 2, "weight": 20},
    )
    assert served.infer("iris", ROWS, "X").status == 200
    table = kubectl("get", "rp", "careful").splitlines()
    assert table[0].split()[:4] == ["NAME", "READY", "TARGETS", "PROGRESSING"], table
    assert table[1].split()[:4] == ["careful", "True", "1", "1"], table

    # The commands of a laptop work on the scheduler of a namespace.
    listed = steer(served, "list")
    assert "iris" in listed and "careful" in listed, listed
    assert "version 2" in steer(served, "status", "iris")
    steer(served, "pause", "iris")
    rollout(kubectl, "the pause", lambda r: r.get("paused") == "Command")
    steer(served, "resume", "iris")
    rollout(kubectl, "the end of the pause", lambda r: not r.get("paused"))
    steer(served, "promote", "iris")
    rollout(kubectl, "the second step", lambda r: r.get("step") == 2 and r["candidate"]["weight"] == 50)
    steer(served, "promote", "iris", "--full")
    kubectl.ready("model", "iris")
    assert rollout(kubectl, "the promotion", lambda r: r["phase"] == "Running")["last"]["outcome"] == "Promoted"
    assert "version 2" in condition(kubectl.get("model", "iris"))[2]

    # A version that was rolled back is not ready, although the model serves.
    kubectl.apply(another(3))
    until_condition(kubectl, "model", "iris", "False", "RollingOut")
    steer(served, "abort", "iris")
    back = until_condition(kubectl, "model", "iris", "False", "RolledBack")
    assert "version 3 was rolled back" in condition(back)[2] and "version 2 serves" in condition(back)[2], back["status"]
    assert condition(back, "Stalled")[0] == "True"
    assert served.infer("iris", ROWS, "X").status == 200
    kubectl.until("the count", "rolloutpolicy", "careful", lambda p: p["status"]["rolledBack"] == 1)
    for reason in ("RolloutPaused", "RolloutResumed", "RolloutPromoted", "RolloutRolledBack"):
        assert len(until(reason, lambda: events(kubectl, reason))) == 1, reason

    # Steady state: no writes, also after a restart of the operator.
    until("the replicas", lambda: kubectl.get("model", "iris")["status"]["availableReplicas"] == 1)
    mine = lambda: [w for w in audit.writes("gantry") if w[1].startswith(("rolloutpolicies", "models", "events")) and w[2] != "last"]
    before = len(mine())
    statuses = [w for w in mine() if w[1] == "rolloutpolicies/status"]
    assert len(statuses) <= 16, [w[:4] for w in statuses]
    operator.terminate()
    again = operate(scheduler=served.clients)
    again.until("its caches", lambda: any("scheduler connected" in line for line in again.lines))
    kubectl.apply(model("last", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "last")
    late = mine()[before:]
    assert not late, [w[:4] for w in late]

    # The old spec again needs no rollout.
    kubectl.apply(another(2))
    kubectl.ready("model", "iris")


def test_policy_that_is_deleted_ends_the_rollout(kubectl, served, operate):
    operate(scheduler=served.clients)
    kubectl.apply(policy(), selected())
    kubectl.ready("model", "iris")
    kubectl.ready("rolloutpolicy", "careful")
    kubectl.apply(another(2))
    until_condition(kubectl, "model", "iris", "False", "RollingOut")
    # The CLI does not change a policy of the operator.
    ran = served.command("delete", "rolloutpolicy/careful")
    assert ran.returncode != 0 and f"operator:{kubectl.namespace}" in ran.stderr, ran.stderr
    kubectl("delete", "rolloutpolicy", "careful", "--timeout=60s")
    kubectl.ready("model", "iris")
    assert "version 2" in condition(kubectl.get("model", "iris"))[2]
    assert served.command("rollout", "status", "iris").returncode == 3


def test_conditions_name_what_is_wrong(kubectl, stack, operate):
    operate(scheduler=stack.clients)
    kubectl.apply(policy("older"))
    assert "selects no Model" in condition(until_condition(kubectl, "rolloutpolicy", "older", "False", "NoTarget"))[2]
    kubectl.apply(selected())
    until_condition(kubectl, "rolloutpolicy", "older", "True", "PolicyReady")
    # Creation times have a resolution of a second, then the name decides.
    kubectl.apply(policy("younger", target="iris"))
    conflict = until_condition(kubectl, "rolloutpolicy", "younger", "False", "Conflict")
    assert "RolloutPolicy older" in condition(conflict)[2]
    kubectl("label", "model", "iris", "delivery-")
    until_condition(kubectl, "rolloutpolicy", "older", "False", "NoTarget")
    until_condition(kubectl, "rolloutpolicy", "younger", "True", "PolicyReady")


def test_policy_without_a_scheduler_can_be_deleted(kubectl, operate):
    operate()
    kubectl.apply(policy())
    found = until_condition(kubectl, "rolloutpolicy", "careful", "Unknown", "SchedulerUnreachable")
    assert "SeldonRuntime" in condition(found)[2]
    kubectl("delete", "rolloutpolicy", "careful", "--timeout=50s")


def test_namespace_with_policies_can_be_deleted(kubectl, served, operate):
    operate(scheduler=served.clients)
    kubectl.apply(policy(), selected())
    kubectl.ready("rolloutpolicy", "careful")
    kubectl("delete", "namespace", kubectl.namespace, "--timeout=60s", timeout=90)


@pytest.mark.parametrize(
    "spec, words",
    (
        ({"targetRef": {"kind": "Model", "name": "iris"}}, "exactly one of targetRef and selector"),
        ({"strategy": {}}, "exactly one of canary, blueGreen"),
        ({"strategy": {"canary": {"steps": [{"weight": 50}, {"weight": 20}]}}}, "weight of the step before"),
        ({"selector": {"kind": "Algorithm", "matchLabels": LABELS}}, "Algorithm"),
        ({"bake": 7}, "bake"),
    ),
)
def test_api_server_rejects_invalid_policies(kubectl, spec, words):
    assert words in kubectl.rejected(policy(**spec))


def test_webhook_warns_about_targets(kubectl, webhook):
    webhook()
    apply = lambda made: kubectl.run("apply", "-f", "-", stdin=json.dumps(made)).stderr
    missing = f'Warning: spec.targetRef.name: Model "iris" not found in namespace {kubectl.namespace}\n'
    assert apply(policy("by-name", target="iris")) == missing
    kubectl.apply(selected())
    warning = 'Warning: spec: Model "iris" is selected by RolloutPolicy "by-name", too, which is older and applies\n'
    dry_run = lambda: kubectl.run("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(policy())).stderr
    # The operator's caches lag behind the API server.
    until("the warning", lambda: dry_run() == warning)

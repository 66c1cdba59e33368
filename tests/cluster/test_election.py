"""Leader election: failover, and a leader that is suspended past its lease."""

import signal

from cluster import condition, model
from gantry import EXAMPLES, until


def writers(audit):
    """Writers of models, in order: (user agent, time)."""
    return [(e["userAgent"], e["requestReceivedTimestamp"]) for _, r, _, _, e in audit.writes() if r.startswith("models")]


def test_standby_takes_over_when_the_leader_stops(kubectl, served, operate):
    first = operate("--leader-elect", scheduler=served.clients)
    first.until("the first leader", first.leads)
    second = operate("--leader-elect", scheduler=served.clients)
    second.until("the standby", lambda: any("not the leader; standing by" in line for line in second.lines))
    assert not second.leads()
    assert first.terminate() == 0
    second.until("the change of leaders", second.leads)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "iris")


def test_leader_suspended_past_its_lease_writes_nothing(kubectl, served, operate, audit):
    # Distinguishable in the audit log.
    first = operate("--leader-elect", scheduler=served.clients, env=named("first"))
    first.until("the first leader", first.leads)
    second = operate("--leader-elect", scheduler=served.clients, env=named("second"))
    kubectl.apply(model("a", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "a")
    first.process.send_signal(signal.SIGSTOP)
    second.until("the change of leaders", second.leads)
    kubectl.apply(*(model(f"b{i}", EXAMPLES / "iris", "onnx") for i in range(5)))
    for i in range(5):
        kubectl.ready("model", f"b{i}")
    first.process.send_signal(signal.SIGCONT)
    # It detects the lost lease and exits; a supervisor would restart it as a standby.
    until("the exit of the old leader", lambda: first.process.poll() is not None)
    assert first.process.returncode == 1, first.output()
    until("its error", lambda: "lost leadership" in first.output())
    kubectl.apply(model("c", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "c")
    order = [agent for agent, _ in sorted(writers(audit), key=lambda w: w[1])]
    assert order, "no writes"
    # Exactly one change of writers.
    changes = [agent for i, agent in enumerate(order) if i == 0 or agent != order[i - 1]]
    assert len(changes) == 2 and "first" in changes[0] and "second" in changes[1], changes


def named(name):
    from gantry import environment

    return environment() | {"POD_NAME": name}

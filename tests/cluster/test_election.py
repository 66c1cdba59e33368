"""Two operators: one leads, the other stands by; a leader that was stopped past its lease does no harm."""

import signal

from cluster import condition, model
from gantry import EXAMPLES, until


def writers(audit):
    """Who wrote to models, in order: (user agent's process, time)."""
    return [(e["userAgent"], e["requestReceivedTimestamp"]) for _, r, _, _, e in audit.writes() if r.startswith("models")]


def test_the_standby_takes_over_at_once_when_the_leader_leaves(kubectl, served, operate):
    first = operate("--leader-elect", scheduler=served.clients)
    first.until("the first leader", first.leads)
    second = operate("--leader-elect", scheduler=served.clients)
    second.until("the standby", lambda: any("another operator leads" in line for line in second.lines))
    assert not second.leads()
    assert first.terminate() == 0
    second.until("the change of leaders", second.leads)
    kubectl.apply(model("iris", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "iris")


def test_a_leader_that_was_stopped_past_its_lease_writes_nothing_more(kubectl, served, operate, audit):
    # Each operator has a name of its own in the API server's log.
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
    # It finds out, says so, and ends: whoever started it starts it again, as one who waits.
    until("the end of the old leader", lambda: first.process.poll() is not None)
    assert first.process.returncode == 1, first.output()
    until("its last words", lambda: "no longer leads" in first.output())
    kubectl.apply(model("c", EXAMPLES / "iris", "onnx"))
    kubectl.ready("model", "c")
    order = [agent for agent, _ in sorted(writers(audit), key=lambda w: w[1])]
    assert order, "nobody wrote anything"
    # One writer, then the other, never back.
    changes = [agent for i, agent in enumerate(order) if i == 0 or agent != order[i - 1]]
    assert len(changes) == 2 and "first" in changes[0] and "second" in changes[1], changes


def named(name):
    from gantry import environment

    return environment() | {"POD_NAME": name}

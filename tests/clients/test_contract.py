"""The Seldon gRPC API through a reflection client: every call, its response, its status code."""

import json
import queue
import socket
import threading

import grpc
import pytest
from gantry import until
from reflected import Reflected

SCHEDULER = "seldon.mlops.scheduler.Scheduler"
AGENTS = "seldon.mlops.agent.AgentService"
HEALTH = "seldon.mlops.health.HealthCheckService"
CONTROL = "gantry.v1.Control"
ROUTING = "gantry.v1.Routing"
SERVICES = "gantry.v1.Services"
ROLLOUTS = "gantry.v1.Rollouts"

# Field names and numbers of the public API. They cannot change.
NUMBERS = {
    "scheduler.Model": "meta=1 modelSpec=2 deploymentSpec=3 streamSpec=4 dataflowSpec=5",
    "scheduler.MetaData": "name=1 kind=2 version=3 kubernetesMeta=4",
    "scheduler.DeploymentSpec": "replicas=1 minReplicas=2 maxReplicas=3 logPayloads=4",
    "scheduler.ModelSpec": "uri=1 artifactVersion=2 storageConfig=3 requirements=4 memoryBytes=5 server=6 explainer=7"
    " parameters=8 modelRuntimeInfo=9 llm=10",
    "scheduler.ModelStatusResponse": "modelName=1 versions=2 deleted=3 keepTopics=4 timestamp=5 operation=6",
    "scheduler.ModelVersionStatus": "version=2 serverName=3 kubernetesMeta=4 modelReplicaState=5 state=6 modelDefn=7",
    "scheduler.ModelStatus": "state=1 reason=2 availableReplicas=3 unavailableReplicas=4 lastChangeTimestamp=5"
    " modelGwState=6 modelGwReason=7",
    "scheduler.ServerStatusResponse": "serverName=1 resources=2 expectedReplicas=3 availableReplicas=4"
    " numLoadedModelReplicas=5 kubernetesMeta=6 type=7",
    "scheduler.ServerNotify": "name=1 expectedReplicas=2 shared=3 kubernetesMeta=4 minReplicas=5 maxReplicas=6",
    "scheduler.ServerNotifyRequest": "servers=1 isFirstSync=2",
    "agent.AgentSubscribeRequest": "serverName=1 shared=2 replicaIdx=3 replicaConfig=4 loadedModels=5"
    " availableMemoryBytes=6",
    "agent.ReplicaConfig": "inferenceSvc=1 inferenceHttpPort=2 inferenceGrpcPort=3 memoryBytes=4 capabilities=5"
    " overCommitPercentage=6",
    "agent.ModelEventMessage": "serverName=1 replicaIdx=2 modelName=3 modelVersion=4 event=5 message=6"
    " availableMemoryBytes=7 runtimeInfo=8",
    "agent.ModelOperationMessage": "operation=1 modelVersion=2 autoscalingEnabled=3",
    "agent.ModelScalingTriggerMessage": "serverName=1 replicaIdx=2 modelName=3 modelVersion=4 trigger=5 amount=6"
    " metrics=7",
}
STATES = ["Progressing", "Available", "Failed", "Terminating", "Terminated", "TerminateFailed"]
LOADED, LOAD_FAILED, UNLOADED = 2, 3, 4
AVAILABLE, FAILED, TERMINATED, SCHEDULE_FAILED = 2, 3, 5, 7


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Agent:
    """A third-party agent that uses only the API."""

    def __init__(self, client, server="played", replica=0, capability="played", loaded=()):
        self.client, self.server, self.replica = client, server, replica
        self.orders = client.call(
            AGENTS,
            "Subscribe",
            timeout=120,
            serverName=server,
            shared=True,
            replicaIdx=replica,
            replicaConfig={
                "inferenceSvc": "127.0.0.1",
                "inferenceHttpPort": 1,
                "inferenceGrpcPort": 1,
                "memoryBytes": 1 << 30,
                "capabilities": [capability],
            },
            loadedModels=loaded,
            availableMemoryBytes=1 << 30,
        )
        self.arrived = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for order in self.orders:
                self.arrived.put(order)
        except grpc.RpcError:
            pass

    def order(self):
        return self.arrived.get(timeout=60)

    def report(self, order, event, message="", **more):
        version = order.modelVersion
        self.client.call(
            AGENTS,
            "AgentEvent",
            serverName=self.server,
            replicaIdx=self.replica,
            modelName=version.model.meta.name,
            modelVersion=version.version,
            event=event,
            message=message,
            availableMemoryBytes=1 << 30,
            **more,
        )

    def leave(self):
        self.orders.cancel()


@pytest.fixture
def harness(start):
    port = free_port()
    with start(flags=[f"--agent-port={port}"]) as gantry:
        gantry.clients = Reflected(gantry.scheduler)
        gantry.agents = Reflected(f"127.0.0.1:{port}")
        yield gantry
        gantry.clients.close()
        gantry.agents.close()


def model(name, requirement="played", **deployment):
    model = {"meta": {"name": name}, "modelSpec": {"uri": "/nowhere", "requirements": [requirement]}}
    return model | {"deploymentSpec": {"replicas": 1} | deployment}


def status(clients, name):
    """The latest version's status."""
    answers = list(clients.call(SCHEDULER, "ModelStatus", subscriberName="test", model={"name": name}))
    assert len(answers) == 1 and len(answers[0].versions) == 1, answers
    return answers[0].versions[0]


def wait_for_state(clients, name, state):
    until(f"{name} is {state}", lambda: status(clients, name).state.state == state)
    return status(clients, name)


def expect_error(code, call):
    with pytest.raises(grpc.RpcError) as error:
        answer = call()
        if hasattr(answer, "__next__"):
            list(answer)
    assert error.value.code() == code, error.value
    assert len(error.value.details()) > 10, "a refusal has a sentence"
    return error.value.details()


def test_field_names_and_numbers_match_the_api(harness):
    for message, expected in NUMBERS.items():
        client = harness.agents if message.startswith("agent.") else harness.clients
        found = client.pool.FindMessageTypeByName(f"seldon.mlops.{message}")
        fields = {f.name: f.number for f in found.fields if f.number < 1000}
        assert fields == {n: int(k) for n, k in (f.split("=") for f in expected.split())}, message
    states = harness.clients.pool.FindEnumTypeByName("seldon.mlops.scheduler.ModelStatus.ModelState")
    assert [states.values_by_number[i + 1].name for i in range(6)] == ["Model" + s for s in STATES]
    assert states.values_by_name["ScheduleFailed"].number == 7


@pytest.mark.parametrize("protocol", ["v1", "v1alpha"])
def test_both_reflection_protocols_are_equal(harness, protocol):
    other = Reflected(harness.scheduler, protocol)
    assert SCHEDULER in other.services
    methods = {m for m in other.methods() if m.startswith("seldon.")}
    assert methods == {m for m in harness.clients.methods() if m.startswith("seldon.")}
    other.close()


def test_every_call_of_the_api(harness):
    clients, agents = harness.clients, harness.agents
    scheduler = lambda method, **fields: clients.call(SCHEDULER, method, **fields)
    assert scheduler("SchedulerStatus", subscriberName="test").applicationVersion
    assert clients.call(HEALTH, "HealthCheck").ok
    serving = clients.call("grpc.health.v1.Health", "Check", service=SCHEDULER)
    assert serving.status == 1
    watching = clients.call("grpc.health.v1.Health", "Watch", service=SCHEDULER)
    assert next(watching).status == 1
    watching.cancel()

    # The scheduler requests the state in this order.
    control = scheduler("SubscribeControlPlane", subscriberName="test")
    assert next(control).event == 1
    # Servers first; then the scheduler requests the rest.
    scheduler("ServerNotify", servers=[], isFirstSync=True)
    assert [next(control).event for _ in range(3)] == [4, 2, 3]
    control.cancel()

    # Servers: announced, then joined.
    changes = scheduler("SubscribeServerStatus", subscriberName="test")
    scheduler("ServerNotify", servers=[{"name": "played", "expectedReplicas": 1, "shared": True}])
    expect_error(
        grpc.StatusCode.FAILED_PRECONDITION,
        lambda: scheduler("ServerNotify", servers=[{"name": "Not A Name", "expectedReplicas": 1}]),
    )
    while (change := next(changes)).serverName != "played":
        pass
    assert change.expectedReplicas == 1 and change.availableReplicas == 0
    agent = Agent(agents)
    while (change := next(changes)).serverName != "played" or change.availableReplicas != 1:
        pass
    changes.cancel()
    (server,) = scheduler("ServerStatus", subscriberName="test", name="played")
    assert server.resources[0].totalMemoryBytes == 1 << 30
    expect_error(grpc.StatusCode.FAILED_PRECONDITION, lambda: scheduler("ServerStatus", name="absent"))

    # A model: requested, ordered, loaded, available.
    statuses = scheduler("SubscribeModelStatus", subscriberName="test")
    scheduler("LoadModel", model=model("iris"))
    order = agent.order()
    assert (order.operation, order.modelVersion.model.meta.name, order.modelVersion.version) == (1, "iris", 1)
    agent.report(order, LOADED, runtimeInfo={"mlserver": {"parallelWorkers": 1}})
    while (change := next(statuses)).modelName != "iris" or change.versions[0].state.state != AVAILABLE:
        pass
    statuses.cancel()
    served = wait_for_state(clients, "iris", AVAILABLE)
    assert served.serverName == "played" and served.modelReplicaState[0].state == 9
    # A new subscriber receives the current state first.
    statuses = scheduler("SubscribeModelStatus", subscriberName="test")
    assert next(statuses).modelName == "iris"
    statuses.cancel()

    # Repeated: no change. Changed: the next version, beside the first.
    scheduler("LoadModel", model=model("iris"))
    changed = model("iris")
    changed["modelSpec"]["uri"] = "/elsewhere"
    scheduler("LoadModel", model=changed)
    order = agent.order()
    assert (order.operation, order.modelVersion.version) == (1, 2)
    both = list(scheduler("ModelStatus", subscriberName="t", model={"name": "iris"}, allVersions=True))
    assert [v.version for v in both[0].versions] == [2, 1]
    agent.report(order, LOADED)
    order = agent.order()
    assert (order.operation, order.modelVersion.version) == (2, 1), "the old version goes when the new one serves"
    agent.report(order, UNLOADED)

    # Load failure, unschedulable model, invalid requests.
    scheduler("LoadModel", model=model("broken"))
    order = agent.order()
    agent.report(order, LOAD_FAILED, "the file is not a model")
    assert "the file is not a model" in wait_for_state(clients, "broken", FAILED).state.reason
    scheduler("LoadModel", model=model("unplaceable", "unknown-capability"))
    unplaceable = wait_for_state(clients, "unplaceable", SCHEDULE_FAILED)
    assert "unknown-capability" in unplaceable.state.reason and unplaceable.state.reasonCode == "NoCapability"
    bad = [{"meta": {"name": "a.b"}, "modelSpec": {"uri": "/x"}}, {"meta": {"name": "x"}}, {}]
    bad += [model("x", replicas=1, minReplicas=2), model("x", replicas=3, maxReplicas=2)]
    for wrong in bad:
        expect_error(grpc.StatusCode.FAILED_PRECONDITION, lambda: scheduler("LoadModel", model=wrong))
    expect_error(grpc.StatusCode.FAILED_PRECONDITION, lambda: scheduler("LoadModel"))
    expect_error(grpc.StatusCode.FAILED_PRECONDITION, lambda: scheduler("UnloadModel", model={"name": "absent"}))
    expect_error(grpc.StatusCode.FAILED_PRECONDITION, lambda: scheduler("ModelStatus", model={"name": "absent"}))
    scheduler("ModelStatusEvent", success=True)

    # Explain, dry run, ownership.
    why = clients.call(CONTROL, "Explain", kind="model", name="unplaceable")
    assert "unknown-capability" in why.headline and why.reason == "NoCapability" and why.next
    expect_error(grpc.StatusCode.FAILED_PRECONDITION, lambda: clients.call(CONTROL, "Explain", kind="model", name="absent"))
    plan = clients.call(CONTROL, "Plan", models=[model("next", "unknown-capability")], unload=["iris"])
    by_name = {c.name: c for c in plan.changes}
    assert by_name["next"].action == 1 and not by_name["next"].placed
    assert by_name["iris"].action == 4
    assert status(clients, "iris").state.state == AVAILABLE, "a plan changes nothing"
    as_operator = [("gantry-manager", "operator:ml")]
    message = expect_error(
        grpc.StatusCode.FAILED_PRECONDITION,
        lambda: clients.call(SCHEDULER, "UnloadModel", model={"name": "iris"}, metadata=as_operator),
    )
    assert "gantry adopt model/iris" in message, message
    clients.call(CONTROL, "Adopt", kind="model", name="iris", metadata=as_operator)

    # Demand reports and route subscription of gateways.
    demand = [{"model": "iris", "in_flight_milli": 500, "answered": 1}, {"model": "absent", "answered": 1}]
    clients.call(ROUTING, "ReportDemand", subscriber="test", models=demand)
    routes = clients.call(ROUTING, "WatchRoutes", subscriber="test")
    first = next(routes)
    assert first.HasField("reset")
    while not (event := next(routes)).HasField("synced"):
        pass
    clients.call(
        ROUTING, "AcknowledgeRoutes", subscriber="test", epoch=event.epoch, applied=event.sequence, drained=event.sequence
    )
    routes.cancel()

    # A failed model would be retried when a replica joins.
    clients.call(SCHEDULER, "UnloadModel", model={"name": "broken"})

    # Agents: scaling triggers, unknown replicas, draining.
    trigger = agents.message(
        "seldon.mlops.agent.ModelScalingTriggerMessage",
        serverName="played",
        modelName="iris",
        modelVersion=2,
        trigger=0,
        amount=1,
    )
    agents.call(AGENTS, "ModelScalingTrigger", trigger)
    other = Agent(agents, replica=1)
    drained = threading.Thread(
        target=lambda: agents.call(AGENTS, "AgentDrain", serverName="played", replicaIdx=0, timeout=60)
    )
    drained.start()
    # `iris` moves to the other replica, then leaves the draining one.
    order = other.order()
    assert (order.operation, order.modelVersion.model.meta.name) == (1, "iris")
    other.report(order, LOADED)
    order = agent.order()
    assert (order.operation, order.modelVersion.model.meta.name) == (2, "iris")
    agent.report(order, UNLOADED)
    drained.join(30)
    assert not drained.is_alive()
    agent.leave()

    # Terminated, and still in the status.
    clients.call(SCHEDULER, "UnloadModel", model={"name": "iris"}, metadata=as_operator)
    order = other.order()
    while order.modelVersion.model.meta.name != "iris":
        order = other.order()
    assert order.operation == 2
    other.report(order, UNLOADED)
    wait_for_state(clients, "iris", TERMINATED)
    other.leave()

    # Pipelines and experiments, of a model that does not exist.
    refused = grpc.StatusCode.FAILED_PRECONDITION
    assert "steps" in expect_error(refused, lambda: scheduler("LoadPipeline", pipeline={"name": "chain"}))
    scheduler("LoadPipeline", pipeline={"name": "chain", "steps": [{"name": "none"}], "output": {"steps": ["none"]}})
    scheduler("StartExperiment", experiment={"name": "half", "candidates": [{"name": "none", "weight": 1}]})
    scheduler("PipelineStatusEvent", update={"pipeline": "chain", "uid": "other"}, success=True)
    [reported] = scheduler("PipelineStatus", subscriberName="test", name="chain")
    assert not reported.versions[0].state.modelsReady and "none" in reported.versions[0].state.reason
    [reported] = scheduler("ExperimentStatus", subscriberName="test")
    assert not reported.active and "none" in reported.statusDescription
    for kind, name in [("Pipeline", "chain"), ("Experiment", "half")]:
        changes = scheduler(f"Subscribe{kind}Status", subscriberName="test")
        first = next(iter(changes))
        assert name in (getattr(first, "pipelineName", ""), getattr(first, "experimentName", ""))
        assert changes.is_active()
        changes.cancel()
    scheduler("StopExperiment", name="half")
    scheduler("UnloadPipeline", name="chain")
    for method in ["UnloadPipeline", "StopExperiment"]:
        assert "absent" in expect_error(refused, lambda: scheduler(method, name="absent"))

    # Routes of InferenceServices with pods of their own.
    services = lambda method, **fields: clients.call(SERVICES, method, **fields)
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert "components" in expect_error(invalid, lambda: services("PutService", namespace="ml", name="own"))
    absent = grpc.StatusCode.NOT_FOUND
    assert "ml/own" in expect_error(absent, lambda: services("GetServiceTraffic", namespace="ml", name="own"))
    pod = {"name": "own-1", "host": "10.0.0.1", "http_port": 8080}
    backends = [{"name": "own-predictor", "weight": 100, "pods": [pod]}]
    services("PutService", namespace="ml", name="own", components=[{"backends": backends}])
    watched = services("WatchServices", subscriber="test")
    kinds = {}
    for event in watched:
        kinds[event.WhichOneof("event")] = event
        if "synced" in kinds:
            break
    watched.cancel()
    assert kinds["upsert"].upsert.route.name == "own" and "reset" in kinds
    services("DeleteService", namespace="ml", name="own")
    services("DeleteService", namespace="ml", name="own")

    # Rollouts of models.
    rollouts = lambda method, **fields: clients.call(ROLLOUTS, method, **fields)
    spec = {"targetRef": {"kind": "Model", "name": "none"}, "strategy": {"canary": {"steps": [{"weight": 20}]}}}
    policy = {"name": "careful", "models": ["none"], "spec": json.dumps(spec).encode()}
    assert "spec" in expect_error(invalid, lambda: rollouts("PutPolicy", name="careful", spec=b"{}"))
    rollouts("PutPolicy", **policy)
    assert [found.name for found in rollouts("ListPolicies").policies] == ["careful"]
    assert "none" in expect_error(refused, lambda: rollouts("SteerRollout", model="none", action=1))
    watched = rollouts("WatchRollouts", subscriber="test")
    assert [next(watched).WhichOneof("event") for _ in range(2)] == ["reset", "synced"]
    watched.cancel()
    watched = rollouts("WatchPolicies", subscriber="test")
    assert [next(watched).WhichOneof("event") for _ in range(3)] == ["reset", "upsert", "synced"]
    watched.cancel()
    clients.call(ROUTING, "ReportTraffic", subscriber="test", sequence=1)
    rollouts("DeletePolicy", name="careful")
    assert not rollouts("ListPolicies").policies

    called = clients.called | agents.called
    ours = {m for c in (clients, agents) for m in c.methods() if m.startswith(("seldon.", "gantry."))}
    assert not ours - called, "calls without a test"

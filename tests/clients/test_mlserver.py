"""A real MLServer beside `gantry agent`: scikit-learn models that are trained here are loaded, updated under load,
evicted and brought back by a request, and unloaded."""

import json
import subprocess
import threading

import numpy as np
import pytest
import tritonclient.grpc as grpc
from gantry import until
from processes import House, answers, ask, free_ports, installed, metric, mlserver

# Trains two models that never agree, and says what each answers.
TRAIN = """
import json, sys
from pathlib import Path
import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
X, y = load_iris(return_X_y=True)
rows = X[::10].astype("float32")
for name, labels in (("one", y), ("two", y + 10)):
    model = LogisticRegression(max_iter=500).fit(X, labels)
    place = Path(sys.argv[1]) / name
    place.mkdir(parents=True)
    joblib.dump(model, place / "model.joblib")
    answers = model.predict(rows).tolist()
    (place.parent / f"{name}.json").write_text(json.dumps([rows.tolist(), answers]))
broken = Path(sys.argv[1]) / "broken"
broken.mkdir()
(broken / "model.joblib").write_bytes(b"cnowhere_to_be_found\\nthing\\n.")
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("trained")
    subprocess.run([installed("mlserver") / "python", "-c", TRAIN, place], check=True, timeout=120)
    return place


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    house = House(tmp_path_factory.mktemp("mlserver"))
    yield house
    house.close()


class World:
    """MLServer, its agent, and a way to bring either back."""

    def __init__(self, house):
        self.house = house
        self.models = house.place / "models"
        self.models.mkdir()
        self.ports = free_ports(3)
        self.at = f"127.0.0.1:{self.ports[0]}"
        self.server = mlserver(house, self.models, self.ports)
        self.start_agent()

    def start_agent(self):
        self.agent = self.house.agent(
            *("--memory", 1_000_000, "--overcommit", 200, "--health-check-interval", 1),
            name="mlserver",
            kind="mlserver",
            http_port=self.ports[0],
            grpc_port=self.ports[1],
            models=self.models,
        )

    def holds(self):
        index = ask(self.at, "POST", "/v2/repository/index", {"ready": True}).json()
        return {model["name"] for model in index}


@pytest.fixture(scope="module")
def world(house, trained):
    return World(house)


def right(trained, name):
    return json.loads((trained / f"{name}.json").read_text())


def check(house, model, trained, name):
    rows, expected = right(trained, name)
    answer = house.infer(model, rows)
    assert answer.status == 200, answer.body
    assert answer.json()["outputs"][0]["data"] == expected


def test_a_model_is_loaded_and_answers_over_both_protocols(world, trained):
    house = world.house
    applied = house.apply("iris", trained / "one", "sklearn", memory="100k")
    assert applied.returncode == 0, applied.stderr + world.agent.said()
    check(house, "iris", trained, "one")
    assert world.holds() == {"iris_1"}
    rows, expected = right(trained, "one")
    given = grpc.InferInput("predict", [len(rows), 4], "FP32")
    given.set_data_from_numpy(np.array(rows, dtype=np.float32))
    with grpc.InferenceServerClient(house.inference) as client:
        assert client.is_model_ready("iris")
        result = client.infer("iris", [given])
        assert result.get_response().model_name == "iris_1"
        assert result.as_numpy("predict").flatten().tolist() == expected
    # Over a mebibyte: the name in the message is replaced while the rest streams through.
    many = np.tile(np.array(rows, dtype=np.float32), (8000, 1))
    given = grpc.InferInput("predict", list(many.shape), "FP32")
    given.set_data_from_numpy(many)
    with grpc.InferenceServerClient(house.inference) as client:
        assert client.infer("iris", [given]).as_numpy("predict").flatten().tolist() == expected * 8000
    assert metric(world.agent.metrics, "seldon_model_infer_total") >= 3


def test_an_update_under_load_fails_no_request(world, trained):
    house = world.house
    wrong, answered, seen, stop = [], [], [set() for _ in range(4)], threading.Event()
    answers_of = {"1": right(trained, "one"), "2": right(trained, "two")}

    def work(mine):
        rows = answers_of["1"][0]
        while not stop.is_set():
            try:
                answer = house.infer("iris", rows)
                assert answer.status == 200, answer.body
                said = answer.json()
                version = said["model_version"]
                assert said["outputs"][0]["data"] == answers_of[version][1], (version, said)
                mine.add(version)
                answered.append(version)
            except Exception as error:
                wrong.append(repr(error))
                return

    workers = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in seen]
    for worker in workers:
        worker.start()

    def fine(condition):
        assert not wrong, (wrong, world.agent.said())
        return condition()

    until("answers of version 1", lambda: fine(lambda: answered.count("1") >= 100))
    assert house.apply("iris", trained / "two", "sklearn", memory="100k").returncode == 0
    until("answers of version 2", lambda: fine(lambda: all("2" in mine for mine in seen)))
    until("the end of version 1", lambda: fine(lambda: world.holds() == {"iris_2"}))
    until("more answers", lambda: fine(lambda: answered.count("2") >= 100))
    stop.set()
    for worker in workers:
        worker.join(60)
    assert not wrong, wrong


def test_what_does_not_fit_waits_on_disk_and_comes_back(world, trained):
    house = world.house
    for name, place in (("a", "one"), ("b", "two"), ("c", "one")):
        applied = house.apply(name, trained / place, "sklearn", memory="600k")
        assert applied.returncode == 0, applied.stderr + world.agent.said()
    placed = {p.name for p in world.models.iterdir() if not p.name.startswith(".")}
    assert placed == {"iris_2", "a_1", "b_1", "c_1"}
    before = metric(world.agent.metrics, "seldon_cache_miss_count")
    for _ in range(2):
        for name, place in (("a", "one"), ("b", "two"), ("c", "one")):
            check(house, name, trained, place)
            held = world.holds() & {"a_1", "b_1", "c_1"}
            assert held == {f"{name}_1"}, held
    assert metric(world.agent.metrics, "seldon_cache_miss_count") >= before + 5
    assert metric(world.agent.metrics, "seldon_cache_evict_count") >= 5
    for name in ("a", "b", "c"):
        assert house.command("delete", "model", name).returncode == 0
    until("the end of all three", lambda: not {p.name for p in world.models.iterdir()} & {"a_1", "b_1", "c_1"})


def test_the_servers_own_words_reach_the_status(world, trained):
    applied = world.house.apply("broken", trained / "broken", "sklearn", wait=False)
    assert applied.returncode == 0
    described = until(
        "the failure",
        lambda: (d := world.house.command("describe", "model/broken").stdout) and "mlserver-0" in d and d,
    )
    assert "No module named 'nowhere_to_be_found'" in described, described
    assert world.house.command("delete", "model", "broken").returncode == 0


def test_a_server_that_dies_gets_its_models_back(world, trained):
    check(world.house, "iris", trained, "two")
    world.server.kill()
    until("the news", lambda: answers(world.agent.ready, "/ready", 503))
    world.server = mlserver(world.house, world.models, world.ports)
    world.agent.until("the return", lambda: answers(world.agent.ready, "/ready"))
    until("an answer", lambda: world.house.infer("iris", right(trained, "two")[0]).status == 200)
    check(world.house, "iris", trained, "two")


def test_an_agent_that_is_killed_takes_over_where_it_was(world, trained):
    world.agent.kill()
    world.start_agent()
    until("an answer", lambda: world.house.infer("iris", right(trained, "two")[0]).status == 200)
    assert world.holds() == {"iris_2"}


def test_the_end_is_in_good_order(world, trained):
    house = world.house
    assert house.command("delete", "model", "iris").returncode == 0
    until("an empty server", lambda: not world.holds())
    until("an empty directory", lambda: not [p for p in world.models.iterdir() if not p.name.startswith(".")])
    assert world.agent.terminate() == 0, world.agent.said()

"""ONNX Runtime, LightGBM and XGBoost in process: one JSON question a line, one JSON answer a line.

Every library gets one thread, because the thing it is compared with has one core, and the quickest call that its
Python interface offers.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

FEATURES = 30


def mean_and_median(call, inputs, seconds):
    """Times calls on one input after the other; the first tenth of the time is for warming up."""
    times = []
    started = time.perf_counter()
    turn = 0
    while True:
        argument = inputs[turn % len(inputs)]
        turn += 1
        before = time.perf_counter_ns()
        call(argument)
        after = time.perf_counter_ns()
        elapsed = time.perf_counter() - started
        if elapsed > seconds / 10:
            times.append(after - before)
        if elapsed > seconds:
            break
    return {"mean_ns": sum(times) / len(times), "median_ns": sorted(times)[len(times) // 2], "calls": len(times)}


class Onnx:
    """Sessions by model file."""

    def __init__(self):
        self.sessions = {}

    def session(self, file):
        import onnxruntime

        if file not in self.sessions:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            self.sessions[file] = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return self.sessions[file]

    def shapes(self, file):
        return [(i.name, [d if isinstance(d, int) else 1 for d in i.shape]) for i in self.session(file).get_inputs()]

    def inputs(self, file):
        rng = np.random.default_rng(3)
        return {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in self.shapes(file)}

    def make(self, folder, nets):
        """Writes a network of dense layers and one of convolutions, with seeded noise for weights."""
        sys.path.insert(0, nets)
        from make_nets import cnn, mlp

        made = {"mlp": mlp([64, 256, 256, 10], 1)[0], "cnn": cnn(1, channels=(3, 16, 32), side=32)[0]}
        files = {}
        for name, model in made.items():
            place = Path(folder) / name
            place.mkdir()
            (place / "model.onnx").write_bytes(model.SerializeToString())
            files[name] = str(place / "model.onnx")
        return files

    def describe(self, file):
        """A request for the model, and what ONNX Runtime answers to it."""
        inputs = self.inputs(file)
        session = self.session(file)
        outputs = session.run(None, inputs)
        request = [
            {"name": n, "shape": list(a.shape), "datatype": "FP32", "data": [float(v) for v in a.ravel()]}
            for n, a in inputs.items()
        ]
        named = zip((o.name for o in session.get_outputs()), outputs)
        return {"request": request, "outputs": {n: [float(v) for v in np.ravel(a)] for n, a in named}}

    def time(self, file, seconds):
        session = self.session(file)
        return mean_and_median(lambda inputs: session.run(None, inputs), [self.inputs(file)], seconds)


class Trees:
    """One model of each library, trained here on noise with structure."""

    def __init__(self):
        self.models = {}

    def train(self, folder):
        import lightgbm
        import xgboost

        rng = np.random.default_rng(5)
        x = rng.normal(size=(20_000, FEATURES)).astype(np.float32)
        y = ((x[:, :10] * x[:, 10:20]).sum(axis=1) + x[:, 20] > 0).astype(int)
        folder = Path(folder)
        (folder / "rows.f32").write_bytes(x.tobytes())
        self.rows = x
        light = lightgbm.train(
            {"objective": "binary", "num_leaves": 31, "verbose": -1, "num_threads": 2, "seed": 5},
            lightgbm.Dataset(x, y),
            100,
        )
        light.save_model(folder / "lightgbm.txt")
        xgb = xgboost.train(
            {"objective": "binary:logistic", "max_depth": 6, "eta": 0.1, "verbosity": 0, "seed": 5},
            xgboost.DMatrix(x, y),
            100,
        )
        xgb.save_model(folder / "xgboost.json")
        xgb.set_param({"nthread": 1})
        self.models = {
            "lightgbm": (str(folder / "lightgbm.txt"), lambda rows: light.predict(rows, num_threads=1)),
            "xgboost": (str(folder / "xgboost.json"), xgb.inplace_predict),
        }
        return {name: file for name, (file, _) in self.models.items()}

    def time(self, name, batch, seconds):
        call = self.models[name][1]
        batches = [self.rows[i : i + batch] for i in range(0, len(self.rows) - batch + 1, batch)][:2000]
        result = mean_and_median(call, batches, seconds)
        result["check"] = float(np.asarray(call(batches[0]), dtype=np.float64).sum())
        return result


def main():
    onnx, trees = Onnx(), Trees()
    answers = {
        "onnx-make": lambda q: onnx.make(q["folder"], q["nets"]),
        "onnx-describe": lambda q: onnx.describe(q["file"]),
        "onnx-time": lambda q: onnx.time(q["file"], q["seconds"]),
        "trees-train": lambda q: trees.train(q["folder"]),
        "trees-time": lambda q: trees.time(q["library"], q["batch"], q["seconds"]),
    }
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(answers[question["ask"]](question)), flush=True)


if __name__ == "__main__":
    main()

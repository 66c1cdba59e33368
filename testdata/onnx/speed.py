"""Times ONNX Runtime and tract in process, on one thread, on the models that examples/speed.rs times.

    venv/bin/python speed.py make DIR            writes the models
    venv/bin/python speed.py MODEL BATCH         prints the median and best time of a run in microseconds
    venv/bin/python speed.py MODEL BATCH tract   the same with tract (PyPI `tract`), once its answers are ONNX Runtime's

Both are called from Python. What that costs is the time of `nothing`, a network of one addition.
"""

import os
import sys
import time

import numpy as np


def make(folder):
    from make_nets import cnn, mlp
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    from make_golden import flowers

    os.makedirs(folder, exist_ok=True)
    x, y = flowers(rows=1500)
    models = {
        "nothing": nothing(),
        "mlp": mlp([64, 256, 256, 10], 1)[0],
        "cnn": cnn(1, channels=(3, 16, 32), side=32)[0],
        "cnn_wide": cnn(1, channels=(3, 32, 64, 128), side=32)[0],
        "logistic": to_onnx(LogisticRegression(max_iter=500).fit(x, y), x[:1], options={"zipmap": False}),
        "forest100": to_onnx(RandomForestClassifier(n_estimators=100, max_depth=8, random_state=0).fit(x, y), x[:1], options={"zipmap": False}),
    }
    for name, model in models.items():
        with open(os.path.join(folder, name + ".onnx"), "wb") as f:
            f.write(model.SerializeToString())


def nothing():
    from onnx import TensorProto, helper

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "nothing", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def onnx_runtime(path, batch):
    """The engine's name, a run, and inputs for it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {}
    for i in session.get_inputs():
        shape = [d if isinstance(d, int) else (batch if k == 0 else 1) for k, d in enumerate(i.shape)]
        inputs[i.name] = np.random.RandomState(0).uniform(-1, 1, shape).astype(np.float32)
    return f"ONNX Runtime {onnxruntime.__version__}", lambda: session.run(None, inputs), inputs


def tract_engine(path, batch):
    import tract

    _, expected, inputs = onnx_runtime(path, batch)
    model = tract.onnx().load(path)
    for k, value in enumerate(inputs.values()):
        model.set_input_fact(k, ",".join(map(str, value.shape)) + ",f32")
    runnable = model.into_model().into_runnable()
    tensors = [tract.Tensor.from_numpy(v) for v in inputs.values()]
    for theirs, ours in zip(expected(), runnable.run(tensors)):
        np.testing.assert_allclose(ours.to_numpy(), theirs, rtol=1e-3, atol=1e-4)
    return f"tract {tract.version()}", lambda: runnable.run(tensors), inputs


def measure(path, batch, engine=onnx_runtime):
    name, run, _ = engine(path, batch)
    times, rounds, end = [], 1, time.perf_counter() + 3
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(rounds):
            run()
        each = (time.perf_counter() - start) / rounds
        times.append(each)
        rounds = max(1, min(10000, int(1e-3 / each)))
    times.sort()
    print(f"{os.path.basename(path)} batch {batch}: {name} median {times[len(times) // 2] * 1e6:.1f} µs, best {times[0] * 1e6:.1f} µs")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        measure(sys.argv[1], int(sys.argv[2]), tract_engine if "tract" in sys.argv[3:] else onnx_runtime)

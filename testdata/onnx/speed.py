"""Times ONNX Runtime in process, on one thread, on the models that examples/speed.rs times.

    venv/bin/python speed.py make DIR      writes the models
    venv/bin/python speed.py MODEL BATCH   prints the median and best time of a run in microseconds
"""

import os
import sys
import time

import numpy as np
import onnxruntime


def make(folder):
    from make_nets import cnn, mlp
    from skl2onnx import to_onnx
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression

    from make_golden import flowers

    os.makedirs(folder, exist_ok=True)
    x, y = flowers(rows=1500)
    models = {
        "mlp": mlp([64, 256, 256, 10], 1)[0],
        "cnn": cnn(1, channels=(3, 16, 32), side=32)[0],
        "cnn_wide": cnn(1, channels=(3, 32, 64, 128), side=32)[0],
        "logistic": to_onnx(LogisticRegression(max_iter=500).fit(x, y), x[:1], options={"zipmap": False}),
        "forest100": to_onnx(RandomForestClassifier(n_estimators=100, max_depth=8, random_state=0).fit(x, y), x[:1], options={"zipmap": False}),
    }
    for name, model in models.items():
        with open(os.path.join(folder, name + ".onnx"), "wb") as f:
            f.write(model.SerializeToString())


def measure(path, batch, threads=1):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {}
    for i in session.get_inputs():
        shape = [d if isinstance(d, int) else (batch if k == 0 else 1) for k, d in enumerate(i.shape)]
        inputs[i.name] = np.random.RandomState(0).uniform(-1, 1, shape).astype(np.float32)
    times, rounds, end = [], 1, time.perf_counter() + 3
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(rounds):
            session.run(None, inputs)
        each = (time.perf_counter() - start) / rounds
        times.append(each)
        rounds = max(1, min(10000, int(1e-3 / each)))
    times.sort()
    print(f"{os.path.basename(path)} batch {batch}: ONNX Runtime {onnxruntime.__version__} median {times[len(times) // 2] * 1e6:.1f} µs, best {times[0] * 1e6:.1f} µs")


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        measure(sys.argv[1], int(sys.argv[2]), *(int(a) for a in sys.argv[3:]))

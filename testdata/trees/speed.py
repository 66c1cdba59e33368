"""Compares prediction times with those of XGBoost and LightGBM in process, on the same rows.

Usage: python speed.py SPEED_BINARY [SECONDS]

SPEED_BINARY is `cargo build --release -p gantry-trees --example speed`. For each model, the library is timed with one
thread and with all of them, as `predict` and, for XGBoost, also as `inplace_predict`; its best time counts. Ours is
timed with one thread and with all of them too. Rounds alternate between both, and the sums of the first batch must
agree. Times are medians of the calls within a round; the best round counts.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import lightgbm as lgb
import numpy as np
import xgboost as xgb

FEATURES = 30
CORES = len(os.sched_getaffinity(0))


def median_call(call, batches, seconds):
    times, start = [], time.perf_counter()
    index = 0
    while time.perf_counter() - start < seconds:
        batch = batches[index % len(batches)]
        index += 1
        before = time.perf_counter_ns()
        call(batch)
        times.append(time.perf_counter_ns() - before)
    return sorted(times[len(times) // 10 :])[len(times) * 9 // 20]


def ours(binary, model, rows, batch, threads, seconds, kind):
    command = [binary, model, rows, str(batch), str(threads), str(seconds)] + (["f64"] if kind == "f64" else [])
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    binary = sys.argv[1]
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    rng = np.random.default_rng(5)
    x = rng.normal(size=(20_000, FEATURES)).astype("f4")
    y = ((x[:, :10] * x[:, 10:20]).sum(axis=1) + x[:, 20] > 0).astype(int)
    work = pathlib.Path(tempfile.mkdtemp())
    (work / "rows.f32").write_bytes(x.tobytes())
    (work / "rows.f64").write_bytes(x.astype("f8").tobytes())
    print(f"{'model':24} {'rows':>5} {'type':4} {'library us':>11} {'how':>18} {'ours us':>9} {'threads':>7} {'ratio':>6}")
    for trees in (100, 500):
        params = {"objective": "binary:logistic", "max_depth": 6, "eta": 0.1, "verbosity": 0}
        booster = xgb.train(params, xgb.DMatrix(x, y), trees)
        booster.save_model(work / "model.json")
        params = {"objective": "binary", "num_leaves": 31, "verbose": -1}
        light = lgb.train(params, lgb.Dataset(x, y), trees)
        light.save_model(work / "model.txt")
        for kind in ("f32", "f64"):
            data = x.astype(kind.replace("f32", "f4").replace("f64", "f8"))
            for batch in (1, 1000):
                batches = [data[i : i + batch] for i in range(0, len(data) - batch + 1, batch)][:2000]

                def xgb_call(threads, inplace):
                    def call(rows):
                        return booster.inplace_predict(rows) if inplace else booster.predict(xgb.DMatrix(rows))

                    return lambda: booster.set_param({"nthread": threads}), call

                def lgb_call(threads):
                    return lambda: None, lambda rows: light.predict(rows, num_threads=threads)

                libraries = {
                    f"xgboost {trees} x depth 6": (
                        work / "model.json",
                        {
                            f"{'inplace' if inplace else 'DMatrix'} {threads} thr": xgb_call(threads, inplace)
                            for inplace in (True, False)
                            for threads in {1, CORES}
                        },
                    ),
                    f"lightgbm {trees} x 31 leaves": (
                        work / "model.txt",
                        {f"predict {threads} thr": lgb_call(threads) for threads in {1, CORES}},
                    ),
                }
                for name, (model, ways) in libraries.items():
                    theirs, mine = {}, {}
                    for _ in range(2):
                        for way, (setup, call) in ways.items():
                            setup()
                            theirs[way] = min(theirs.get(way, 1e18), median_call(call, batches, seconds))
                        for threads in {1, CORES}:
                            result = ours(binary, model, work / f"rows.{kind}", batch, threads, seconds, kind)
                            mine[threads] = min(mine.get(threads, 1e18), result["median_ns"])
                    expected = float(np.asarray(call(batches[0]), dtype="f8").sum())
                    assert abs(result["check"] - expected) <= 1e-5 * max(1, abs(expected)), (result, expected)
                    way = min(theirs, key=theirs.get)
                    for threads, mine_ns in sorted(mine.items()):
                        print(
                            f"{name:24} {batch:5} {kind:4} {theirs[way] / 1e3:11.1f} {way:>18} {mine_ns / 1e3:9.1f} "
                            f"{threads:7} {mine_ns / theirs[way]:6.3f}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()

"""Predictions of the original libraries, from the served files."""

from functools import cache

import lightgbm
import numpy as np
import onnxruntime
import xgboost
from gantry import EXAMPLES

TOLERANCE = 1e-6


def close(actual, expected):
    np.testing.assert_allclose(np.ravel(actual), np.ravel(expected), rtol=TOLERANCE, atol=TOLERANCE)


def iris_rows(count=8):
    rng = np.random.default_rng(1)
    return rng.uniform([4.3, 2.0, 1.0, 0.1], [7.9, 4.4, 6.9, 2.5], (count, 4)).astype(np.float32)


def fraud_rows(count=8):
    rng = np.random.default_rng(2)
    return np.column_stack(
        [rng.lognormal(3.5, 1.2, count), rng.integers(0, 24, count), rng.exponential(30, count), rng.integers(0, 3000, count)]
    ).astype(np.float32)


def demand_rows(count=8):
    rng = np.random.default_rng(3)
    return np.column_stack(
        [rng.integers(0, 7, count), rng.integers(0, 24, count), rng.normal(14, 8, count), rng.exponential(0.6, count)]
    ).astype(np.float64)


@cache
def onnx_session(file):
    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


def iris(rows):
    """Labels and probabilities."""
    return onnx_session(EXAMPLES / "iris" / "model.onnx").run(["label", "probabilities"], {"X": rows})


def xgboost_predictions(file, rows):
    booster = xgboost.Booster(model_file=str(file))
    return booster.predict(xgboost.DMatrix(rows, feature_names=booster.feature_names))


def fraud(rows):
    return xgboost_predictions(EXAMPLES / "fraud" / "model.json", rows)


def demand(rows):
    return lightgbm.Booster(model_file=str(EXAMPLES / "demand" / "model.txt")).predict(rows, num_threads=1)


class Case:
    """A quickstart model: rows, request format and expected outputs."""

    def __init__(self, name, input_name, datatype, rows, expected):
        self.name, self.input, self.datatype, self.rows = name, input_name, datatype, rows
        self.expected = expected

    def __repr__(self):
        return self.name


def cases():
    rows = iris_rows()
    label, probabilities = iris(rows)
    yield Case("iris", "X", "FP32", rows, {"label": label, "probabilities": probabilities})
    rows = fraud_rows()
    yield Case("fraud", "input-0", "FP32", rows, {"predict": fraud(rows)})
    rows = demand_rows()
    yield Case("demand", "input-0", "FP64", rows, {"predict": demand(rows)})


CASES = list(cases())

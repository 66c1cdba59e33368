"""Trains the three models of this directory, on synthetic data and data sets of scikit-learn.

    pip install -r requirements.txt && python train.py

Reproducible: fixed seeds and pinned versions.
"""

from pathlib import Path

import lightgbm
import numpy as np
import xgboost
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

HERE = Path(__file__).parent


def iris() -> None:
    """Iris species by sepal and petal size (Fisher, 1936)."""
    features, species = load_iris(return_X_y=True)
    features = features.astype(np.float32)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(features, species)
    graph = to_onnx(
        model,
        features[:1],
        options={"zipmap": False},
        target_opset={"": 18, "ai.onnx.ml": 3},
    )
    (HERE / "iris" / "model.onnx").write_bytes(graph.SerializeToString())


def fraud() -> None:
    """Probability that a payment is fraud, from amount, hour, distance from home and account age."""
    rng = np.random.default_rng(7)
    count = 4000
    amount = rng.lognormal(3.5, 1.2, count)
    hour = rng.integers(0, 24, count)
    kilometres = rng.exponential(30, count)
    account_days = rng.integers(0, 3000, count)
    night = (hour < 6) | (hour > 22)
    score = 0.004 * amount + 1.5 * night + 0.01 * kilometres - 0.0008 * account_days - 2.0
    label = rng.random(count) < 1 / (1 + np.exp(-score))
    features = np.column_stack([amount, hour, kilometres, account_days]).astype(np.float32)
    # Some merchants do not report the location.
    features[rng.random(count) < 0.1, 2] = np.nan
    names = ["amount", "hour", "kilometres", "account_days"]
    data = xgboost.DMatrix(features, label=label, feature_names=names)
    parameters = {"objective": "binary:logistic", "max_depth": 4, "eta": 0.2, "seed": 7, "nthread": 1}
    model = xgboost.train(parameters, data, num_boost_round=40)
    model.save_model(HERE / "fraud" / "model.json")


def demand() -> None:
    """Bicycle rentals per hour, from weekday, hour, temperature and rain."""
    rng = np.random.default_rng(11)
    count = 4000
    weekday = rng.integers(0, 7, count)
    hour = rng.integers(0, 24, count)
    celsius = rng.normal(14, 8, count)
    rain = rng.exponential(0.6, count) * (rng.random(count) < 0.3)
    rush = np.exp(-((hour - 8) ** 2) / 6) + np.exp(-((hour - 18) ** 2) / 8)
    mean = 20 + 180 * rush * (weekday < 5) + 60 * np.exp(-((hour - 14) ** 2) / 20) * (weekday >= 5)
    mean = mean * np.clip(0.3 + celsius / 25, 0.1, 1.4) * np.exp(-rain)
    rented = rng.poisson(np.clip(mean, 0.1, None)).astype(float)
    features = np.column_stack([weekday, hour, celsius, rain])
    data = lightgbm.Dataset(
        features,
        label=rented,
        feature_name=["weekday", "hour", "celsius", "rain"],
        categorical_feature=["weekday"],
    )
    parameters = {
        "objective": "poisson",
        "num_leaves": 15,
        "learning_rate": 0.15,
        "seed": 11,
        "num_threads": 1,
        "deterministic": True,
        "verbose": -1,
    }
    model = lightgbm.train(parameters, data, num_boost_round=60)
    model.save_model(HERE / "demand" / "model.txt")


if __name__ == "__main__":
    for train in (iris, fraud, demand):
        train()
        print(train.__name__, "trained")

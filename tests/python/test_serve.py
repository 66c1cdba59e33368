"""`gantry.serve`: models of each library, served and equal to their library."""

import numpy as np
import pandas as pd
import pytest

import gantry

RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(120, 4)).astype("float32")
Y = (X @ np.array([1, 2, 3, 4], dtype="float32")).astype("float32")
LABELS = np.digitize(Y, [-2, 2])


@pytest.fixture(scope="module", autouse=True)
def stop():
    yield
    gantry.shutdown()


def test_estimator_is_converted_and_takes_arrays_frames_and_lists():
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, LABELS)
    client = gantry.serve(model, X, name="churn")
    expected = model.predict(X[:8])
    frame = pd.DataFrame(X[:8], columns=list("abcd"))
    for rows in (X[:8], X[:8].astype("float64"), frame, X[:8].tolist()):
        np.testing.assert_array_equal(client.predict(rows), expected)
    np.testing.assert_array_equal(client.predict(X[0]), expected[:1])
    np.testing.assert_allclose(client.predict_proba(X[:8]), model.predict_proba(X[:8]), atol=1e-4)
    assert [spec.name for spec in client.inputs] == ["X"] and client.ready()
    with pytest.raises(gantry.GantryError, match=r"expected FP32 \[-1,4\]") as caught:
        client.predict(X[:8, :3])
    assert caught.value.status == 400


def test_model_of_columns_takes_a_frame():
    from sklearn.compose import ColumnTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame = pd.DataFrame({"age": RANDOM.uniform(18, 80, 90), "city": RANDOM.choice(["Bern", "Basel"], 90)})
    columns = [("n", StandardScaler(), ["age"]), ("c", OneHotEncoder(), ["city"])]
    model = make_pipeline(ColumnTransformer(columns), LogisticRegression())
    model.fit(frame, np.where(frame.city == "Bern", frame.age > 40, frame.age > 60).astype(int))
    client = gantry.serve(model, frame, name="mixed", allow_python=True)
    assert [spec.datatype for spec in client.inputs] == ["FP64", "BYTES"]
    np.testing.assert_array_equal(client.predict(frame), model.predict(frame))
    np.testing.assert_allclose(client.predict_proba(frame), model.predict_proba(frame))
    with pytest.raises(ValueError, match="column city is missing"):
        client.predict(frame[["age"]])


def test_boosters_are_served_as_they_are():
    import lightgbm
    import xgboost

    booster = xgboost.XGBClassifier(n_estimators=5, max_depth=3).fit(X, LABELS)
    client = gantry.serve(booster, name="fraud")
    np.testing.assert_allclose(client.predict_proba(X), booster.predict_proba(X), atol=1e-6)
    demand = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(X, Y)
    client = gantry.serve(demand, name="demand")
    np.testing.assert_allclose(client.predict(X), demand.predict(X.astype("float64")), atol=1e-6)


def test_catboost_is_exported():
    import catboost

    model = catboost.CatBoostRegressor(iterations=5, depth=3, verbose=0, allow_writing_files=False).fit(X, Y)
    client = gantry.serve(model, name="risk")
    np.testing.assert_allclose(client.predict(X).reshape(-1), model.predict(X), atol=1e-4)


def test_another_model_of_the_same_name_replaces_the_first():
    from sklearn.linear_model import LinearRegression

    first = gantry.serve(LinearRegression().fit(X, Y), X, name="line")
    np.testing.assert_allclose(first.predict(X).reshape(-1), Y, atol=1e-3)
    gantry.serve(LinearRegression().fit(X, -Y), X, name="line")
    np.testing.assert_allclose(first.predict(X).reshape(-1), -Y, atol=1e-3)


class Own:
    def predict(self, rows):
        return rows


def test_unservable_models_and_names_are_refused_with_a_reason(monkeypatch):
    monkeypatch.setattr(Own, "__module__", "__main__")
    monkeypatch.setattr("__main__.Own", Own, raising=False)
    with pytest.raises(gantry.GantryError, match="class or function of this notebook or script"):
        gantry.serve(Own(), name="own")
    with pytest.raises(TypeError, match="has no method predict"):
        gantry.serve({"a": 1}, name="dict")
    with pytest.raises(ValueError, match="not a model name"):
        gantry.serve(Own(), name="My Model")
    with pytest.raises(FileNotFoundError, match="no-such.onnx does not exist"):
        gantry.serve("no-such.onnx", name="file")


def test_client_without_a_server_names_its_address():
    with pytest.raises(gantry.GantryError, match="no gateway answers at 127.0.0.1:1"):
        gantry.connect("iris", "127.0.0.1:1").predict([[1.0]])

"""Builds the model files of the zoo, and the predictions of their own libraries.

    python build.py DIRECTORY

Writes the files below DIRECTORY/models, and DIRECTORY/cases.json: for each file its kind, and either the inputs with the
expected outputs (in DIRECTORY/arrays.npz) or a part of the message with which it is refused.
"""

import json
import pickle
import struct
import sys
import warnings
import zipfile
from pathlib import Path

import joblib
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

warnings.filterwarnings("ignore")
RANDOM = np.random.default_rng(7)
ROWS = 16


class Zoo:
    def __init__(self, directory):
        self.directory = directory
        self.models = directory / "models"
        self.models.mkdir(parents=True)
        self.cases, self.arrays = [], {}

    def path(self, name):
        path = self.models / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def served(self, kind, name, inputs, expected, model=None, tolerance=1e-4):
        """A file that agrees with its library."""
        model = model or name.split("/")[0].rsplit(".", 1)[0].replace("_", "-").replace(".", "-").lower()
        for part, arrays in (("in", inputs), ("out", expected)):
            for key, array in arrays.items():
                array = np.asarray(array)
                array = array.astype(str) if array.dtype.kind == "O" else array
                self.arrays[f"{model}/{part}/{key}"] = array
        self.cases.append({"kind": kind, "file": name, "model": model, "tolerance": tolerance})

    def refused(self, kind, name, content, message):
        if content is not None:
            self.path(name).write_bytes(content)
        self.cases.append({"kind": kind, "file": name, "refused": message})

    def finish(self):
        np.savez(self.directory / "arrays.npz", **self.arrays)
        (self.directory / "cases.json").write_text(json.dumps(self.cases, indent=1))


def table(classes=0, features=4, rows=120, positive=False):
    rows = RANDOM.normal(size=(rows, features)).astype("float32")
    if positive:
        rows = np.abs(rows)
    score = rows @ np.arange(1, features + 1, dtype="float32") + np.sin(rows[:, 0])
    if not classes:
        return rows, score
    return rows, np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))


# scikit-learn, converted by skl2onnx


def sklearn_onnx(zoo):
    from skl2onnx import to_onnx
    from sklearn import (
        cluster,
        cross_decomposition,
        decomposition,
        discriminant_analysis,
        ensemble,
        feature_selection,
        gaussian_process,
        impute,
        linear_model,
        mixture,
        multiclass,
        naive_bayes,
        neighbors,
        neural_network,
        pipeline,
        preprocessing,
        svm,
        tree,
    )

    small = {"max_iter": 300}
    classifiers = {
        "logistic": linear_model.LogisticRegression(**small),
        "ridge-classifier": linear_model.RidgeClassifier(),
        "sgd-classifier": linear_model.SGDClassifier(loss="log_loss", random_state=0),
        "perceptron": linear_model.Perceptron(random_state=0),
        "passive-aggressive": linear_model.PassiveAggressiveClassifier(random_state=0),
        "lda": discriminant_analysis.LinearDiscriminantAnalysis(),
        "qda": discriminant_analysis.QuadraticDiscriminantAnalysis(),
        "gaussian-nb": naive_bayes.GaussianNB(),
        "bernoulli-nb": naive_bayes.BernoulliNB(),
        "tree-classifier": tree.DecisionTreeClassifier(max_depth=4, random_state=0),
        "extra-tree-classifier": tree.ExtraTreeClassifier(max_depth=4, random_state=0),
        "forest-classifier": ensemble.RandomForestClassifier(10, max_depth=4, random_state=0),
        "extra-trees-classifier": ensemble.ExtraTreesClassifier(10, max_depth=4, random_state=0),
        "boosting-classifier": ensemble.GradientBoostingClassifier(n_estimators=10, random_state=0),
        "hist-boosting-classifier": ensemble.HistGradientBoostingClassifier(max_iter=10, random_state=0),
        "ada-classifier": ensemble.AdaBoostClassifier(n_estimators=5, random_state=0),
        "bagging-classifier": ensemble.BaggingClassifier(n_estimators=5, random_state=0),
        "svc": svm.SVC(probability=False, random_state=0),
        "linear-svc": svm.LinearSVC(random_state=0),
        "nu-svc": svm.NuSVC(nu=0.2, random_state=0),
        "knn-classifier": neighbors.KNeighborsClassifier(3),
        "mlp-classifier": neural_network.MLPClassifier(hidden_layer_sizes=(8,), random_state=0, max_iter=300),
        "one-vs-rest": multiclass.OneVsRestClassifier(linear_model.LogisticRegression()),
        "voting-classifier": ensemble.VotingClassifier(
            [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=3))], voting="soft", flatten_transform=False
        ),
        "stacking-classifier": ensemble.StackingClassifier(
            [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(max_depth=3))]
        ),
    }
    rows, labels = table(classes=3)
    for name, model in classifiers.items():
        model.fit(rows, labels)
        try:
            converted = to_onnx(model, rows[:1], options={id(model): {"zipmap": False}}, target_opset={"": 17, "ai.onnx.ml": 3})
        except NameError:
            converted = to_onnx(model, rows[:1], target_opset={"": 17, "ai.onnx.ml": 3})
        zoo.path(f"{name}.onnx").write_bytes(converted.SerializeToString())
        zoo.served("scikit-learn classifier (skl2onnx)", f"{name}.onnx", {"X": rows[:ROWS]}, {"label": model.predict(rows[:ROWS])})
    regressors = {
        "linear": linear_model.LinearRegression(),
        "ridge": linear_model.Ridge(),
        "lasso": linear_model.Lasso(0.1),
        "elastic-net": linear_model.ElasticNet(0.1),
        "bayesian-ridge": linear_model.BayesianRidge(),
        "poisson": linear_model.TweedieRegressor(power=0),
        "tree-regressor": tree.DecisionTreeRegressor(max_depth=4, random_state=0),
        "forest-regressor": ensemble.RandomForestRegressor(10, max_depth=4, random_state=0),
        "boosting-regressor": ensemble.GradientBoostingRegressor(n_estimators=10, random_state=0),
        "hist-boosting-regressor": ensemble.HistGradientBoostingRegressor(max_iter=10, random_state=0),
        "ada-regressor": ensemble.AdaBoostRegressor(n_estimators=5, random_state=0),
        "bagging-regressor": ensemble.BaggingRegressor(n_estimators=5, random_state=0),
        "svr": svm.SVR(),
        "linear-svr": svm.LinearSVR(random_state=0),
        "knn-regressor": neighbors.KNeighborsRegressor(3),
        "mlp-regressor": neural_network.MLPRegressor(hidden_layer_sizes=(8,), random_state=0, max_iter=300),
        "pls": cross_decomposition.PLSRegression(2),
        "gaussian-process": gaussian_process.GaussianProcessRegressor(
            gaussian_process.kernels.RBF(1.0, length_scale_bounds="fixed"), alpha=0.1
        ),
    }
    rows, values = table()
    for name, model in regressors.items():
        model.fit(rows, values)
        converted = to_onnx(model, rows[:1], target_opset={"": 17, "ai.onnx.ml": 3})
        zoo.path(f"{name}.onnx").write_bytes(converted.SerializeToString())
        output = converted.graph.output[0].name
        expected = np.asarray(model.predict(rows[:ROWS]), dtype="float32")
        zoo.served("scikit-learn regressor (skl2onnx)", f"{name}.onnx", {"X": rows[:ROWS]}, {output: expected}, tolerance=2e-3)
    transformers = {
        "standard-scaler": preprocessing.StandardScaler(),
        "min-max-scaler": preprocessing.MinMaxScaler(),
        "max-abs-scaler": preprocessing.MaxAbsScaler(),
        "robust-scaler": preprocessing.RobustScaler(),
        "normalizer": preprocessing.Normalizer(),
        "binarizer": preprocessing.Binarizer(),
        "polynomial": preprocessing.PolynomialFeatures(2),
        "bins": preprocessing.KBinsDiscretizer(3, encode="ordinal", strategy="uniform"),
        "pca": decomposition.PCA(2, random_state=0),
        "truncated-svd": decomposition.TruncatedSVD(2, random_state=0),
        "imputer": impute.SimpleImputer(),
        "variance-threshold": feature_selection.VarianceThreshold(0.1),
    }
    for name, model in transformers.items():
        model.fit(rows)
        converted = to_onnx(model, rows[:1], target_opset={"": 17, "ai.onnx.ml": 3})
        zoo.path(f"{name}.onnx").write_bytes(converted.SerializeToString())
        expected = np.asarray(model.transform(rows[:ROWS]), dtype="float32")
        zoo.served(
            "scikit-learn transformer (skl2onnx)", f"{name}.onnx", {"X": rows[:ROWS]}, {converted.graph.output[0].name: expected},
            tolerance=1e-3,
        )  # fmt: skip
    for name, model in {
        "k-means": cluster.KMeans(3, random_state=0, n_init=2),
        "mini-batch-k-means": cluster.MiniBatchKMeans(3, random_state=0, n_init=2),
        "gaussian-mixture": mixture.GaussianMixture(2, random_state=0),
        "isolation-forest": ensemble.IsolationForest(n_estimators=10, random_state=0),
        "local-outlier-factor": neighbors.LocalOutlierFactor(novelty=True),
    }.items():
        model.fit(rows)
        converted = to_onnx(model, rows[:1], target_opset={"": 17, "ai.onnx.ml": 3})
        zoo.path(f"{name}.onnx").write_bytes(converted.SerializeToString())
        zoo.served(
            "scikit-learn clustering and outliers (skl2onnx)", f"{name}.onnx", {"X": rows[:ROWS]},
            {converted.graph.output[0].name: np.asarray(model.predict(rows[:ROWS]))},
        )  # fmt: skip
    chain = pipeline.make_pipeline(
        impute.SimpleImputer(), preprocessing.StandardScaler(), decomposition.PCA(3), linear_model.Ridge()
    ).fit(rows, values)
    converted = to_onnx(chain, rows[:1], target_opset={"": 17, "ai.onnx.ml": 3})
    zoo.path("chain/1/model.onnx").write_bytes(converted.SerializeToString())
    zoo.served(
        "repository of Triton (name/1/model.onnx)", "chain/1/model.onnx", {"X": rows[:ROWS]},
        {"variable": chain.predict(rows[:ROWS]).astype("float32")}, model="chain", tolerance=1e-3,
    )  # fmt: skip


# scikit-learn by its own library


def sklearn_python(zoo):
    from sklearn import compose, ensemble, feature_extraction, linear_model, pipeline, preprocessing

    rows, labels = table(classes=3)
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()).fit(rows, labels)
    expected = {"predict": model.predict(rows[:ROWS].astype("float64"))}
    for protocol in (2, 4, 5):
        zoo.path(f"pickle-{protocol}.pkl").write_bytes(pickle.dumps(model, protocol))
        zoo.served("scikit-learn pickle", f"pickle-{protocol}.pkl", {"input-0": rows[:ROWS]}, expected)
    joblib.dump(model, zoo.path("plain.joblib"))
    joblib.dump(model, zoo.path("small.joblib"), compress=("zlib", 3))
    forest = ensemble.RandomForestRegressor(5, max_depth=3, random_state=0).fit(*table())
    joblib.dump(forest, zoo.path("arrays.joblib"))
    zoo.served("joblib file", "plain.joblib", {"input-0": rows[:ROWS]}, expected)
    zoo.served("joblib file, compressed", "small.joblib", {"input-0": rows[:ROWS]}, expected)
    zoo.served("joblib file", "arrays.joblib", {"input-0": rows[:ROWS]}, {"predict": forest.predict(rows[:ROWS])})
    words = ["good film", "bad film", "nice story", "awful story"] * 4
    text = pipeline.make_pipeline(feature_extraction.text.TfidfVectorizer(), linear_model.LogisticRegression())
    text.fit(words, ["pos", "neg"] * 8)
    zoo.path("text.pkl").write_bytes(pickle.dumps(text))
    zoo.served(
        "scikit-learn text pipeline, pickle", "text.pkl", {"input-0": np.array(words[:4])}, {"predict": text.predict(words[:4])}
    )
    import pandas

    frame = pandas.DataFrame({"age": RANDOM.uniform(18, 80, 60), "city": RANDOM.choice(["Bern", "Basel"], 60)})
    columns = compose.ColumnTransformer(
        [("n", preprocessing.StandardScaler(), ["age"]), ("c", preprocessing.OneHotEncoder(), ["city"])]
    )
    mixed = pipeline.make_pipeline(columns, linear_model.LogisticRegression()).fit(frame, frame.age > 40)
    zoo.path("mixed.pkl").write_bytes(pickle.dumps(mixed))
    zoo.served(
        "scikit-learn columns of numbers and text, pickle", "mixed.pkl",
        {"age": frame.age.to_numpy()[:ROWS].reshape(-1, 1), "city": frame.city.to_numpy(dtype=object)[:ROWS].reshape(-1, 1)},
        {"predict": mixed.predict(frame[:ROWS])},
    )  # fmt: skip
    folder = zoo.path("mlserver-folder/model.joblib").parent
    joblib.dump(model, folder / "model.joblib")
    settings = {"implementation": "mlserver_sklearn.SKLearnModel", "parameters": {"uri": "./model.joblib"}}
    (folder / "model-settings.json").write_text(json.dumps(settings))
    zoo.served("MLServer folder", "mlserver-folder", {"input-0": rows[:ROWS]}, expected)


# Boosters


def boosters(zoo):
    import catboost
    import lightgbm
    import xgboost

    rows, values = table()
    binary, three = table(classes=2), table(classes=3)
    given = {"input-0": rows[:ROWS]}

    def booster(name, objective, data, endings, **settings):
        x, y = data
        trained = xgboost.train(
            {"objective": objective, "max_depth": 3, "verbosity": 0, **settings}, xgboost.DMatrix(x, y), settings.pop("rounds", 6)
        )
        expected = trained.predict(xgboost.DMatrix(x[:ROWS]))
        for ending in endings:
            path = zoo.path(f"{name}-{ending.replace('.', '')}{ending}")
            # The library takes the format from the ending.
            draft = path.with_name("draft.json" if ending in (".json", "") else "draft.ubj")
            trained.save_model(draft)
            draft.rename(path)
            zoo.served(f"XGBoost ({'JSON' if draft.suffix == '.json' else 'UBJSON'})", path.name, {"input-0": x[:ROWS]}, {"predict": expected})

    booster("xgb-squared", "reg:squarederror", (rows, values), [".json", ".ubj", ".model", ".bst"])
    booster("xgb-absolute", "reg:absoluteerror", (rows, values), [".json"])
    booster("xgb-gamma", "reg:gamma", (rows, np.abs(values) + 1), [".ubj"])
    booster("xgb-poisson", "count:poisson", (rows, np.abs(values).round()), [".ubj"])
    booster("xgb-logistic", "binary:logistic", binary, [".json", ".ubj"])
    booster("xgb-softprob", "multi:softprob", three, [".json", ".ubj"], num_class=3)
    booster("xgb-softmax", "multi:softmax", three, [".ubj"], num_class=3)
    booster("xgb-rank", "rank:pairwise", (rows, (values > 0).astype(int)), [".ubj"])
    booster("xgb-dart", "reg:squarederror", (rows, values), [".ubj"], booster="dart", rate_drop=0.2)
    booster("xgb-linear", "reg:squarederror", (rows, values), [".json"], booster="gblinear")

    def light(name, objective, data, endings=(".txt",), **settings):
        x, y = data
        parameters = {"objective": objective, "num_leaves": 6, "verbosity": -1, "min_data_in_leaf": 5, **settings}
        trained = lightgbm.train(parameters, lightgbm.Dataset(x, y), 6)
        for ending in endings:
            path = zoo.path(f"{name}-{ending[1:]}{ending}")
            trained.save_model(path)
            zoo.served("LightGBM text", path.name, {"input-0": x[:ROWS]}, {"predict": trained.predict(x[:ROWS])})

    light("lgb-regression", "regression", (rows, values), (".txt", ".lgb", ".dat"))
    light("lgb-l1", "regression_l1", (rows, values))
    light("lgb-huber", "huber", (rows, values))
    light("lgb-poisson", "poisson", (rows, np.abs(values)))
    light("lgb-binary", "binary", binary)
    light("lgb-multiclass", "multiclass", three, num_class=3)
    light("lgb-ova", "multiclassova", three, num_class=3)
    light("lgb-dart", "regression", (rows, values), boosting="dart")
    light("lgb-forest", "regression", (rows, values), boosting="rf", bagging_freq=1, bagging_fraction=0.7)
    light("lgb-linear", "regression", (rows, values), linear_tree=True)
    classifier = xgboost.XGBClassifier(n_estimators=5, max_depth=3).fit(*three)
    zoo.path("xgb-wrapper.pkl").write_bytes(pickle.dumps(classifier))
    zoo.served("XGBoost pickle", "xgb-wrapper.pkl", {"input-0": three[0][:ROWS]}, {"predict": classifier.predict(three[0][:ROWS])})
    regressor = lightgbm.LGBMRegressor(n_estimators=5, num_leaves=6, verbose=-1).fit(rows, values)
    zoo.path("lgb-wrapper.pkl").write_bytes(pickle.dumps(regressor))
    zoo.served("LightGBM pickle", "lgb-wrapper.pkl", given, {"predict": regressor.predict(rows[:ROWS])})
    quiet = {"iterations": 6, "depth": 3, "verbose": 0, "allow_writing_files": False, "random_seed": 0}
    for name, model, (x, y) in [
        ("cat-regressor", catboost.CatBoostRegressor(**quiet), (rows, values)),
        ("cat-classifier", catboost.CatBoostClassifier(**quiet), three),
    ]:
        model.fit(x, y)
        expected = np.asarray(model.predict(x[:ROWS]))
        model.save_model(str(zoo.path(f"{name}-cbm.cbm")))
        zoo.served("CatBoost (.cbm)", f"{name}-cbm.cbm", {"input-0": x[:ROWS]}, {"predict": expected})
        model.save_model(str(zoo.path(f"{name}-onnx.onnx")), format="onnx")
        output = "label" if name == "cat-classifier" else "predictions"
        zoo.served("CatBoost as ONNX", f"{name}-onnx.onnx", {"features": x[:ROWS]}, {output: expected.reshape(-1)})


# Networks


def network(zoo, kind, name, nodes, inputs, outputs, given, weights=(), opset=17, tolerance=1e-4, external=False):
    """A graph, with the predictions of ONNX Runtime."""
    import onnxruntime

    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info(n, t, s) for n, t, s in inputs],
        [info(n, t, s) for n, t, s in outputs],
        [numpy_helper.from_array(array, key) for key, array in dict(weights).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = dict(zip([o[0] for o in outputs], session.run(None, given)))
    path = zoo.path(f"{name}.onnx")
    if external:
        onnx.save_model(model, str(path), save_as_external_data=True, location=f"{name}.onnx.data", size_threshold=0)
    else:
        path.write_bytes(model.SerializeToString())
    zoo.served(kind, f"{name}.onnx", given, expected, tolerance=tolerance)


def networks(zoo):
    node, f = helper.make_node, TensorProto.FLOAT
    rows = RANDOM.normal(size=(3, 6)).astype("float32")
    dense = {"w": RANDOM.normal(size=(6, 4)).astype("float32"), "b": RANDOM.normal(size=4).astype("float32")}
    ends = [("x", f, ["n", 6])], [("y", f, None)]
    for activation in ("Relu", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Elu", "LeakyRelu", "Softplus", "HardSigmoid", "Erf"):
        nodes = [node("Gemm", ["x", "w", "b"], ["h"]), node(activation, ["h"], ["y"])]
        network(zoo, "ONNX, dense", f"dense-{activation.lower()}", nodes, *ends, {"x": rows}, dense)
    network(zoo, "ONNX with external data", "external", [node("MatMul", ["x", "w"], ["y"])], *ends, {"x": rows}, {"w": dense["w"]}, external=True)
    network(zoo, "ONNX, opset 9", "old-opset", [node("Gemm", ["x", "w", "b"], ["y"])], *ends, {"x": rows}, dense, opset=9)
    d = TensorProto.DOUBLE
    network(
        zoo, "ONNX, FP64", "double", [node("MatMul", ["x", "w"], ["y"])], [("x", d, ["n", 6])], [("y", d, None)],
        {"x": rows.astype("float64")}, {"w": dense["w"].astype("float64")},
    )  # fmt: skip
    for name, operator in {"reduce-mean": "ReduceMean", "reduce-max": "ReduceMax", "reduce-min": "ReduceMin"}.items():
        network(zoo, "ONNX, reductions", name, [node(operator, ["x"], ["y"], axes=[1], keepdims=0)], *ends, {"x": rows})
    network(zoo, "ONNX, arg max", "arg-max", [node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)], [("x", f, ["n", 6])], [("y", TensorProto.INT64, None)], {"x": rows})
    network(
        zoo, "ONNX, two inputs", "two-inputs", [node("Add", ["a", "b"], ["y"])], [("a", f, ["n", 6]), ("b", f, ["n", 6])],
        [("y", f, None)], {"a": rows, "b": rows * 2},
    )  # fmt: skip
    network(
        zoo, "ONNX, two outputs", "two-outputs", [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["z"])], [("x", f, ["n", 6])],
        [("y", f, None), ("z", f, None)], {"x": rows},
    )  # fmt: skip
    image = RANDOM.normal(size=(2, 3, 8, 8)).astype("float32")
    kernel = {"k": RANDOM.normal(size=(4, 3, 3, 3)).astype("float32")}
    pictures = [("x", f, ["n", 3, 8, 8])], [("y", f, None)]
    for name, settings in {"conv": {}, "conv-padded": {"pads": [1, 1, 1, 1]}, "conv-strided": {"strides": [2, 2]}}.items():
        network(zoo, "ONNX, convolution", name, [node("Conv", ["x", "k"], ["y"], **settings)], *pictures, {"x": image}, kernel, tolerance=1e-3)
    scale = {k: RANDOM.uniform(0.5, 1, 3).astype("float32") for k in "abcd"}
    network(zoo, "ONNX, normalisation", "batch-norm", [node("BatchNormalization", ["x", "a", "b", "c", "d"], ["y"])], *pictures, {"x": image}, scale, tolerance=1e-3)
    for name, operator, settings in [
        ("max-pool", "MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("average-pool", "AveragePool", {"kernel_shape": [2, 2]}),
        ("global-pool", "GlobalAveragePool", {}),
    ]:
        network(zoo, "ONNX, pooling", name, [node(operator, ["x"], ["y"], **settings)], *pictures, {"x": image})
    sequence = RANDOM.normal(size=(5, 1, 4)).astype("float32")
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}
    for operator in ("LSTM", "GRU"):
        weights = {
            "w": RANDOM.normal(size=(1, gates[operator] * 3, 4)).astype("float32"),
            "r": RANDOM.normal(size=(1, gates[operator] * 3, 3)).astype("float32"),
        }
        settings = {"linear_before_reset": 1} if operator == "GRU" else {}
        network(
            zoo, "ONNX, recurrent", operator.lower(), [node(operator, ["x", "w", "r"], ["y"], hidden_size=3, **settings)],
            [("x", f, [5, 1, 4])], [("y", f, None)], {"x": sequence}, weights, tolerance=1e-3,
        )  # fmt: skip
    network(
        zoo, "ONNX, embedding", "embedding", [node("Gather", ["e", "x"], ["y"])], [("x", TensorProto.INT64, ["n", 2])],
        [("y", f, None)], {"x": np.array([[0, 1], [2, 3]])}, {"e": RANDOM.normal(size=(5, 3)).astype("float32")},
    )  # fmt: skip


# Files that are not served


def refusals(zoo):
    from sklearn.linear_model import LinearRegression

    zoo.refused("GGUF", "llama.gguf", b"GGUF\x03\0\0\0" + bytes(16), "llama-server")
    zoo.refused("TensorFlow Lite", "mobile.tflite", b"\x1c\0\0\0TFL3" + bytes(16), "gantry convert")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    zoo.refused("safetensors", "weights.safetensors", struct.pack("<Q", len(header)) + header + bytes(4), "torch.onnx.export")
    zoo.refused("pickle of no model", "settings.pkl", pickle.dumps({"a": 1}), "no model of a known library")
    zoo.refused("pickle, damaged", "cut.pkl", b"no pickle at all", "damaged")
    zoo.refused("pickle that runs a command", "evil.pkl", b"\x80\x02csklearn.svm\nSVC\ncposix\nsystem\n.", "posix.system")
    zoo.refused("pickle of code of one's own", "own.pkl", b"\x80\x02csklearn.svm\nSVC\ncpricing\nRatio\n.", "pricing.Ratio")
    zoo.refused("PMML", "churn.pmml", b"<?xml version='1.0'?><PMML version='4.4'/>", "PMML")
    zoo.refused("TensorRT engine", "net.engine", b"ftrt", "TensorRT")
    zoo.refused("Core ML", "net.mlmodel", b"\x08\x04", "Core ML")
    zoo.refused("PaddlePaddle", "net.pdmodel", b"\x08\x04", "paddle2onnx")
    zoo.refused("ONNX Runtime's own format", "net.ort", b"\x1c\0\0\0ORTM" + bytes(16), "made from")
    zoo.refused("joblib file, compressed by lzma", "lzma.joblib", None, "compress")
    joblib.dump(LinearRegression(), zoo.path("lzma.joblib"), compress=("lzma", 3))
    weights = b"\x80\x02ccollections\nOrderedDict\nctorch._utils\n_rebuild_tensor_v2\n."
    own = b"\x80\x02c__main__\nNet\nctorch.nn.modules.linear\nLinear\n."
    for kind, name, files, message in [
        ("PyTorch state_dict", "weights.pt", {"w/data.pkl": weights}, "torch.onnx.export"),
        ("PyTorch pickle with its own class", "whole.pt", {"w/data.pkl": own}, "__main__.Net"),
        ("TorchServe archive", "served.mar", {"MAR-INF/MANIFEST.json": b"{}"}, "TorchServe"),
        ("H2O MOJO", "h2o.zip", {"model.ini": b"", "domains/d.txt": b""}, "H2O"),
    ]:
        with zipfile.ZipFile(zoo.path(name), "w") as archive:
            for entry, content in files.items():
                archive.writestr(entry, content)
        zoo.refused(kind, name, None, message)
    zoo.path("mine/model-settings.json").write_text(json.dumps({"implementation": "models.Mine"}))
    zoo.refused("MLServer folder with code of one's own", "mine", None, "code for MLServer")
    zoo.path("bert/config.json").write_text(json.dumps({"model_type": "bert"}))
    zoo.path("bert/model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    zoo.refused("Hugging Face folder", "bert", None, "optimum-cli export onnx")


def main():
    zoo = Zoo(Path(sys.argv[1]))
    for part in (sklearn_onnx, sklearn_python, boosters, networks, refusals):
        part(zoo)
    zoo.finish()
    kinds = {case["kind"] for case in zoo.cases}
    print(f"{len(zoo.cases)} files of {len(kinds)} kinds")


main()

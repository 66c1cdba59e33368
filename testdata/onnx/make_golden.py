"""Trains small scikit-learn models on seeded data and writes what they answer.

    python3.11 -m venv venv && venv/bin/pip install -r requirements.txt
    venv/bin/python make_golden.py

For every case: sklearn/<case>.onnx, converted by skl2onnx, and sklearn/<case>.json with inputs and the answers of
scikit-learn itself. `ort` beside an output is the largest difference between ONNX Runtime and scikit-learn on it:
the yardstick for how far f32 arithmetic may be away.
"""

import json
import os
import sys
import warnings

import numpy as np
import onnxruntime
import pandas
import skl2onnx.common._container
from onnx import numpy_helper  # noqa: F401  (fails early when onnx is missing)
from skl2onnx import to_onnx
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, Int64TensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import (
    AdaBoostClassifier, AdaBoostRegressor, BaggingClassifier, ExtraTreesClassifier, ExtraTreesRegressor,
    GradientBoostingClassifier, GradientBoostingRegressor, HistGradientBoostingClassifier,
    HistGradientBoostingRegressor, IsolationForest, RandomForestClassifier, RandomForestRegressor,
    StackingClassifier, VotingClassifier, VotingRegressor,
)
from sklearn.feature_selection import SelectKBest, VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    ElasticNet, Lasso, LinearRegression, LogisticRegression, LogisticRegressionCV, Perceptron, PoissonRegressor,
    Ridge, RidgeClassifier, SGDClassifier, SGDRegressor,
)
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer, KBinsDiscretizer, LabelEncoder, MaxAbsScaler, MinMaxScaler, Normalizer, OneHotEncoder,
    OrdinalEncoder, PolynomialFeatures, PowerTransformer, RobustScaler, StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

warnings.filterwarnings("ignore")


def whole_numbers(make_node):
    """skl2onnx 1.20 hands booleans to onnx 1.23 where integers belong (HistGradientBoosting): make them integers."""
    def wrapped(*args, **kwargs):
        for key, value in kwargs.items():
            if isinstance(value, (list, tuple)) and any(isinstance(v, (bool, np.bool_)) for v in value):
                kwargs[key] = [int(v) for v in value]
        return make_node(*args, **kwargs)
    return wrapped


skl2onnx.common._container.make_node = whole_numbers(skl2onnx.common._container.make_node)
HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "sklearn")
ROWS = 12


def flowers(seed=1, rows=150, classes=3, features=4):
    """Blobs that overlap a little: the shape of the iris data, generated."""
    rng = np.random.RandomState(seed)
    centres = rng.normal(scale=2.0, size=(classes, features))
    y = np.arange(rows) % classes
    x = centres[y] + rng.normal(scale=1.0, size=(rows, features))
    return x.astype(np.float32), y


def curve(seed=2, rows=150, features=4):
    rng = np.random.RandomState(seed)
    x = rng.normal(size=(rows, features)).astype(np.float32)
    y = np.sin(x[:, 0]) * 3 + x[:, 1] ** 2 - 2 * x[:, 2] + 0.1 * rng.normal(size=rows)
    return x, y


def spec_of(array):
    kind = {"float32": FloatTensorType, "float64": DoubleTensorType, "int64": Int64TensorType}.get(array.dtype.name, StringTensorType)
    return kind([None, array.shape[1]])


def plain(array):
    """JSON values; a NaN becomes null."""
    array = np.asarray(array)
    if array.dtype.kind == "f":
        return [None if np.isnan(v) else float(v) for v in array.ravel()]
    if array.dtype.kind == "b":
        return [bool(v) for v in array.ravel()]
    if array.dtype.kind in "iu":
        return [int(v) for v in array.ravel()]
    return [str(v) for v in array.ravel()]


def named(array):
    return {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32", "bool": "BOOL"}.get(np.asarray(array).dtype.name, "BYTES")


FAILED = []
TABLE = []


def case(name, model, inputs, expected, options=None, initial=None, **kw):
    """inputs: name -> array. expected: a list in the order of the outputs, None for one that is not compared."""
    try:
        initial = initial or [(n, spec_of(a)) for n, a in inputs.items()]
        converted = to_onnx(model, initial_types=initial, options=options, target_opset=kw.pop("opset", {"": 21, "ai.onnx.ml": 3}), **kw)
        for prop in list(converted.metadata_props):
            converted.metadata_props.remove(prop)
        payload = converted.SerializeToString()
        session = onnxruntime.InferenceSession(payload, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        answers = session.run(None, inputs)
    except Exception as error:  # a converter that does not know the model: say so, go on
        FAILED.append((name, repr(error)[:200]))
        return
    outputs = []
    for output, answer, want in zip(names, answers, expected):
        if want is None:
            continue
        if isinstance(answer, list):  # ZipMap: one dictionary per row
            answer = np.array([[row[k] for k in row] for row in answer])
        want = np.asarray(want)
        answer = np.asarray(answer)
        if want.dtype.kind in "fc":
            difference = float(np.max(np.abs(answer.astype(np.float64).ravel() - want.astype(np.float64).ravel())))
            if difference > 1e-4:
                FAILED.append((name, f"ONNX Runtime is {difference} away from scikit-learn on {output}"))
                return
        else:
            difference = 0.0
            same = [str(a) == str(b) for a, b in zip(answer.ravel(), want.ravel())]
            if not all(same):
                FAILED.append((name, f"ONNX Runtime disagrees on {output}: {answer.ravel()[:5]} {want.ravel()[:5]}"))
                return
        outputs.append({"name": output, "datatype": named(want), "shape": list(answer.shape), "data": plain(want), "ort": difference})
    with open(os.path.join(OUT, name + ".onnx"), "wb") as f:
        f.write(payload)
    body = {
        "inputs": [{"name": n, "datatype": named(a), "shape": list(a.shape), "data": plain(a)} for n, a in inputs.items()],
        "outputs": outputs,
    }
    with open(os.path.join(OUT, name + ".json"), "w") as f:
        json.dump(body, f, separators=(",", ":"))
        f.write("\n")
    ops = sorted({(n.domain + "." if n.domain else "") + n.op_type for n in converted.graph.node})
    TABLE.append((name, len(payload), max(o["ort"] for o in outputs), " ".join(ops)))


def classifier(name, model, data=None, scores="predict_proba", zipmap=False, labels=None, **kw):
    x, y = data if data is not None else flowers()
    if labels is not None:
        y = np.array(labels)[y]
    model.fit(x, y)
    some = x[:ROWS]
    wanted = [model.predict(some)]
    if scores:
        values = getattr(model, scores)(some)
        # Two classes: scikit-learn gives the score of the second one, ONNX a column for each.
        wanted.append(np.stack([-values, values], axis=1) if values.ndim == 1 else values)
    options = {} if isinstance(model, LinearSVC) else {"zipmap": zipmap}
    if scores == "decision_function":
        options["raw_scores"] = True
    case(name, model, {"X": some}, wanted, options={id(model): options}, **kw)


def regressor(name, model, data=None, **kw):
    x, y = data if data is not None else curve()
    model.fit(x, y)
    some = x[:ROWS]
    case(name, model, {"X": some}, [model.predict(some).reshape(len(some), -1)], **kw)


def transformer(name, model, x, **kw):
    model.fit(x)
    some = x[:ROWS]
    result = model.transform(some)
    result = result.toarray() if hasattr(result, "toarray") else np.asarray(result)
    case(name, model, {"X": some}, [result], **kw)


def holes(seed=5):
    x, y = flowers(seed)
    x = x.copy()
    x[np.random.RandomState(seed).rand(*x.shape) < 0.15] = np.nan
    x[0, 0] = np.nan
    return x, y


def words(seed=7, rows=120):
    rng = np.random.RandomState(seed)
    return np.stack([rng.choice(["red", "green", "blue"], rows), rng.choice(["s", "m", "l", "xl"], rows)], axis=1)


def classifiers():
    names = ["setosa", "versicolor", "virginica"]
    two = flowers(seed=3, classes=2)
    classifier("logistic", LogisticRegression(max_iter=500))
    classifier("logistic_binary", LogisticRegression(), data=two)
    classifier("logistic_zipmap", LogisticRegression(max_iter=500), zipmap=True)
    classifier("logistic_strings", LogisticRegression(max_iter=500), labels=names)
    classifier("logistic_strings_zipmap", LogisticRegression(max_iter=500), labels=names, zipmap=True)
    classifier("logistic_ovr", OneVsRestClassifier(LogisticRegression()))
    classifier("logistic_cv", LogisticRegressionCV(Cs=3, cv=3, max_iter=500))
    classifier("logistic_decision", LogisticRegression(max_iter=500), scores="decision_function")
    classifier("logistic_scaled", make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)))
    classifier("sgd_log", SGDClassifier(loss="log_loss", random_state=0))
    classifier("sgd_hinge", SGDClassifier(random_state=0), scores="decision_function")
    classifier("perceptron", Perceptron(random_state=0), scores="decision_function")
    classifier("ridge_classifier", RidgeClassifier(), scores="decision_function")
    classifier("linear_svc", LinearSVC(random_state=0), scores="decision_function")
    classifier("linear_svc_binary", LinearSVC(random_state=0), data=two, scores="decision_function")
    classifier("lda", LinearDiscriminantAnalysis())
    classifier("qda", QuadraticDiscriminantAnalysis())
    classifier("gaussian_nb", GaussianNB())
    counts = (np.abs(flowers()[0]).round().astype(np.float32), flowers()[1])
    classifier("multinomial_nb", MultinomialNB(), data=counts)
    classifier("bernoulli_nb", BernoulliNB(), data=counts)
    classifier("tree", DecisionTreeClassifier(max_depth=4, random_state=0))
    classifier("tree_binary", DecisionTreeClassifier(max_depth=4, random_state=0), data=two)
    classifier("tree_strings", DecisionTreeClassifier(max_depth=4, random_state=0), labels=names)
    classifier("tree_one_leaf", DecisionTreeClassifier(max_depth=1, random_state=0), data=two)
    classifier("forest", RandomForestClassifier(n_estimators=10, max_depth=5, random_state=0))
    classifier("forest_binary", RandomForestClassifier(n_estimators=10, max_depth=5, random_state=0), data=two)
    classifier("forest_zipmap", RandomForestClassifier(n_estimators=5, max_depth=4, random_state=0), labels=names, zipmap=True)
    classifier("extra_trees", ExtraTreesClassifier(n_estimators=8, max_depth=5, random_state=0))
    classifier("gradient_boosting", GradientBoostingClassifier(n_estimators=8, max_depth=3, random_state=0))
    classifier("gradient_boosting_binary", GradientBoostingClassifier(n_estimators=8, random_state=0), data=two)
    classifier("hist_gradient_boosting", HistGradientBoostingClassifier(max_iter=8, random_state=0))
    classifier("hist_gradient_boosting_binary", HistGradientBoostingClassifier(max_iter=8, random_state=0), data=two)
    classifier("hist_gradient_boosting_missing", HistGradientBoostingClassifier(max_iter=8, random_state=0), data=holes())
    classifier("ada_boost", AdaBoostClassifier(DecisionTreeClassifier(max_depth=2), n_estimators=5, random_state=0))
    classifier("bagging", BaggingClassifier(DecisionTreeClassifier(max_depth=3), n_estimators=4, random_state=0))
    classifier("voting", VotingClassifier([("a", LogisticRegression(max_iter=500)), ("b", DecisionTreeClassifier(max_depth=3))], voting="soft", flatten_transform=False))
    classifier("stacking", StackingClassifier([("a", LogisticRegression(max_iter=500)), ("b", DecisionTreeClassifier(max_depth=3, random_state=0))], cv=3))
    classifier("calibrated", CalibratedClassifierCV(LogisticRegression(max_iter=500), cv=2))
    classifier("neighbours", KNeighborsClassifier(n_neighbors=3))
    classifier("svc_rbf", SVC(probability=False, decision_function_shape="ovo"), scores=None)
    classifier("svc_probability", SVC(probability=True, random_state=0))
    classifier("svc_binary", SVC(probability=True, random_state=0), data=two)
    classifier("svc_linear", SVC(kernel="linear", probability=True, random_state=0))
    classifier("svc_poly", SVC(kernel="poly", degree=2, probability=True, random_state=0))
    classifier("svc_sigmoid", SVC(kernel="sigmoid", probability=True, random_state=0))
    classifier("nu_svc", NuSVC(probability=True, random_state=0), labels=names)
    classifier("mlp_classifier", MLPClassifier((16, 8), max_iter=60, random_state=0))
    classifier("mlp_classifier_binary", MLPClassifier((16,), activation="tanh", max_iter=60, random_state=0), data=two)
    classifier("mlp_logistic", MLPClassifier((8,), activation="logistic", max_iter=60, random_state=0))
    x64 = (flowers()[0].astype(np.float64), flowers()[1])
    classifier("logistic_double", LogisticRegression(max_iter=500), data=x64)
    classifier("forest_ml5", RandomForestClassifier(n_estimators=4, max_depth=4, random_state=0), opset={"": 21, "ai.onnx.ml": 5})
    x, y = flowers()
    classifier("forest_integers", RandomForestClassifier(n_estimators=4, max_depth=4, random_state=0), data=((x * 10).astype(np.int64), y))
    for old in (9, 12, 15):
        classifier(f"logistic_opset{old}", make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)), opset={"": old, "ai.onnx.ml": 1})


def regressors():
    x, y = curve()
    regressor("linear", LinearRegression())
    regressor("linear_two_targets", LinearRegression(), data=(x, np.stack([y, -2 * y + x[:, 0]], axis=1)))
    regressor("ridge", Ridge())
    regressor("lasso", Lasso(alpha=0.1))
    regressor("elastic_net", ElasticNet(alpha=0.1))
    regressor("poisson", PoissonRegressor(), data=(x, np.abs(y)))
    regressor("sgd_regressor", SGDRegressor(random_state=0))
    regressor("linear_svr", LinearSVR(random_state=0))
    regressor("tree_regressor", DecisionTreeRegressor(max_depth=5, random_state=0))
    regressor("forest_regressor", RandomForestRegressor(n_estimators=10, max_depth=5, random_state=0))
    regressor("forest_two_targets", RandomForestRegressor(n_estimators=4, max_depth=4, random_state=0), data=(x, np.stack([y, -y], axis=1)))
    regressor("extra_trees_regressor", ExtraTreesRegressor(n_estimators=8, max_depth=5, random_state=0))
    regressor("gradient_boosting_regressor", GradientBoostingRegressor(n_estimators=10, random_state=0))
    regressor("hist_gradient_boosting_regressor", HistGradientBoostingRegressor(max_iter=10, random_state=0))
    regressor("ada_boost_regressor", AdaBoostRegressor(DecisionTreeRegressor(max_depth=2), n_estimators=5, random_state=0))
    regressor("voting_regressor", VotingRegressor([("a", LinearRegression()), ("b", DecisionTreeRegressor(max_depth=3))]))
    regressor("neighbours_regressor", KNeighborsRegressor(n_neighbors=3))
    regressor("svr_rbf", SVR())
    regressor("svr_linear", SVR(kernel="linear"))
    regressor("svr_poly", SVR(kernel="poly", degree=2))
    regressor("mlp_regressor", MLPRegressor(hidden_layer_sizes=(16, 8), max_iter=60, random_state=0))
    regressor("forest_regressor_ml5", RandomForestRegressor(n_estimators=4, max_depth=4, random_state=0), opset={"": 21, "ai.onnx.ml": 5})


def transformers():
    x, _ = flowers()
    transformer("standard_scaler", StandardScaler(), x)
    transformer("min_max_scaler", MinMaxScaler(), x)
    transformer("min_max_clip", MinMaxScaler(clip=True), x)
    transformer("max_abs_scaler", MaxAbsScaler(), x)
    transformer("robust_scaler", RobustScaler(), x)
    for norm in ("l1", "l2"):
        transformer(f"normalizer_{norm}", Normalizer(norm=norm), x)
    # With negative numbers ONNX's MAX and scikit-learn's max differ by definition.
    transformer("normalizer_max", Normalizer(norm="max"), np.abs(x))
    transformer("binarizer", Binarizer(threshold=0.3), x)
    transformer("imputer_mean", SimpleImputer(), holes()[0])
    transformer("imputer_median", SimpleImputer(strategy="median"), holes()[0])
    transformer("imputer_constant", SimpleImputer(strategy="constant", fill_value=-1.0), holes()[0])
    transformer("polynomial", PolynomialFeatures(degree=2), x)
    transformer("pca", PCA(n_components=2), x)
    transformer("svd", TruncatedSVD(n_components=2, random_state=0), x)
    transformer("power", PowerTransformer(), x)
    transformer("k_bins", KBinsDiscretizer(n_bins=3, encode="ordinal"), x)
    transformer("variance_threshold", VarianceThreshold(0.5), x)
    transformer("union", FeatureUnion([("a", StandardScaler()), ("b", PCA(n_components=2))]), x)
    transformer("one_hot_strings", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), words())
    integers = np.random.RandomState(3).randint(0, 4, size=(60, 2)).astype(np.int64)
    transformer("one_hot_integers", OneHotEncoder(sparse_output=False), integers)
    transformer("ordinal_strings", OrdinalEncoder(), words())
    transformer("ordinal_integers", OrdinalEncoder(), integers)
    select = SelectKBest(k=2).fit(*flowers())
    case("select_k_best", select, {"X": x[:ROWS]}, [select.transform(x[:ROWS])])
    labels = LabelEncoder().fit(words()[:, 0])
    case("label_encoder", labels, {"X": words()[:ROWS, :1]}, [labels.transform(words()[:ROWS, 0])])
    kmeans = KMeans(n_clusters=3, n_init=2, random_state=0).fit(x)
    case("kmeans", kmeans, {"X": x[:ROWS]}, [kmeans.predict(x[:ROWS]), kmeans.transform(x[:ROWS])])
    forest = IsolationForest(n_estimators=6, random_state=0).fit(x)
    case("isolation_forest", forest, {"X": x[:ROWS]}, [forest.predict(x[:ROWS]).reshape(-1, 1), forest.decision_function(x[:ROWS]).reshape(-1, 1)])
    one = OneClassSVM().fit(x)
    case("one_class_svm", one, {"X": x[:ROWS]}, [one.predict(x[:ROWS]).reshape(-1, 1), one.decision_function(x[:ROWS]).reshape(-1, 1)])


def pipelines():
    rng = np.random.RandomState(11)
    rows = 120
    numbers = rng.normal(size=(rows, 3)).astype(np.float32)
    numbers[rng.rand(rows, 3) < 0.1] = np.nan
    colours = words(rows=rows)
    y = (np.nan_to_num(numbers[:, 0]) + (colours[:, 0] == "red") > 0.2).astype(np.int64)

    frame = pandas.DataFrame({"a": numbers[:, 0], "b": numbers[:, 1], "c": numbers[:, 2], "colour": colours[:, 0], "size": colours[:, 1]})
    for name, last in (
        ("columns_logistic", LogisticRegression()),
        ("columns_forest", RandomForestClassifier(n_estimators=5, max_depth=4, random_state=0)),
        ("columns_boosting", GradientBoostingClassifier(n_estimators=5, random_state=0)),
    ):
        model = Pipeline([
            ("columns", ColumnTransformer([
                ("numbers", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["a", "b", "c"]),
                ("words", OneHotEncoder(handle_unknown="ignore"), ["colour", "size"]),
            ])),
            ("last", last),
        ]).fit(frame, y)
        some = frame[:ROWS]
        inputs = {c: some[[c]].to_numpy().astype(np.float32 if c in "abc" else object) for c in frame.columns}
        initial = [(c, (FloatTensorType if c in "abc" else StringTensorType)([None, 1])) for c in frame.columns]
        case(name, model, inputs, [model.predict(some), model.predict_proba(some)], options={id(model): {"zipmap": False}}, initial=initial)


def main():
    os.makedirs(OUT, exist_ok=True)
    for old in os.listdir(OUT):
        os.remove(os.path.join(OUT, old))
    classifiers()
    regressors()
    transformers()
    pipelines()
    for row in TABLE:
        print("%-34s %7d  ort %.1e  %s" % row)
    for name, why in FAILED:
        print(f"LEFT OUT {name}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()

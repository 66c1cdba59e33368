"""Trains small XGBoost and LightGBM models and writes what the libraries predict.

Usage: python make_golden.py   (with the packages of requirements.txt, Python 3.11)

For each case, golden/ gets the model file and one or two `.expected` files: a header line, then sections of numbers,
one row per line. Numbers are spelled so that reading them back gives the same bits. Everything is seeded.
"""

import json
import pathlib

import lightgbm as lgb
import numpy as np
import xgboost as xgb

OUT = pathlib.Path(__file__).parent / "golden"
ROWS = 40


def spell(value):
    if isinstance(value, (np.integer, int)):
        return str(int(value))
    if np.isnan(value):
        return "nan"
    return repr(value.item()) if isinstance(value, np.float64) else np.format_float_scientific(value, unique=True)


def section(name, values):
    values = np.asarray(values)
    values = values.reshape(values.shape[0], -1)
    lines = [f"{name} {values.shape[1]}"]
    lines += [" ".join(spell(value) for value in row) for row in values]
    return lines


def write_expected(name, model_file, rows, **sections):
    kind = {np.dtype("f4"): "f32", np.dtype("f8"): "f64"}[rows.dtype]
    lines = [f"model {model_file} rows {rows.shape[0]} type {kind}"]
    lines += section("input", rows)
    for key, values in sections.items():
        if values is not None:
            lines += section(key, values)
    (OUT / f"{name}.expected").write_text("\n".join(lines) + "\n")


def data(seed, rows=300, features=5, categories=()):
    """Normal features; the columns in `categories` hold codes below the given number."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype("f4")
    for column, count in dict(categories).items():
        x[:, column] = rng.integers(0, count, rows)
    return rng, x


def signal(x):
    return x[:, 0] * 1.5 - np.abs(np.nan_to_num(x[:, 1])) + (np.nan_to_num(x[:, -1]) % 3 == 1) * 2.0


def punch(rng, x, share=0.15):
    x = x.copy()
    x[rng.random(x.shape) < share] = np.nan
    return x


def edge_rows(rng, x, splits, dtype):
    """Rows of the training data, of which many values lie exactly on a threshold or one step beside it."""
    rows = x[rng.integers(0, len(x), ROWS)].astype(dtype)
    splits = [split for split in splits if np.isfinite(split[1])]
    for row in rows[ROWS // 4 :]:
        for _ in range(3):
            if not splits:
                break
            feature, threshold = splits[rng.integers(len(splits))]
            value = dtype(threshold)
            step = rng.integers(3)
            if step == 1:
                value = np.nextafter(value, dtype(np.inf))
            if step == 2:
                value = np.nextafter(value, dtype(-np.inf))
            row[feature] = value
    for row in rows[-6:]:
        row[rng.integers(len(row))] = np.nan
    rows[-1] = np.nan
    rows[-2] = 0
    return rows


# XGBoost ---------------------------------------------------------------------------------------------------------


def xgb_splits(model):
    booster = model["learner"]["gradient_booster"]
    trees = booster.get("gbtree", booster)["model"].get("trees", [])
    found = []
    for tree in trees:
        for left, kind, feature, threshold in zip(
            tree["left_children"], tree["split_type"], tree["split_indices"], tree["split_conditions"]
        ):
            if left != -1 and kind == 0:
                found.append((feature, threshold))
    return found


def xgb_case(name, params, x, y, rounds=6, types=None, dtype=np.float32, group=None, bounds=None, extra=None,
             keep_names=False, before_save=None, evals=False, feature_names=None):
    rng = np.random.default_rng(len(name))
    make = lambda rows, label=None: xgb.DMatrix(
        rows, label, feature_types=types, enable_categorical=types is not None, feature_names=feature_names
    )
    train = make(x, y)
    if group is not None:
        train.set_group(group)
    if bounds is not None:
        train.set_float_info("label_lower_bound", bounds[0])
        train.set_float_info("label_upper_bound", bounds[1])
    params = {"max_depth": 4, "seed": 7, "nthread": 1, "eta": 0.4, "verbosity": 0, **params}
    if evals:
        held = make(x[::3], np.asarray(y)[::3] + 0.3 * rng.normal(size=len(x[::3])))
        booster = xgb.train(params, train, rounds, evals=[(held, "held")], early_stopping_rounds=2, verbose_eval=False)
        assert booster.best_iteration + 1 < booster.num_boosted_rounds()
    else:
        booster = xgb.train(params, train, rounds)
    if before_save:
        before_save(booster)
    booster.save_model(OUT / f"{name}.json")
    model = json.loads((OUT / f"{name}.json").read_text())
    rows = edge_rows(rng, x, xgb_splits(model), dtype)
    if extra is not None:
        rows = np.concatenate([rows, np.asarray(extra, dtype=dtype)])
    matrix = make(rows)
    objective = model["learner"]["objective"]["name"]
    predict = booster.predict(matrix)
    margin = booster.predict(matrix, output_margin=True)
    classes = None
    if objective.startswith("multi:"):
        classes = predict.astype(int) if predict.ndim == 1 else predict.argmax(axis=1)
    elif objective == "binary:logistic":
        classes = (predict > 0.5).astype(int)
    elif objective.startswith("binary:"):
        classes = (margin > 0).astype(int)
    leaf = None
    if params.get("booster") != "gblinear":
        leaf = booster.predict(matrix, pred_leaf=True).astype(int)
    sections = dict(predict=predict, margin=margin, leaf=leaf)
    sections["class"] = classes
    suffix = "json" if hash_free(name) else "ubj"
    if suffix == "ubj":
        booster.save_model(OUT / f"{name}.ubj")
        (OUT / f"{name}.json").unlink()
    write_expected(name, f"{name}.{suffix}", rows, **sections)


def hash_free(name):
    """Every third case is stored as UBJSON."""
    return sum(name.encode()) % 3 != 0


def xgboost_cases():
    rng, x = data(1)
    y = signal(x)
    positive = np.exp(y / 4)
    binary = (y > 0).astype(int)
    classes = np.digitize(y, [-0.8, 0.6])
    holes = punch(rng, x)

    for objective in ["reg:squarederror", "reg:pseudohubererror", "reg:absoluteerror"]:
        xgb_case("xgb_" + objective.replace(":", "_"), {"objective": objective}, holes, y)
    for objective in ["reg:squaredlogerror", "count:poisson", "reg:gamma", "reg:tweedie", "survival:cox"]:
        xgb_case("xgb_" + objective.replace(":", "_"), {"objective": objective}, holes, positive)
    for objective in ["reg:logistic", "binary:logistic", "binary:logitraw", "binary:hinge"]:
        xgb_case("xgb_" + objective.replace(":", "_"), {"objective": objective}, holes, binary)
    for objective in ["multi:softmax", "multi:softprob"]:
        xgb_case("xgb_" + objective.replace(":", "_"), {"objective": objective, "num_class": 3}, holes, classes)
    for objective in ["rank:pairwise", "rank:ndcg", "rank:map"]:
        label = binary if objective == "rank:map" else classes
        xgb_case("xgb_" + objective.replace(":", "_"), {"objective": objective}, holes, label, group=[30] * 10)
    aft = {"objective": "survival:aft", "aft_loss_distribution": "normal"}
    xgb_case("xgb_survival_aft", aft, holes, None, bounds=(positive, np.where(binary, np.inf, positive)))
    quantile = {"objective": "reg:quantileerror", "quantile_alpha": [0.1, 0.5, 0.9]}
    xgb_case("xgb_reg_quantileerror", quantile, holes, y)

    logistic = {"objective": "binary:logistic"}
    xgb_case("xgb_base_score_set", {**logistic, "base_score": 0.2}, x, binary)
    xgb_case("xgb_base_score_poisson", {"objective": "count:poisson", "base_score": 3.5}, x, positive)
    xgb_case("xgb_base_score_softprob", {"objective": "multi:softprob", "num_class": 3, "base_score": 0.7}, x, classes)
    xgb_case("xgb_all_positive", logistic, x, np.ones(len(x)))
    xgb_case("xgb_all_negative", logistic, x, np.zeros(len(x)))
    xgb_case("xgb_all_zero_counts", {"objective": "count:poisson"}, x, np.zeros(len(x)))
    xgb_case("xgb_dense_f64", logistic, x, binary, dtype=np.float64)
    xgb_case("xgb_names", {"objective": "reg:squarederror"}, x, y, feature_names=["a", "b b", "ç", "d", "e\""])
    xgb_case("xgb_deep", {"objective": "reg:squarederror", "max_depth": 9, "min_child_weight": 0}, holes, y, rounds=3)
    lossguide = {"objective": "reg:squarederror", "grow_policy": "lossguide", "max_depth": 0, "max_leaves": 40}
    xgb_case("xgb_lossguide", {**lossguide, "min_child_weight": 0}, holes, y, rounds=4)
    xgb_case("xgb_exact", {"objective": "reg:squarederror", "tree_method": "exact", "gamma": 1.0}, holes, y)
    forest = {"num_parallel_tree": 5, "subsample": 0.7, "colsample_bynode": 0.6, "eta": 1.0}
    xgb_case("xgb_forest", {**logistic, **forest}, holes, binary, rounds=1)
    boosted_forest = {**forest, "objective": "multi:softprob", "num_class": 3, "eta": 0.5}
    xgb_case("xgb_boosted_forest", boosted_forest, holes, classes, rounds=3)
    xgb_case("xgb_early_stop", {"objective": "reg:squarederror", "eta": 0.9, "max_depth": 6}, x, y, rounds=40, evals=True)

    dart = {"booster": "dart", "rate_drop": 0.4, "skip_drop": 0.1}
    xgb_case("xgb_dart", {**dart, **logistic}, holes, binary, rounds=12)
    xgb_case("xgb_dart_softprob", {**dart, "objective": "multi:softprob", "num_class": 3}, holes, classes, rounds=8)
    forest_norm = {**dart, "objective": "reg:squarederror", "normalize_type": "forest", "sample_type": "weighted"}
    xgb_case("xgb_dart_forest_norm", forest_norm, holes, y + 100, rounds=12)
    linear = {"booster": "gblinear", "eta": 0.5}
    xgb_case("xgb_linear", {**linear, "objective": "reg:squarederror"}, holes, y)
    xgb_case("xgb_linear_logistic", {**linear, **logistic}, holes, binary)
    xgb_case("xgb_linear_softprob", {**linear, "objective": "multi:softprob", "num_class": 3}, x, classes)

    targets = np.stack([y, y * 0.5 + x[:, 2], -y], axis=1)
    xgb_case("xgb_multi_target", {"objective": "reg:squarederror"}, holes, targets)
    vector = {"multi_strategy": "multi_output_tree", "tree_method": "hist"}
    xgb_case("xgb_multi_output", {"objective": "reg:squarederror", **vector}, holes, targets)
    labels = (targets > 0).astype(int)
    xgb_case("xgb_multi_label", logistic, holes, labels)
    xgb_case("xgb_multi_output_labels", {**logistic, **vector}, holes, labels)
    xgb_case("xgb_multi_output_softprob", {"objective": "multi:softprob", "num_class": 3, **vector}, holes, classes)

    rng, x = data(2, rows=600, categories={2: 4, 4: 70})
    y = signal(x) + (x[:, 4] % 7 == 3) * 3 + x[:, 2]
    holes = punch(rng, x)
    types = ["q", "q", "c", "q", "c"]
    odd = np.tile(x[:12], (1, 1)).astype("f8")
    odd[:, 4] = [0, 69, 70, 95, 96, 1000, 16777215, 3.7, 31, 32, 63, 64]
    odd[:, 2] = [0, 1, 2, 3, 4, 31, 32, 0.5, 1.5, 3, 2, 1]
    hist = {"tree_method": "hist", "objective": "reg:squarederror"}
    xgb_case("xgb_category_partition", {**hist, "max_cat_to_onehot": 1}, holes, y, types=types, extra=odd)
    xgb_case("xgb_category_onehot", {**hist, "max_cat_to_onehot": 200}, holes, y, types=types, extra=odd)
    mixed = {"tree_method": "hist", "objective": "multi:softprob", "num_class": 3, "max_cat_to_onehot": 10, "max_depth": 5}
    xgb_case("xgb_category_softprob", mixed, holes, np.digitize(y, [0, 2]), types=types, extra=odd)


# LightGBM --------------------------------------------------------------------------------------------------------


def lgb_splits(booster):
    found = []

    def walk(node):
        if "split_feature" in node:
            if node["decision_type"] == "<=":
                found.append((node["split_feature"], node["threshold"]))
            walk(node["left_child"])
            walk(node["right_child"])

    for tree in booster.dump_model()["tree_info"]:
        walk(tree["tree_structure"])
    return found


def lgb_case(name, params, x, y, rounds=6, categorical="auto", group=None, extra=None, weight=None):
    rng = np.random.default_rng(len(name))
    params = {
        "num_leaves": 12, "min_data_in_leaf": 5, "learning_rate": 0.3, "seed": 7, "verbose": -1, "num_threads": 1,
        "deterministic": True, "min_data_per_group": 5, **params,
    }
    dataset = lgb.Dataset(x, y, categorical_feature=categorical, group=group, weight=weight, params=params)
    booster = lgb.train(params, dataset, rounds)
    booster.save_model(OUT / f"{name}.txt")
    # Predictions of the file, not of the booster in memory: that is what is served.
    booster = lgb.Booster(model_file=str(OUT / f"{name}.txt"))
    for dtype, suffix in [(np.float32, "f32"), (np.float64, "f64")]:
        rows = edge_rows(rng, x, lgb_splits(booster), dtype)
        odd = [np.full(x.shape[1], value) for value in (1e-36, -1e-36, 1e-35, -1e-35, 1e30, -1e30, -0.5)]
        rows = np.concatenate([rows, np.asarray(odd, dtype=dtype)])
        if extra is not None:
            rows = np.concatenate([rows, np.asarray(extra, dtype=dtype)])
        predict = booster.predict(rows)
        classes = None
        if predict.ndim == 2:
            classes = predict.argmax(axis=1)
        elif params["objective"] == "binary":
            classes = (predict > 0.5).astype(int)
        sections = dict(predict=predict, margin=booster.predict(rows, raw_score=True))
        sections["leaf"] = booster.predict(rows, pred_leaf=True).astype(int)
        sections["class"] = classes
        write_expected(f"{name}_{suffix}", f"{name}.txt", rows, **sections)


def lightgbm_cases():
    rng, x = data(3)
    y = signal(x)
    positive = np.exp(y / 4)
    binary = (y > 0).astype(int)
    classes = np.digitize(y, [-0.8, 0.6])
    holes = punch(rng, x)

    for objective in ["regression", "regression_l1", "huber", "fair", "quantile", "mape"]:
        lgb_case(f"lgb_{objective}", {"objective": objective}, holes, y)
    lgb_case("lgb_regression_sqrt", {"objective": "regression", "reg_sqrt": True}, holes, y * 10)
    for objective in ["poisson", "gamma", "tweedie"]:
        lgb_case(f"lgb_{objective}", {"objective": objective}, holes, positive)
    lgb_case("lgb_binary", {"objective": "binary"}, holes, binary)
    lgb_case("lgb_binary_sigmoid", {"objective": "binary", "sigmoid": 2.5}, holes, binary)
    lgb_case("lgb_multiclass", {"objective": "multiclass", "num_class": 3}, holes, classes)
    lgb_case("lgb_multiclassova", {"objective": "multiclassova", "num_class": 3, "sigmoid": 1.5}, holes, classes)
    share = 1 / (1 + np.exp(-y))
    lgb_case("lgb_cross_entropy", {"objective": "cross_entropy"}, holes, share)
    lgb_case("lgb_cross_entropy_lambda", {"objective": "cross_entropy_lambda"}, holes, share)
    for objective in ["lambdarank", "rank_xendcg"]:
        lgb_case(f"lgb_{objective}", {"objective": objective}, holes, classes, group=[30] * 10)

    lgb_case("lgb_missing_none", {"objective": "regression"}, x, y)
    lgb_case("lgb_missing_off", {"objective": "regression", "use_missing": False}, holes, y)
    zeros = holes.copy()
    zeros[rng.random(x.shape) < 0.3] = 0
    lgb_case("lgb_missing_nan_with_zeros", {"objective": "regression"}, zeros, y)
    lgb_case("lgb_missing_zero", {"objective": "regression", "zero_as_missing": True}, zeros, y)
    lgb_case("lgb_dart", {"objective": "binary", "boosting": "dart", "drop_rate": 0.5}, holes, binary, rounds=12)
    bagging = {"bagging_freq": 1, "bagging_fraction": 0.6, "feature_fraction": 0.8}
    lgb_case("lgb_rf", {"objective": "regression", "boosting": "rf", **bagging}, holes, y)
    lgb_case("lgb_rf_binary", {"objective": "binary", "boosting": "rf", **bagging}, holes, binary)
    multi_rf = {"objective": "multiclass", "num_class": 3, "boosting": "rf", **bagging}
    lgb_case("lgb_rf_multiclass", multi_rf, holes, classes)
    lgb_case("lgb_goss", {"objective": "regression", "data_sample_strategy": "goss"}, holes, y)
    lgb_case("lgb_linear", {"objective": "regression", "linear_tree": True}, holes, y)
    lgb_case("lgb_linear_binary", {"objective": "binary", "linear_tree": True}, x, binary)
    lgb_case("lgb_linear_multiclass", {"objective": "multiclass", "num_class": 3, "linear_tree": True}, holes, classes)
    lgb_case("lgb_many_leaves", {"objective": "regression", "num_leaves": 90, "min_data_in_leaf": 1}, holes, y, rounds=3)
    lgb_case("lgb_stump", {"objective": "regression", "num_leaves": 2}, holes, y)
    lgb_case("lgb_constant", {"objective": "regression", "min_data_in_leaf": 5000}, holes, y)

    rng, x = data(4, rows=600, categories={2: 4, 4: 70})
    y = signal(x) + (x[:, 4] % 7 == 3) * 3 + x[:, 2]
    holes = punch(rng, x)
    odd = np.tile(x[:14], (1, 1)).astype("f8")
    odd[:, 4] = [0, 69, 70, 95, 96, 1000, 16777215, 3.7, 31, 32, 63, 64, -1, -0.5]
    odd[:, 2] = [0, 1, 2, 3, 4, 31, 32, 0.5, 1.5, 3, 2, 1, -0.5, -3]
    lgb_case("lgb_category", {"objective": "regression"}, holes, y, categorical=[2, 4], extra=odd)
    lgb_case("lgb_category_dense", {"objective": "binary"}, x, (y > 1).astype(int), categorical=[2, 4], extra=odd)
    both = {"objective": "multiclass", "num_class": 3, "zero_as_missing": True}
    lgb_case("lgb_category_zero_missing", both, holes, np.digitize(y, [0, 2]), categorical=[2, 4], extra=odd)
    lgb_case("lgb_category_linear", {"objective": "regression", "linear_tree": True}, holes, y, categorical=[2, 4], extra=odd)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for stale in OUT.iterdir():
        if not stale.name.startswith("xgb_v"):  # those are of make_golden_old.py
            stale.unlink()
    xgboost_cases()
    lightgbm_cases()
    files = sorted(OUT.iterdir())
    print(f"{len(files)} files, {sum(file.stat().st_size for file in files):,} bytes")

"""Converts a model, and predicts a sample with its own library for a comparison.

Reads its task as JSON from the first argument. Writes the converted model to `out` and, in the form of the host's messages,
sample inputs and expected outputs to `data`. The last line on standard output is JSON: what was done, or an error.
"""

import json
import struct
import sys

NUMPY = {
    "BOOL": "?", "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "UINT8": "u1", "UINT16": "<u2",
    "UINT32": "<u4", "UINT64": "<u8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
ROWS = 256


class Refused(Exception):
    """The conversion is not possible; the message has the remedy."""


def encode(arrays):
    import numpy

    headers, parts = [], []
    for name, value in arrays.items():
        array = numpy.asarray(value)
        kind = next((d for d, code in NUMPY.items() if array.dtype == numpy.dtype(code)), None)
        if kind is None:
            kind = "BYTES"
            encoded = [str(value).encode("utf-8", "surrogateescape") for value in array.ravel()]
            raw = b"".join(struct.pack("<I", len(item)) + item for item in encoded)
        else:
            raw = numpy.ascontiguousarray(array).tobytes()
        headers.append({"name": name, "datatype": kind, "shape": list(array.shape), "size": len(raw)})
        parts.append(raw)
    return headers, b"".join(parts)


def write(task, inputs, expected):
    input_headers, input_body = encode(inputs)
    expected_headers, expected_body = encode(expected)
    header = json.dumps({"inputs": input_headers, "expected": expected_headers}).encode()
    with open(task["data"], "wb") as file:
        file.write(struct.pack("<IQ", len(header), len(input_body) + len(expected_body)))
        file.write(header + input_body + expected_body)


def read_sample(path, names=None):
    """A table or an array."""
    import numpy

    ending = path.rpartition(".")[2].lower()
    if ending == "npy":
        return numpy.load(path, allow_pickle=False)
    import pandas

    if ending in ("csv", "tsv"):
        frame = pandas.read_csv(path, sep="\t" if ending == "tsv" else ",")
    elif ending == "parquet":
        frame = pandas.read_parquet(path)
    elif ending in ("json", "ndjson", "jsonl"):
        frame = pandas.read_json(path, lines=ending != "json")
    else:
        raise Refused(f"--sample {path}: use .csv, .npy, .parquet or .ndjson")
    if names is not None:
        missing = [name for name in names if name not in frame.columns]
        if missing:
            raise Refused(f"--sample {path}: the column {missing[0]} is missing")
        frame = frame[list(names)]
    return frame


def numbers(width):
    """Rows of several scales: models differ in where they split."""
    import numpy

    random = numpy.random.default_rng(0)
    parts = [random.normal(size=(ROWS // 4, width)), random.uniform(0, 10, (ROWS // 4, width))]
    parts += [random.normal(scale=100, size=(ROWS // 4, width)), random.integers(0, 5, (ROWS // 4, width))]
    return numpy.vstack(parts).astype("float32")


# scikit-learn


def load(path):
    try:
        import joblib

        return joblib.load(path)
    except ImportError as error:
        if getattr(error, "name", None) != "joblib":
            raise
        import pickle

        with open(path, "rb") as file:
            return pickle.load(file)


def steps_of(model):
    return [step for _, step in getattr(model, "steps", [])] or [model]


def attribute(model, name):
    for owner in (model, *steps_of(model)[:1]):
        try:
            value = getattr(owner, name, None)
        except Exception:
            value = None
        if value is not None:
            return value
    return None


def categories_of(model, names):
    """Known categories of columns with text."""
    found = {}
    for step in steps_of(model):
        for _, part, columns in getattr(step, "transformers_", []):
            columns = [columns] if isinstance(columns, str) else columns
            if not hasattr(columns, "__iter__"):
                continue
            for encoder in steps_of(part):
                for column, values in zip(columns, getattr(encoder, "categories_", None) or []):
                    if values.dtype.kind in "OUS":
                        name = names[column] if not isinstance(column, str) else column
                        found[name] = [value for value in values if isinstance(value, str)]
    return found


def sklearn_sample(model, task):
    """Rows for the model's library, inputs for ONNX, and their types."""
    import numpy
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    names = attribute(model, "feature_names_in_")
    names = [str(name) for name in names] if names is not None else None
    width = attribute(model, "n_features_in_")
    first = steps_of(model)[0]
    text = hasattr(first, "build_analyzer")
    sample = read_sample(task["sample"], names) if task.get("sample") else None
    if text:
        if sample is None:
            words = [word for word in list(getattr(first, "vocabulary_", {}) or {"text": 0})[:500]]
            random = numpy.random.default_rng(0)
            rows = [" ".join(random.choice(words, 6)) for _ in range(ROWS)]
        else:
            rows = [str(value) for value in numpy.asarray(sample).reshape(-1)]
        rows = numpy.array(rows, dtype=object)
        return rows, {"input": rows.reshape(-1, 1)}, [("input", StringTensorType([None, 1]))]
    categories = categories_of(model, names) if names is not None else {}
    if sample is None:
        if width is None:
            raise Refused("it does not tell how many features it takes: add --sample data.csv")
        sample = numbers(int(width))
        if names is not None:
            import pandas

            sample = pandas.DataFrame(sample, columns=names)
            random = numpy.random.default_rng(0)
            for name, values in categories.items():
                sample[name] = random.choice(values or ["a"], len(sample))
    if names is not None and not hasattr(sample, "columns"):
        import pandas

        sample = pandas.DataFrame(sample, columns=names)
    if hasattr(sample, "columns") and (names is None or not (categories or is_mixed(sample))):
        sample = sample.to_numpy()
    if hasattr(sample, "columns"):
        inputs, types = {}, []
        for name in sample.columns:
            is_text = name in categories or not numpy.issubdtype(sample[name].to_numpy().dtype, numpy.number)
            if is_text:
                values = sample[name].astype(str).to_numpy(dtype=object)
            else:
                values = sample[name].to_numpy().astype("float32")
                sample[name] = values.astype("float64")
            inputs[name] = values.reshape(-1, 1)
            types.append((name, (StringTensorType if is_text else FloatTensorType)([None, 1])))
        return sample, inputs, types
    array = numpy.asarray(sample)
    if array.ndim != 2:
        raise Refused(f"the sample has the shape {list(array.shape)}: the model takes rows of features")
    if array.dtype.kind in "OUS":
        array = array.astype(str).astype(object)
        return array, {"X": array}, [("X", StringTensorType([None, array.shape[1]]))]
    array = array.astype("float32")
    rows = array.astype("float64")
    if names is not None:
        import pandas

        rows = pandas.DataFrame(rows, columns=names)
    return rows, {"X": array}, [("X", FloatTensorType([None, array.shape[1]]))]


def is_mixed(frame):
    import numpy

    return any(not numpy.issubdtype(kind, numpy.number) for kind in frame.dtypes)


def register_boosters(model):
    """Converters of XGBoost and LightGBM as steps of a pipeline."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes as classifier,
        calculate_linear_regressor_output_shapes as regressor,
    )

    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    if "xgboost" in sys.modules:
        import xgboost
        from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost

        update_registered_converter(xgboost.XGBClassifier, "XgbC", classifier, convert_xgboost, options=options)
        update_registered_converter(xgboost.XGBRegressor, "XgbR", regressor, convert_xgboost)
    if "lightgbm" in sys.modules:
        import lightgbm
        from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm

        update_registered_converter(lightgbm.LGBMClassifier, "LgbC", classifier, convert_lightgbm, options=options)
        update_registered_converter(
            lightgbm.LGBMRegressor, "LgbR", regressor, convert_lightgbm, options={"split": None}
        )


def convert_sklearn(task):
    model = load(task["file"])
    import numpy
    from skl2onnx import to_onnx
    from skl2onnx.common.exceptions import MissingConverter, MissingShapeCalculator

    rows, inputs, types = sklearn_sample(model, task)
    if "xgboost" in sys.modules or "lightgbm" in sys.modules:
        register_boosters(model)
    is_classifier = callable(getattr(model, "predict_proba", None)) or getattr(model, "classes_", None) is not None
    options = {id(model): {"zipmap": False}} if is_classifier else None
    opset = {"": 17, "ai.onnx.ml": 3}
    try:
        try:
            onnx = to_onnx(model, initial_types=types, options=options, target_opset=opset)
        except NameError:
            # The converter has no such option.
            onnx = to_onnx(model, initial_types=types, target_opset=opset)
    except (MissingConverter, MissingShapeCalculator) as error:
        raise Refused(f"skl2onnx has no converter for a part of it: {first_line(error)}")
    with open(task["out"], "wb") as file:
        file.write(onnx.SerializeToString())
    names = [output.name for output in onnx.graph.output]
    methods = ["predict", "predict_proba"] if is_classifier else ["predict"]
    if not callable(getattr(model, "predict", None)):
        methods = ["transform"]
    if methods[-1] == "predict_proba" and not callable(getattr(model, "predict_proba", None)):
        methods = methods[:1]
    expected = {}
    for name, method in zip(names, methods):
        value = getattr(model, method)(rows)
        value = value.toarray() if hasattr(value, "toarray") else numpy.asarray(value)
        if value.dtype.kind == "f":
            value = value.astype("float64")
        if value.dtype.kind in "OUS":
            value = value.astype(str).astype(object)
        expected[name] = value
    write(task, inputs, expected)
    return {"tool": "skl2onnx", "rows": len(rows)}


# Boosters


def convert_xgboost(task):
    import xgboost

    if task["file"].endswith((".pkl", ".pickle", ".joblib", ".sav")):
        model = load(task["file"])
    else:
        model = xgboost.Booster(model_file=task["file"])
    booster = model.get_booster() if hasattr(model, "get_booster") else model
    booster.save_model(task["out"])
    rows = sample_array(task, booster.num_features())
    predictions = booster.predict(xgboost.DMatrix(rows, feature_names=booster.feature_names), validate_features=False)
    write(task, {"input-0": rows}, {"predict": predictions.astype("float32")})
    return {"tool": "xgboost", "rows": len(rows), "note": probabilities_note(model)}


def convert_lightgbm(task):
    model = load(task["file"])
    booster = getattr(model, "booster_", model)
    booster.save_model(task["out"])
    rows = sample_array(task, booster.num_feature()).astype("float64")
    write(task, {"input-0": rows}, {"predict": booster.predict(rows)})
    return {"tool": "lightgbm", "rows": len(rows), "note": probabilities_note(model)}


def probabilities_note(model):
    if type(model).__name__.endswith("Classifier"):
        return "it answers with probabilities, as the library's Booster does, not with labels"
    return None


def sample_array(task, width):
    import numpy

    if task.get("sample"):
        return numpy.asarray(read_sample(task["sample"])).astype("float32")
    return numbers(width)


def convert_catboost(task):
    import catboost
    import numpy

    if task["file"].endswith((".pkl", ".pickle", ".joblib", ".sav")):
        model = load(task["file"])
    else:
        model = catboost.CatBoost()
        model.load_model(task["file"])
    if model.get_cat_feature_indices():
        raise Refused("CatBoost exports no categorical features to ONNX: serve it with --allow-python")
    model.save_model(task["out"], format="onnx")
    rows = sample_array(task, len(model.feature_names_))
    loss = str(model.get_all_params().get("loss_function", "")).partition(":")[0]
    if loss in ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll"):
        expected = {"label": numpy.asarray(model.predict(rows, prediction_type="Class")).reshape(-1)}
        if expected["label"].dtype.kind == "f":
            expected["label"] = expected["label"].astype("int64")
    else:
        expected = {"predictions": numpy.asarray(model.predict(rows)).astype("float64")}
    write(task, {"features": rows}, expected)
    return {"tool": "catboost", "rows": len(rows)}


# Networks


def random_arrays(specs):
    import numpy

    random = numpy.random.default_rng(0)
    arrays = {}
    for name, shape, kind in specs:
        shape = [4 if index == 0 else (1 if d is None or d < 0 else int(d)) for index, d in enumerate(shape)]
        values = random.normal(size=shape) if "float" in kind else random.integers(0, 2, shape)
        arrays[name] = values.astype(kind)
    return arrays


def given_arrays(task, specs):
    if not task.get("sample"):
        return random_arrays(specs)
    import numpy

    (name, _, kind), *others = specs
    if others:
        raise Refused("--sample has one array, and the model has several inputs: leave it out")
    return {name: numpy.asarray(read_sample(task["sample"])).astype(kind)}


def convert_keras(task):
    import keras
    import numpy

    model = keras.saving.load_model(task["file"], compile=False)
    specs = [(t.name.partition(":")[0], list(t.shape), str(getattr(t.dtype, "name", t.dtype))) for t in model.inputs]
    arrays = given_arrays(task, specs)
    results = model(list(arrays.values()) if len(arrays) > 1 else next(iter(arrays.values())), training=False)
    results = results if isinstance(results, (list, tuple)) else [results]
    if hasattr(model, "export") and keras.__version__.startswith("3"):
        import tensorflow
        import tf2onnx

        signature = [
            tensorflow.TensorSpec([None, *shape[1:]], dtype=kind, name=name) for name, shape, kind in specs
        ]
        function = tensorflow.function(lambda *given: model(list(given) if len(given) > 1 else given[0], training=False))
        tf2onnx.convert.from_function(function, input_signature=signature, opset=17, output_path=task["out"])
    else:
        import tf2onnx

        tf2onnx.convert.from_keras(model, opset=17, output_path=task["out"])
    import onnx

    outputs = [o.name for o in onnx.load(task["out"]).graph.output]
    inputs = [i.name for i in onnx.load(task["out"]).graph.input]
    write(
        task,
        dict(zip(inputs, arrays.values())),
        {name: numpy.asarray(result) for name, result in zip(outputs, results)},
    )
    return {"tool": "tf2onnx", "rows": 4}


def convert_saved_model(task):
    return convert_tensorflow(task, ["--saved-model", task["file"]])


def convert_tflite(task):
    return convert_tensorflow(task, ["--tflite", task["file"]])


def convert_tensorflow(task, source):
    import subprocess

    command = [sys.executable, "-m", "tf2onnx.convert", *source, "--output", task["out"], "--opset", "17"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Refused(f"tf2onnx failed: {first_line(done.stderr.strip().splitlines()[-1:] or ['no reason given'])}")
    import onnx
    import tensorflow

    graph = onnx.load(task["out"]).graph
    names, outputs = [i.name for i in graph.input], [o.name for o in graph.output]
    if source[0] == "--tflite":
        interpreter = tensorflow.lite.Interpreter(model_path=task["file"])
        given = interpreter.get_input_details()
        arrays = given_arrays(task, [(g["name"], list(g["shape"]), g["dtype"].__name__) for g in given])
        for detail, array in zip(given, arrays.values()):
            interpreter.resize_tensor_input(detail["index"], array.shape)
        interpreter.allocate_tensors()
        for detail, array in zip(given, arrays.values()):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        results = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    else:
        function = tensorflow.saved_model.load(task["file"]).signatures["serving_default"]
        given = function.structured_input_signature[1]
        arrays = given_arrays(task, [(name, list(t.shape), t.dtype.name) for name, t in given.items()])
        answer = function(**{name: tensorflow.constant(array) for name, array in arrays.items()})
        results = [answer[name].numpy() for name in outputs if name in answer] or [v.numpy() for v in answer.values()]
    write(task, dict(zip(names, arrays.values())), dict(zip(outputs, results)))
    return {"tool": "tf2onnx", "rows": 4}


def convert_torchscript(task):
    import torch

    if not task.get("sample"):
        raise Refused("TorchScript does not tell the shape of its input: add --sample data.npy with a few rows")
    model = torch.jit.load(task["file"], map_location="cpu").eval()
    array = read_sample(task["sample"])
    array = array.to_numpy().astype("float32") if hasattr(array, "to_numpy") else array
    example = torch.from_numpy(array)
    torch.onnx.export(
        model, (example,), task["out"], dynamo=False, input_names=["input-0"], output_names=["output-0"],
        dynamic_axes={"input-0": {0: "rows"}, "output-0": {0: "rows"}},
    )  # fmt: skip
    with torch.inference_mode():
        result = model(example)
    write(task, {"input-0": array}, {"output-0": result.numpy()})
    return {"tool": "torch.onnx", "rows": len(array)}


def convert_torch_export(task):
    import torch

    program = torch.export.load(task["file"])
    example = program.example_inputs[0] if program.example_inputs else None
    if not example:
        raise Refused("it was saved without example inputs: export it with torch.onnx.export where its code is")
    torch.onnx.export(program, (), task["out"], dynamo=True, external_data=False)
    import onnx

    graph = onnx.load(task["out"]).graph
    with torch.inference_mode():
        result = program.module()(*example)
    results = result if isinstance(result, (list, tuple)) else [result]
    inputs = dict(zip([i.name for i in graph.input], [t.numpy() for t in example]))
    write(task, inputs, dict(zip([o.name for o in graph.output], [r.numpy() for r in results])))
    return {"tool": "torch.onnx", "rows": len(example[0])}


CONVERTERS = {
    "sklearn": convert_sklearn,
    "xgboost": convert_xgboost,
    "lightgbm": convert_lightgbm,
    "catboost": convert_catboost,
    "keras": convert_keras,
    "saved-model": convert_saved_model,
    "tflite": convert_tflite,
    "torchscript": convert_torchscript,
    "torch-export": convert_torch_export,
}


def first_line(error):
    if isinstance(error, list):
        error = error[0]
    return " ".join(str(error).strip().splitlines()[0].split())[:500] if str(error).strip() else type(error).__name__


def main():
    task = json.loads(sys.argv[1])
    if task.get("import_path"):
        sys.path.insert(0, task["import_path"])
    try:
        result = CONVERTERS[task["converter"]](task)
    except Refused as error:
        result = {"error": str(error)}
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {first_line(error)}"}
    print("\n" + json.dumps({"gantry": result}), flush=True)


main()

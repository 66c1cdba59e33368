"""Host of one model: answers requests that arrive on the socket at standard input.

The process has no network where the kernel allows that, a memory limit, and an environment without the variables of its
parent. It exits when the parent closes the socket, also during a run.

A message is the length of its JSON header (4 bytes), the length of its body (8 bytes), the header, and the raw tensors
as the body; numbers are little-endian.
"""

import ctypes
import json
import os
import queue
import resource
import socket
import struct
import sys
import threading

CLONE_NEWUSER, CLONE_NEWNET, PR_SET_NO_NEW_PRIVS = 0x10000000, 0x40000000, 38
NUMPY = {
    "BOOL": "?", "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "UINT8": "u1", "UINT16": "<u2",
    "UINT32": "<u4", "UINT64": "<u8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


class RequestError(Exception):
    """The request does not fit the model."""


def isolate():
    """Leaves the network. Returns whether the kernel allowed it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return libc.unshare(CLONE_NEWNET) == 0 or libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0


def status_bytes(name):
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    return 0


def limit_memory(limit):
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


class Connection:
    def __init__(self, descriptor):
        self.socket = socket.socket(fileno=descriptor)

    def read_exactly(self, count):
        data = bytearray(count)
        view = memoryview(data)
        while count:
            read = self.socket.recv_into(view[-count:], count)
            if not read:
                os._exit(0)
            count -= read
        return data

    def receive(self):
        header, body = struct.unpack("<IQ", self.read_exactly(12))
        return json.loads(self.read_exactly(header)), self.read_exactly(body)

    def send(self, header, parts=()):
        text = json.dumps(header).encode()
        size = sum(len(part) for part in parts)
        self.socket.sendall(struct.pack("<IQ", len(text), size) + text)
        for part in parts:
            self.socket.sendall(part)


def decode(specs, body):
    """Arrays by name, in the order of the request."""
    import numpy

    arrays, offset = {}, 0
    for spec in specs:
        raw = memoryview(body)[offset : offset + spec["size"]]
        offset += spec["size"]
        if spec["datatype"] == "BYTES":
            values, at = [], 0
            while at < len(raw):
                (length,) = struct.unpack_from("<I", raw, at)
                values.append(bytes(raw[at + 4 : at + 4 + length]).decode("utf-8", "surrogateescape"))
                at += 4 + length
            flat = numpy.empty(len(values), dtype=object)
            flat[:] = values
        elif spec["datatype"] in NUMPY:
            flat = numpy.frombuffer(raw, dtype=NUMPY[spec["datatype"]])
        elif spec["datatype"] == "BF16":
            flat = (numpy.frombuffer(raw, dtype="<u2").astype("<u4") << 16).view("<f4")
        else:
            raise RequestError(f"input {spec['name']}: datatype {spec['datatype']} is not supported")
        arrays[spec["name"]] = flat.reshape(spec["shape"])
    return arrays


def encode(outputs):
    """Headers and raw bytes of outputs by name."""
    import numpy

    headers, parts = [], []
    for name, value in outputs.items():
        array = numpy.asarray(value)
        kind = next((d for d, code in NUMPY.items() if array.dtype == numpy.dtype(code)), None)
        if kind is None and array.dtype.kind in "iufb":
            array = array.astype("<f8")
            kind = "FP64"
        if kind is None:
            kind = "BYTES"
            encoded = []
            for value in array.ravel():
                raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
                encoded.append(struct.pack("<I", len(raw)) + raw)
            raw = b"".join(encoded)
        else:
            raw = numpy.ascontiguousarray(array).tobytes()
        headers.append({"name": name, "datatype": kind, "shape": list(array.shape), "size": len(raw)})
        parts.append(raw)
    return headers, parts


def dense(value):
    return value.toarray() if hasattr(value, "toarray") else value


def by_name(value, name="predict"):
    """Outputs by name, from whatever a model returns."""
    if isinstance(value, dict):
        return {str(key): dense(item) for key, item in value.items()}
    if hasattr(value, "columns") and hasattr(value, "to_numpy"):
        return {str(column): value[column].to_numpy() for column in value.columns}
    if isinstance(value, (tuple, list)) and value and hasattr(value[0], "shape"):
        if len(value) == 1:
            return {name: dense(value[0])}
        return {f"{name}_{index}": dense(item) for index, item in enumerate(value)}
    return {name: dense(value)}


class Estimator:
    """An estimator with scikit-learn's interface."""

    OPTIONAL = ("predict_proba", "predict_log_proba", "decision_function", "score_samples", "transform")

    def __init__(self, model):
        self.model = model
        methods = [m for m in ("predict", *self.OPTIONAL) if callable(self.method(m))]
        if not methods:
            kind = type(model)
            raise TypeError(
                f"it contains a {kind.__module__}.{kind.__qualname__}, which has no method predict, predict_proba or "
                "transform: save the model itself"
            )
        self.methods = methods
        names = self.attribute("feature_names_in_")
        self.names = [str(name) for name in names] if names is not None else None
        self.features = self.attribute("n_features_in_")
        self.text = any(self.is_text(step) for step in self.steps())

    def method(self, name):
        try:
            return getattr(self.model, name, None)
        except Exception:
            return None

    def attribute(self, name):
        for owner in (self.model, *self.steps()[:1]):
            try:
                value = getattr(owner, name, None)
            except Exception:
                value = None
            if value is not None:
                return value
        return None

    def steps(self):
        return [step for _, step in getattr(self.model, "steps", [])] or [self.model]

    @staticmethod
    def is_text(step):
        return hasattr(step, "build_analyzer") or type(step).__name__ == "HashingVectorizer"

    def text_columns(self):
        """Names of columns with text, by the categories of encoders."""
        text = set()
        for step in self.steps():
            for _, part, columns in getattr(step, "transformers_", []):
                if isinstance(columns, str):
                    text.add(columns)
                    continue
                for encoder in [s for _, s in getattr(part, "steps", [])] or [part]:
                    categories = getattr(encoder, "categories_", None)
                    for column, values in zip(columns, categories or []) if hasattr(columns, "__iter__") else []:
                        if getattr(values, "dtype", None) is not None and values.dtype.kind in "OUS":
                            text.add(column)
        return text

    def inputs(self):
        if self.text and self.names is None:
            return [{"name": "input-0", "datatype": "BYTES", "shape": [-1]}]
        text = self.text_columns()
        if self.names is not None and text:
            kinds = [(name, "BYTES" if name in text else "FP64") for name in self.names]
            return [{"name": name, "datatype": kind, "shape": [-1, 1]} for name, kind in kinds]
        width = int(self.features) if self.features is not None else -1
        kind = "BYTES" if self.all_text() else "FP64"
        return [{"name": "input-0", "datatype": kind, "shape": [-1, width]}]

    def all_text(self):
        first = self.steps()[0]
        categories = getattr(first, "categories_", None)
        return bool(categories) and all(getattr(c, "dtype", None) is not None and c.dtype.kind in "OU" for c in categories)

    def outputs(self):
        return [self.methods[0]]

    def rows(self, arrays):
        import numpy

        if len(arrays) == 1 and not (self.names and len(self.names) == 1):
            (array,) = arrays.values()
            if self.text and self.names is None:
                return array.reshape(-1)
            if array.ndim == 1 and self.features == array.shape[0]:
                array = array.reshape(1, -1)
            if self.names is not None and array.ndim == 2 and array.shape[1] == len(self.names):
                import pandas

                return pandas.DataFrame(array, columns=self.names)
            return array
        columns = {name: array.reshape(-1) for name, array in arrays.items()}
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1:
            raise RequestError("the inputs have different numbers of rows")
        if self.names is not None:
            missing = [name for name in self.names if name not in columns]
            if missing and len(columns) == len(self.names) == 1:
                columns = dict(zip(self.names, columns.values()))
            elif missing:
                raise RequestError(f"input {missing[0]} is missing: the model takes {', '.join(self.names)}")
            import pandas

            return pandas.DataFrame({name: columns[name] for name in self.names})
        return numpy.column_stack(list(columns.values()))

    def check(self, rows):
        shape = getattr(rows, "shape", ())
        if self.features is not None and not self.text and len(shape) == 2 and shape[1] != self.features:
            raise RequestError(f"expected shape [-1,{self.features}], got {list(shape)}")

    def infer(self, arrays, wanted):
        rows = self.rows(arrays)
        self.check(rows)
        outputs = {}
        for name in wanted or self.outputs():
            if name not in self.methods:
                raise RequestError(f"output {name}: the model has {', '.join(self.methods)}")
            result = dense(getattr(self.model, name)(rows))
            if isinstance(result, list) and result and getattr(result[0], "ndim", 0) == 2:
                # One array of probabilities for each output of a multi-output classifier.
                outputs.update({f"{name}_{i}": part for i, part in enumerate(result)})
            else:
                outputs.update(by_name(result, name) if not hasattr(result, "ndim") else {name: result})
        return outputs


class Function:
    """A model that is called with arrays and returns arrays."""

    def __init__(self, call, inputs, outputs):
        self.call, self.specs, self.names = call, inputs, outputs

    def inputs(self):
        return self.specs

    def outputs(self):
        return self.names

    def infer(self, arrays, wanted):
        outputs = by_name(self.call(arrays), self.names[0] if self.names else "predict")
        unknown = [name for name in wanted if name not in outputs]
        if unknown:
            raise RequestError(f"output {unknown[0]}: the model has {', '.join(outputs)}")
        return {name: outputs[name] for name in wanted or outputs}


def single(arrays):
    if len(arrays) != 1:
        raise RequestError(f"the model takes one input, got {', '.join(arrays) or 'none'}")
    return next(iter(arrays.values()))


def load_pickle(path):
    try:
        import joblib

        model = joblib.load(path)
    except ImportError as error:
        if getattr(error, "name", None) != "joblib":
            raise
        import pickle

        with open(path, "rb") as file:
            model = pickle.load(file)
    return wrap(model)


def load_skops(path):
    import skops.io

    return wrap(skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path)))


def wrap(model):
    """The interface of an object out of a pickle."""
    import numpy

    package = type(model).__module__.partition(".")[0]
    if package == "xgboost" and type(model).__name__ == "Booster":
        import xgboost

        names = model.feature_names
        call = lambda arrays: model.predict(xgboost.DMatrix(numpy.asarray(single(arrays)), feature_names=names))
        return Function(call, [spec("FP32", [-1, model.num_features()])], ["predict"])
    if package == "lightgbm" and type(model).__name__ == "Booster":
        call = lambda arrays: model.predict(numpy.asarray(single(arrays)))
        return Function(call, [spec("FP64", [-1, model.num_feature()])], ["predict"])
    if package == "torch":
        return torch_module(model)
    if package in ("keras", "tensorflow"):
        return keras_model(model)
    return Estimator(model)


def spec(datatype, shape, name="input-0"):
    return {"name": name, "datatype": datatype, "shape": [-1 if d is None else int(d) for d in shape]}


def load_catboost(path):
    import catboost

    model = catboost.CatBoost()
    model.load_model(path)
    loss = str(model.get_all_params().get("loss_function", "")).partition(":")[0]
    if loss in ("Logloss", "CrossEntropy", "MultiClass", "MultiClassOneVsAll"):
        model = catboost.CatBoostClassifier()
        model.load_model(path)
    features, categorical = len(model.feature_names_), set(model.get_cat_feature_indices())
    estimator = Estimator(model)
    estimator.features, estimator.names = features, None
    if categorical:
        names = [str(n) for n in model.feature_names_]
        estimator.names = names
        estimator.text_columns = lambda: {names[i] for i in categorical}
    return estimator


def load_xgboost(path):
    import xgboost

    return wrap(xgboost.Booster(model_file=path))


def load_keras(path):
    import keras

    return keras_model(keras.saving.load_model(path, compile=False))


def keras_model(model):
    import numpy

    inputs = [
        spec(datatype_of(str(t.dtype)), [-1, *list(t.shape)[1:]], t.name.partition(":")[0]) for t in model.inputs
    ]
    names = list(model.output_names)

    def call(arrays):
        if len(inputs) == 1:
            given = [single(arrays)]
        else:
            missing = [i["name"] for i in inputs if i["name"] not in arrays]
            if missing:
                raise RequestError(f"input {missing[0]} is missing")
            given = [arrays[i["name"]] for i in inputs]
        results = model(given if len(given) > 1 else given[0], training=False)
        results = results if isinstance(results, (list, tuple)) else [results]
        return {name: numpy.asarray(result) for name, result in zip(names, results)}

    return Function(call, inputs, names)


def load_saved_model(path):
    import tensorflow

    loaded = tensorflow.saved_model.load(path)
    if "serving_default" not in loaded.signatures:
        raise TypeError(f"its signatures are {', '.join(loaded.signatures) or 'none'}: export one as serving_default")
    function = loaded.signatures["serving_default"]
    given = function.structured_input_signature[1]
    inputs = [spec(datatype_of(t.dtype.name), list(t.shape), name) for name, t in given.items()]
    kinds = {name: t.dtype for name, t in given.items()}

    def call(arrays):
        if len(kinds) == 1:
            arrays = {next(iter(kinds)): single(arrays)}
        tensors = {name: tensorflow.constant(a, dtype=kinds[name]) for name, a in arrays.items() if name in kinds}
        return {name: value.numpy() for name, value in function(**tensors).items()}

    call.loaded = loaded
    return Function(call, inputs, list(function.structured_outputs))


def datatype_of(name):
    names = {"float16": "FP16", "float32": "FP32", "float64": "FP64", "bool": "BOOL", "string": "BYTES"}
    return names.get(name) or name.upper()


def load_torchscript(path):
    import torch

    return torch_module(torch.jit.load(path, map_location="cpu"))


def load_torch_export(path):
    import torch

    program = torch.export.load(path)
    given = [p for p in program.example_inputs[0]] if program.example_inputs else []
    module = torch_module(program.module(), train=False)
    if given:
        module.specs = [
            spec(datatype_of(str(t.dtype).rpartition(".")[2]), [-1, *list(t.shape)[1:]], f"input-{i}")
            for i, t in enumerate(given)
        ]
    return module


def torch_module(module, train=True):
    import torch

    if train:
        module.eval()

    def call(arrays):
        with torch.inference_mode():
            results = module(*[torch.from_numpy(a.copy()) for a in arrays.values()])
        if isinstance(results, dict):
            return {name: value.numpy() for name, value in results.items()}
        results = results if isinstance(results, (list, tuple)) else [results]
        return [value.numpy() for value in results]

    first = next(iter(module.parameters()), None)
    kind = datatype_of(str(first.dtype).rpartition(".")[2]) if first is not None else "FP32"
    shape = [-1, int(first.shape[1])] if first is not None and first.ndim == 2 else [-1, -1]
    return Function(call, [spec(kind, shape)], ["predict"])


def load_mlflow(path):
    import mlflow.pyfunc
    import numpy

    model = mlflow.pyfunc.load_model(path)
    schema = model.metadata.get_input_schema()
    names = schema.input_names() if schema is not None and not schema.is_tensor_spec() else []

    def call(arrays):
        if not names:
            return model.predict(numpy.asarray(single(arrays)))
        import pandas

        columns = schema.input_types()
        if len(arrays) == 1 and len(names) > 1:
            array = single(arrays)
            if array.ndim != 2 or array.shape[1] != len(names):
                raise RequestError(f"expected shape [-1,{len(names)}], got {list(array.shape)}")
            arrays = {name: array[:, index] for index, name in enumerate(names)}
        elif len(arrays) == 1:
            arrays = {names[0]: single(arrays)}
        missing = [name for name in names if name not in arrays]
        if missing:
            raise RequestError(f"input {missing[0]} is missing: the model takes {', '.join(names)}")
        frame = pandas.DataFrame({name: arrays[name].reshape(-1) for name in names})
        for name, kind in zip(names, columns):
            frame[name] = frame[name].astype(kind.to_pandas())
        return model.predict(frame)

    if names:
        types = [datatype_of(getattr(kind.to_numpy(), "name", "string")) for kind in schema.input_types()]
        types = [kind if kind in NUMPY else "BYTES" for kind in types]
        inputs = [spec(kind, [-1, 1], name) for name, kind in zip(names, types)]
        if len(set(types)) == 1 and types[0] != "BYTES":
            inputs = [spec(types[0], [-1, len(names)])]
    else:
        tensor = schema.inputs[0] if schema is not None else None
        inputs = [spec(datatype_of(tensor.type.name), tensor.shape)] if tensor is not None else [spec("FP64", [-1, -1])]
    return Function(call, inputs, ["predict"])


def load_torch_pickle(path):
    import torch

    return torch_module(torch.load(path, map_location="cpu", weights_only=False))


LOADERS = {
    "pickle": load_pickle,
    "skops": load_skops,
    "catboost": load_catboost,
    "xgboost": load_xgboost,
    "keras": load_keras,
    "savedmodel": load_saved_model,
    "torchscript": load_torchscript,
    "torch-export": load_torch_export,
    "torch-pickle": load_torch_pickle,
    "mlflow": load_mlflow,
}


def reason(error):
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:2000] if text else type(error).__name__


def main():
    isolated = isolate()
    connection = Connection(os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    # What a model prints must not get lost in a closed pipe.
    os.dup2(2, 1)
    config, _ = connection.receive()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory(config["load_memory"])
    if config.get("import_path"):
        sys.path.insert(0, config["import_path"])
    try:
        model = LOADERS[config["loader"]](config["path"])
        ready = {"inputs": model.inputs(), "outputs": model.outputs()}
    except BaseException as error:
        connection.send({"error": reason(error)})
        return
    ready["memory"] = status_bytes("VmRSS")
    ready["isolated"] = isolated
    limit_memory(status_bytes("VmData") + config["run_memory"])
    connection.send({"ready": ready})
    requests = queue.Queue(maxsize=1)

    def read():
        while True:
            requests.put(connection.receive())

    # This thread only reads, so that the process exits with its parent even during a run.
    threading.Thread(target=read, daemon=True).start()
    while True:
        header, body = requests.get()
        try:
            headers, parts = encode(model.infer(decode(header["inputs"], body), header["outputs"]))
        except MemoryError:
            connection.send({"error": "a run exceeded its memory limit; raise the parameter max_run_memory"})
        except RequestError as error:
            connection.send({"error": str(error), "request": True})
        except (ValueError, TypeError) as error:
            connection.send({"error": reason(error), "request": True})
        except Exception as error:
            connection.send({"error": reason(error)})
        else:
            connection.send({"outputs": headers}, parts)


main()

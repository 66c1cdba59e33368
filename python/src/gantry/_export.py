"""Files of trained models."""

import pickle
import sys
from pathlib import Path
from typing import Any, Callable, Tuple

import numpy as np

from gantry._error import GantryError

#: Rows of a sample that are compared.
MAX_ROWS = 1000
Run = Callable[..., str]


def export(
    model: Any, sample: Any, name: str, directory: Path, allow_python: bool, run: Run
) -> Tuple[Path, str]:
    """Writes a model, and returns its file and the requirement of its Model."""
    if isinstance(model, (str, Path)):
        return _file(Path(model), sample, name, directory, allow_python, run)
    kinds = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    if "torch" in kinds:
        return _torch(model, sample, name, directory), "onnx"
    if "onnx" in kinds and hasattr(model, "SerializeToString"):
        path = directory / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        return path, "onnx"
    if allow_python:
        return _pickled(model, name, directory), "python"
    own = type(model).__module__.partition(".")[0]
    if own == "xgboost":
        path = directory / f"{name}.ubj"
        model.save_model(path)
        return path, "xgboost"
    if own == "lightgbm":
        path = directory / f"{name}.lgb"
        getattr(model, "booster_", model).save_model(path)
        return path, "lightgbm"
    if own == "catboost":
        path = directory / f"{name}.onnx"
        model.save_model(str(path), format="onnx")
        return path, "onnx"
    if own in ("keras", "tensorflow", "tf_keras"):
        source = directory / f"{name}.keras"
        model.save(source)
        return _convert(source, None, name, directory, run), "onnx"
    if not hasattr(model, "predict") and not hasattr(model, "transform"):
        raise TypeError(f"{type(model).__name__} has no method predict: pass the trained model, or the path of a model file")
    return _convert(_pickled(model, name, directory), sample, name, directory, run), "onnx"


def _file(
    path: Path, sample: Any, name: str, directory: Path, allow_python: bool, run: Run
) -> Tuple[Path, str]:
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    native = {".onnx": "onnx", ".ubj": "xgboost", ".json": "xgboost", ".lgb": "lightgbm", ".txt": "lightgbm"}
    if path.suffix in native:
        return path, native[path.suffix]
    if allow_python:
        return path, "python"
    converted = _convert(path, sample, name, directory, run)
    return converted, native[converted.suffix]


def _pickled(model: Any, name: str, directory: Path) -> Path:
    path = directory / f"{name}.pkl"
    try:
        data = pickle.dumps(model, protocol=4)
    except Exception as error:
        raise GantryError(f"the model cannot be pickled: {error}") from error
    if b"__main__" in data:
        raise GantryError(
            "the model contains a class or function of this notebook or script, which no other process has: move it to a "
            "module of a package"
        )
    path.write_bytes(data)
    return path


def _convert(source: Path, sample: Any, name: str, directory: Path, run: Run) -> Path:
    """Converts by the program, in an environment with the versions of the model."""
    arguments = ["convert", str(source)]
    if sample is not None:
        arguments += ["--sample", str(_sample(sample, directory))]
    target = Path(run(*arguments).strip())
    if target.parent.resolve() != directory.resolve():
        moved = directory / f"{name}{target.suffix}"
        moved.write_bytes(target.read_bytes())
        target.unlink()
        return moved
    return target


def _sample(sample: Any, directory: Path) -> Path:
    if hasattr(sample, "to_csv"):
        path = directory / "sample.csv"
        frame = sample.to_frame() if not hasattr(sample, "columns") else sample
        frame.head(MAX_ROWS).to_csv(path, index=False)
        return path
    array = np.asarray(sample)[:MAX_ROWS]
    if array.dtype.kind in "OUS":
        import csv

        path = directory / "sample.csv"
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            width = array.shape[1] if array.ndim > 1 else 1
            writer.writerow([f"x{i}" for i in range(width)])
            writer.writerows(array.reshape(len(array), width).tolist())
        return path
    path = directory / "sample.npy"
    np.save(path, array)
    return path


def _torch(model: Any, sample: Any, name: str, directory: Path) -> Path:
    if sample is None:
        raise TypeError("a PyTorch model is exported with an example: pass some rows as X_sample")
    torch = sys.modules["torch"]
    example = sample if torch.is_tensor(sample) else torch.from_numpy(np.asarray(sample))
    example = example[:8]
    was_training = model.training
    model.eval()
    path = directory / f"{name}.onnx"
    try:
        torch.onnx.export(
            model, (example,), str(path), dynamo=False, input_names=["input-0"], output_names=["output-0"],
            dynamic_axes={"input-0": {0: "rows"}, "output-0": {0: "rows"}},
        )  # fmt: skip
    finally:
        model.train(was_training)
    return path

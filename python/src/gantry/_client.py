"""A client of the Open Inference Protocol over HTTP, with binary tensors."""

import http.client
import json
import struct
import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from gantry._error import GantryError

Array = NDArray[Any]
#: A numpy array, a pandas data frame or series, nested lists, or arrays by the name of the input.
Rows = Any

DTYPES: Dict[str, str] = {
    "BOOL": "?", "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "UINT8": "u1", "UINT16": "<u2",
    "UINT32": "<u4", "UINT64": "<u8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True)
class Tensor:
    """An input or output in the metadata of a model; a variable dimension is -1."""

    name: str
    datatype: str
    shape: Tuple[int, ...]


def _encode_text(values: Array) -> bytes:
    parts: List[bytes] = []
    for value in values.ravel():
        raw = value if isinstance(value, bytes) else str(value).encode()
        parts += (struct.pack("<I", len(raw)), raw)
    return b"".join(parts)


def _decode_text(raw: bytes) -> List[str]:
    values, at = [], 0
    while at < len(raw):
        (length,) = struct.unpack_from("<I", raw, at)
        values.append(raw[at + 4 : at + 4 + length].decode(errors="surrogateescape"))
        at += 4 + length
    return values


def _datatype(array: Array) -> str:
    if array.dtype.kind in "OUS":
        return "BYTES"
    for name, code in DTYPES.items():
        if array.dtype == np.dtype(code):
            return name
    raise TypeError(f"arrays of {array.dtype} cannot be sent")


def _as_datatype(value: Any, spec: Tensor) -> Array:
    array = np.asarray(value)
    if spec.datatype == "BYTES":
        if array.dtype.kind not in "OUS":
            raise TypeError(f"input {spec.name} takes text, got {array.dtype}")
        return array
    if array.dtype.kind in "US":
        raise TypeError(f"input {spec.name} takes {spec.datatype}, got text")
    code = DTYPES.get(spec.datatype)
    if code is None:
        raise TypeError(f"input {spec.name}: datatype {spec.datatype} is not supported by this client")
    return array.astype(code, copy=False)


class Client:
    """Predictions of one model. May be used by several threads."""

    def __init__(
        self,
        model: str,
        address: str = "127.0.0.1:9000",
        *,
        timeout: float = 60.0,
        headers: Optional[Mapping[str, str]] = None,
    ) -> None:
        """``address`` is ``host:port`` of the gateway; ``headers`` are sent with every request, such as an API key."""
        self.model = model
        self.address = address.partition("://")[2] or address
        self.timeout = timeout
        self._headers = dict(headers or {})
        self._local = threading.local()
        self._metadata: Optional[Dict[str, Any]] = None

    def __repr__(self) -> str:
        return f"Client({self.model!r}, {self.address!r})"

    # Metadata

    def metadata(self, refresh: bool = False) -> Dict[str, Any]:
        """The model's metadata, read once."""
        if self._metadata is None or refresh:
            body, _ = self._request("GET", f"/v2/models/{self.model}")
            self._metadata = json.loads(body)
        return self._metadata

    @property
    def inputs(self) -> List[Tensor]:
        return self._specs("inputs")

    @property
    def outputs(self) -> List[Tensor]:
        return self._specs("outputs")

    def _specs(self, key: str) -> List[Tensor]:
        specs = self.metadata().get(key) or []
        return [Tensor(spec["name"], spec["datatype"], tuple(spec["shape"])) for spec in specs]

    def ready(self) -> bool:
        """Whether the model takes requests."""
        try:
            self._request("GET", f"/v2/models/{self.model}/ready")
        except GantryError:
            return False
        return True

    # Predictions

    def predict(self, rows: Rows) -> Array:
        """The first output: labels of a classifier, values of a regressor."""
        outputs = self.infer(rows)
        return next(iter(outputs.values()))

    def predict_proba(self, rows: Rows) -> Array:
        """Probabilities of a classifier."""
        names = [spec.name for spec in self.outputs]
        for name in ("probabilities", "output_probability", "predict_proba"):
            if name in names:
                return self.infer(rows, [name])[name]
        for name in ("predict_proba",):
            try:
                return self.infer(rows, [name])[name]
            except GantryError as error:
                if error.status != 400:
                    raise
        # XGBoost and LightGBM answer with probabilities alone.
        values = self.predict(rows)
        if values.dtype.kind != "f":
            raise GantryError(f"model {self.model} has no probabilities: its outputs are {', '.join(names)}")
        return np.column_stack([1 - values, values]) if values.ndim == 1 else values

    def infer(self, rows: Rows, outputs: Optional[Sequence[str]] = None) -> Dict[str, Array]:
        """All default outputs by name, or those that are named."""
        return self._infer(self._arrays(rows), outputs)

    def _arrays(self, rows: Rows) -> Dict[str, Array]:
        specs = self.inputs
        if isinstance(rows, Mapping):
            known = {spec.name: spec for spec in specs}
            return {
                name: self._column(value, known[name]) if name in known else np.asarray(value)
                for name, value in rows.items()
            }
        columns = [str(column) for column in rows.columns] if hasattr(rows, "columns") else None
        if columns is not None and len(specs) > 1:
            missing = [spec.name for spec in specs if spec.name not in columns]
            if missing:
                raise ValueError(f"the column {missing[0]} is missing: the model takes {self._names(specs)}")
            by_name = dict(zip(columns, (rows[column] for column in rows.columns)))
            return {spec.name: self._column(by_name[spec.name], spec) for spec in specs}
        if not specs:
            return {"input-0": np.asarray(rows)}
        if len(specs) > 1:
            array = np.asarray(rows)
            if array.ndim == 2 and array.shape[1] == len(specs):
                return {spec.name: self._column(array[:, i], spec) for i, spec in enumerate(specs)}
            raise ValueError(
                f"the model takes {self._names(specs)}: pass a data frame with these columns, or arrays by name"
            )
        spec = specs[0]
        array = rows.to_numpy() if hasattr(rows, "to_numpy") else np.asarray(rows)
        if array.ndim == 1 and len(spec.shape) == 2:
            # One row of features, or a column of one feature.
            array = array.reshape(-1, 1) if spec.shape[1] == 1 else array.reshape(1, -1)
        if array.ndim == 2 and array.shape[1] == 1 and len(spec.shape) == 1:
            array = array.reshape(-1)
        return {spec.name: _as_datatype(array, spec)}

    @staticmethod
    def _names(specs: Sequence[Tensor]) -> str:
        return ", ".join(spec.name for spec in specs)

    @staticmethod
    def _column(value: Any, spec: Tensor) -> Array:
        value = value.to_numpy() if hasattr(value, "to_numpy") else value
        array = _as_datatype(value, spec)
        return array.reshape(-1, 1) if array.ndim == 1 and len(spec.shape) == 2 else array

    def _infer(self, arrays: Dict[str, Array], outputs: Optional[Sequence[str]]) -> Dict[str, Array]:
        inputs, parts = [], []
        for name, array in arrays.items():
            datatype = _datatype(array)
            raw = _encode_text(array) if datatype == "BYTES" else np.ascontiguousarray(array).tobytes()
            parts.append(raw)
            inputs.append(
                {
                    "name": name,
                    "datatype": datatype,
                    "shape": list(array.shape),
                    "parameters": {"binary_data_size": len(raw)},
                }
            )
        request: Dict[str, Any] = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        if outputs:
            request["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        header = json.dumps(request).encode()
        body, headers = self._request(
            "POST", f"/v2/models/{self.model}/infer", header + b"".join(parts), {HEADER_LENGTH: str(len(header))}
        )
        length = int(headers.get(HEADER_LENGTH) or headers.get(HEADER_LENGTH.lower()) or len(body))
        answer, at = json.loads(body[:length]), length
        result: Dict[str, Array] = {}
        for output in answer["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            shape, datatype = output["shape"], output["datatype"]
            values: Union[List[str], Array]
            if size is None:
                values = np.asarray(output["data"], dtype=DTYPES.get(datatype, "O"))
            elif datatype == "BYTES":
                values = np.asarray(_decode_text(body[at : at + size]), dtype=object)
            elif datatype in DTYPES:
                values = np.frombuffer(body[at : at + size], dtype=DTYPES[datatype])
            else:
                raise GantryError(f"output {output['name']}: datatype {datatype} is not supported by this client")
            at += size or 0
            result[output["name"]] = values.reshape(shape)
        return result

    # Transport

    def _request(
        self, method: str, path: str, body: Optional[bytes] = None, headers: Optional[Mapping[str, str]] = None
    ) -> Tuple[bytes, Mapping[str, str]]:
        for attempt in (1, 2):
            connection: Optional[http.client.HTTPConnection] = getattr(self._local, "connection", None)
            reused = connection is not None
            if connection is None:
                connection = http.client.HTTPConnection(self.address, timeout=self.timeout)
            self._local.connection = None
            try:
                connection.request(method, path, body, {**self._headers, **(headers or {})})
                response = connection.getresponse()
                data = response.read()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError) as error:
                connection.close()
                # The server closed an idle connection.
                if reused and attempt == 1:
                    continue
                raise GantryError(f"{self.address} closed the connection: {error}") from error
            except OSError as error:
                connection.close()
                raise GantryError(f"no gateway answers at {self.address}: {error}") from error
            if not response.will_close:
                self._local.connection = connection
            if response.status >= 400:
                raise GantryError(self._reason(data, response.status), response.status)
            return data, dict(response.headers.items())
        raise AssertionError("unreachable")

    @staticmethod
    def _reason(data: bytes, status: int) -> str:
        try:
            answer = json.loads(data)
            return str(answer.get("error") or answer.get("message") or answer)
        except (ValueError, AttributeError):
            return f"status {status}: {data[:200].decode(errors='replace')}"

"""ONNX graphs of any origin: inspected before they run, and run on numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.errors import InvalidInput

# Operators that exported students are made of. None reads a file, draws numbers, or makes an output
# whose size depends on the values of its inputs, but for those of _SIZED.
_STANDARD = """
Abs Add And ArgMax ArgMin AveragePool BatchNormalization Cast Ceil Clip Concat Constant
ConstantOfShape Conv Cos CumSum Div Dropout Elu Equal Erf Exp Expand Flatten Floor Gather
GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual
GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization IsNaN
LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax MatMul Max MaxPool Mean Min
Mish Mul Neg Not OneHot Or PRelu Pad Pow Reciprocal ReduceL1 ReduceL2 ReduceLogSumExp
ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize
Round Scan ScatterElements Selu Shape Sigmoid Sign Sin Size Slice Softmax Softplus Softsign
Split Sqrt Squeeze Sub Sum Tanh Tile TopK Transpose Unsqueeze Where Xor
"""
_CLASSICAL = """
ArrayFeatureExtractor Binarizer Imputer LabelEncoder LinearClassifier LinearRegressor
Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler TreeEnsembleClassifier
TreeEnsembleRegressor
"""
_OPERATORS = {
    "": frozenset(_STANDARD.split()),
    "ai.onnx.ml": frozenset(_CLASSICAL.split()),
}
# Inputs of an operator that determine the size of its output.
_SIZED = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "OneHot": (1,),
    "Pad": (1,),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
}
_NUMBERS: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
}


class OnnxGraph:
    """A graph with one input, a batch of records, and outputs by name.

    Guarantees:
        onnxruntime is given what was inspected and nothing else, from memory: a graph that names
        another file, an operator beyond ONNX's own list above, a function or a subgraph
        other than a scan's is refused. No size depends on a record's values, so a batch takes as
        much memory as any other batch of as many records.
    """

    def __init__(self, content: bytes) -> None:
        import onnxruntime  # type: ignore[import-untyped]

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            self._session = onnxruntime.InferenceSession(
                checked_graph(content), options, providers=["CPUExecutionProvider"]
            )
        except InvalidInput:
            raise
        except Exception as error:  # onnxruntime's own errors have no common class
            raise InvalidInput(
                f"onnxruntime cannot use the graph ({type(error).__name__})"
            ) from None
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _NUMBERS:
            raise InvalidInput("the graph does not take one array of numbers")
        self._name, self._dtype = inputs[0].name, _NUMBERS[inputs[0].type]
        _, *self._shape = inputs[0].shape
        if not all(type(side) is int and side > 0 for side in self._shape):
            raise InvalidInput("the graph does not state the shape of a record")
        self.outputs = tuple(each.name for each in self._session.get_outputs())

    def run(self, records: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the outputs for records (n, …), converted to the graph's own shape and type."""
        if math.prod(records.shape[1:]) != math.prod(self._shape):
            raise InvalidInput(
                f"the graph takes records of shape {tuple(self._shape)}, not {records.shape[1:]}"
            )
        with np.errstate(over="ignore"):
            values = np.ascontiguousarray(records, dtype=self._dtype)
        try:
            found = self._session.run(None, {self._name: values.reshape(-1, *self._shape)})
        except Exception as error:
            raise InvalidInput(f"the graph does not run ({type(error).__name__})") from None
        arrays = dict(zip(self.outputs, map(np.asarray, found), strict=True))
        for name, array in arrays.items():
            if array.ndim < 1 or len(array) != len(records) or array.dtype.kind not in "fi":
                raise InvalidInput(f"the graph's {name} is not a row of numbers for each record")
        return arrays


def read_graph(file: Path) -> OnnxGraph:
    """Return the graph in a file."""
    try:
        return OnnxGraph(file.read_bytes())
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}") from None


def checked_graph(content: bytes) -> bytes:
    """Return a serialised model that holds nothing but what was inspected."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(content)
    except (DecodeError, ValueError, TypeError):
        raise InvalidInput("it is not an ONNX model") from None
    model.DiscardUnknownFields()
    if model.functions or model.training_info:
        raise InvalidInput("the model brings functions of its own")
    domains = {each.domain for each in model.opset_import}
    if not domains <= set(_OPERATORS):
        raise InvalidInput("the model needs operators that are not ONNX's own")
    _require_plain(model.graph, known=set(), values={each.name for each in model.graph.input})
    content = model.SerializeToString(deterministic=True)
    return bytes(content)


def _require_plain(graph: Any, *, known: set[str], values: set[str]) -> None:
    """Raise unless all operators are known and no size depends on ``values``, a record's own."""
    import onnx

    for tensor in [*graph.initializer, *(each.values for each in graph.sparse_initializer)]:
        _require_inside(tensor)
    if graph.sparse_initializer:
        raise InvalidInput("the graph holds sparse arrays")
    known = known | values | {each.name for each in graph.initializer}
    values = set(values)
    for node in graph.node:
        if node.op_type not in _OPERATORS.get(node.domain, ()):
            raise InvalidInput(
                f"the graph uses {node.op_type[:40]!r}, which is not on the list of operators"
            )
        if not {name for name in node.input if name} <= known:
            raise InvalidInput("the graph is not in order")
        sized = _SIZED.get(node.op_type, ())
        if any(node.input[at] in values for at in sized if at < len(node.input)):
            raise InvalidInput(f"the size of a {node.op_type} depends on the records' values")
        for attribute in node.attribute:
            for tensor in _tensors(attribute):
                _require_inside(tensor)
            for inner in [attribute.g, *attribute.graphs]:
                if inner != onnx.GraphProto():
                    if node.op_type != "Scan":
                        raise InvalidInput(f"a {node.op_type} holds a graph of its own")
                    inside = {each.name for each in inner.input}
                    _require_plain(inner, known=known, values=values | inside)
        known = known | set(node.output)
        if node.op_type not in ("Shape", "Size") and not values.isdisjoint(node.input):
            values |= set(node.output)


def _tensors(attribute: Any) -> Iterator[Any]:
    yield from (attribute.t, *attribute.tensors)
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        yield from (sparse.values, sparse.indices)


def _require_inside(tensor: Any) -> None:
    if tensor.external_data or tensor.data_location:
        raise InvalidInput("the graph keeps numbers in another file")

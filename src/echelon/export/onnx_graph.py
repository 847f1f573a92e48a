"""Writing ONNX graphs node by node: no tracing, so no dependence on how the module is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echelon.extras import require_extra

OPSET = 17
_IR_VERSION = 8
"""What onnxruntime reads since 1.13, so that old devices can too."""


class Graph:
    """A graph that grows by one operation at a time. Values are known by their names."""

    def __init__(self, name: str) -> None:
        self._onnx = require_extra("onnx", "export")
        self._name = name
        self._nodes: list[Any] = []
        self._weights: dict[str, NDArray[Any]] = {}
        self._known: dict[bytes, str] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, kind: Any, shape: Sequence[int | str]) -> str:
        self._inputs.append(self._value(name, kind, shape))
        return name

    def output(self, name: str, value: str, kind: Any, shape: Sequence[int | str]) -> None:
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._value(name, kind, shape))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operation with one result."""
        return self.ops(kind, *inputs, results=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, results: int, **attributes: Any) -> list[str]:
        """Add an operation with several results."""
        number = len(self._nodes)
        names = [f"{kind}_{number}_{index}" for index in range(results)]
        self._nodes.append(self._onnx.helper.make_node(kind, list(inputs), names, **attributes))
        return names

    def weight(self, array: NDArray[Any]) -> str:
        """A tensor of the model; the same one twice is stored once."""
        array = np.asarray(array, order="C")
        key = repr((array.shape, array.dtype.str)).encode() + array.tobytes()
        if key not in self._known:
            self._known[key] = f"weight_{len(self._weights)}"
            self._weights[self._known[key]] = array
        return self._known[key]

    def constant(self, value: float | int | Sequence[int] | NDArray[Any]) -> str:
        """A number or a few: int64 or float32."""
        array = np.asarray(value)
        return self.weight(array.astype(np.int64 if array.dtype.kind == "i" else np.float32))

    def cast(self, value: str, kind: Any) -> str:
        return self.op("Cast", value, to=self._onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind)))

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self.op("Unsqueeze", value, self.constant(list(axes)))

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """0 keeps an axis, -1 is what is left."""
        return self.op("Reshape", value, self.constant(list(shape)))

    def transpose_last(self, value: str, rank: int) -> str:
        """The last two axes exchanged."""
        perm = [*range(rank - 2), rank - 1, rank - 2]
        return self.op("Transpose", value, perm=perm)

    def activate(self, x: str, kind: str) -> str:
        """relu, gelu (the exact one) or swish."""
        match kind:
            case "relu":
                return self.op("Relu", x)
            case "gelu":
                inner = self.op("Erf", self.op("Mul", x, self.constant(1 / math.sqrt(2))))
                half = self.op("Mul", x, self.constant(0.5))
                return self.op("Mul", half, self.op("Add", inner, self.constant(1.0)))
            case "swish":
                return self.op("Mul", x, self.op("Sigmoid", x))
        raise AssertionError(f"no activation is called {kind}")

    def stack(self, values: Sequence[str]) -> str:
        """Tensors as one, along a new first axis."""
        return self.op("Concat", *(self.unsqueeze(value, 0) for value in values), axis=0)

    def unstack(self, value: str, count: int, axis: int = 0) -> list[str]:
        """The `count` tensors along an axis, without that axis."""
        return [self.op("Gather", value, self.constant(index), axis=axis) for index in range(count)]

    def write(self, file: Path) -> None:
        """Check the graph and write it with its weights into one file."""
        onnx = self._onnx
        weights = [onnx.numpy_helper.from_array(array, name) for name, array in self._weights.items()]
        graph = onnx.helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, weights)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)])
        model.ir_version = _IR_VERSION
        onnx.checker.check_model(model)
        file.write_bytes(model.SerializeToString())

    def _value(self, name: str, kind: Any, shape: Sequence[int | str]) -> Any:
        helper = self._onnx.helper
        return helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), list(shape)
        )

"""A network for images as one ONNX graph: from bytes to probabilities, normalisation and all views included.

N  images    P  height and width    C  channels    H, W  height and width    K  classes
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from echelon.data.images.image_store import Normalisation
from echelon.export.onnx_graph import Graph
from echelon.inference.pictures import PictureRules
from echelon.models.batch_norm import BatchNorm
from echelon.models.resnet import Block, ResNet
from echelon.models.speednet import OUTPUT_SCALE, ConvGroup, SpeedNet
from echelon.recipe.image_sections import ImageEvaluation

_TO_THE_END = 2**31 - 1


def write_picture_onnx(model: nn.Module, rules: PictureRules, evaluate: ImageEvaluation, file: Path) -> None:
    """Input `pictures`, bytes [N, P, P, 3]; output `probabilities`, float32 [N, K]."""
    graph = Graph("classifier")
    pictures_NPPC = graph.input("pictures", np.uint8, ["N", rules.pixels, rules.pixels, 3])
    x_NCHW = _normalised(graph, pictures_NPPC, rules.normalisation)
    parts = [
        graph.op("Mul", _softmax(graph, model, view), graph.constant(share))
        for view, share in _views(graph, x_NCHW, rules.pixels, evaluate)
    ]
    graph.output("probabilities", graph.op("Sum", *parts), np.float32, ["N", len(rules.classes)])
    graph.write(file)


def _normalised(graph: Graph, pictures: str, values: Normalisation) -> str:
    x_NPPC = graph.op("Sub", graph.cast(pictures, np.float32), graph.constant(np.array(values.mean)))
    x_NPPC = graph.op("Div", x_NPPC, graph.constant(np.array(values.deviation)))
    return graph.op("Transpose", x_NPPC, perm=[0, 3, 1, 2])


def _views(graph: Graph, x: str, pixels: int, evaluate: ImageEvaluation) -> list[tuple[str, float]]:
    """The same views as `echelon.tasks.classification.views`."""
    found = [(x, 1.0)]
    if evaluate.shift:
        around = graph.constant([0, 0, evaluate.shift, evaluate.shift] * 2)
        padded = graph.op("Pad", x, around, mode="reflect")
        found = [(x, 0.5)]
        for start in (0, 2 * evaluate.shift):
            window = ([start] * 2, [start + pixels] * 2, [2, 3])
            found.append((graph.op("Slice", padded, *(graph.constant(value) for value in window)), 0.25))
    if evaluate.flip:
        found = [(side, share / 2) for view, share in found for side in (view, _mirrored(graph, view))]
    return found


def _mirrored(graph: Graph, x_NCHW: str) -> str:
    start, end, axis, step = ([-1], [-_TO_THE_END], [3], [-1])
    return graph.op("Slice", x_NCHW, *(graph.constant(value) for value in (start, end, axis, step)))


def _softmax(graph: Graph, model: nn.Module, x_NCHW: str) -> str:
    match model:
        case ResNet():
            logits_NK = _resnet(graph, model, x_NCHW)
        case SpeedNet():
            logits_NK = _speednet(graph, model, x_NCHW)
        case _:
            raise AssertionError(f"{type(model).__name__} has no ONNX graph")
    return graph.op("Softmax", logits_NK, axis=1)


def _resnet(graph: Graph, model: ResNet, x: str) -> str:
    x = graph.op("Relu", _norm(graph, _convolution(graph, x, model.conv1), model.bn1))
    if model.has_pooled_stem:
        x = graph.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for stage in model.stages:
        for block in stage:
            assert isinstance(block, Block)
            x = _block(graph, block, x)
    x_NC = graph.op("Flatten", graph.op("GlobalAveragePool", x))
    return graph.op("Gemm", x_NC, _weight(graph, model.fc.weight), _weight(graph, model.fc.bias), transB=1)


def _block(graph: Graph, block: Block, x: str) -> str:
    out = x
    for number, (convolution, norm) in enumerate(block.layers, start=1):
        out = _norm(graph, _convolution(graph, out, convolution), norm)
        if number < len(block.layers):
            out = graph.op("Relu", out)
    return graph.op("Relu", graph.op("Add", out, _shortcut(graph, block, x)))


def _shortcut(graph: Graph, block: Block, x: str) -> str:
    if block.downsample is not None:
        convolution, norm = block.downsample
        assert isinstance(convolution, nn.Conv2d)
        assert isinstance(norm, BatchNorm)
        return _norm(graph, _convolution(graph, x, convolution), norm)
    missing = block.outer - block.layers[0][0].in_channels
    if block.stride != 1:
        window = ([0, 0], [_TO_THE_END] * 2, [2, 3], [block.stride] * 2)
        x = graph.op("Slice", x, *(graph.constant(value) for value in window))
    if missing:
        x = graph.op("Pad", x, graph.constant([0, 0, 0, 0, 0, missing, 0, 0]))
    return x


def _speednet(graph: Graph, model: SpeedNet, x: str) -> str:
    whiten = model.whiten
    x = graph.op("Conv", x, _weight(graph, whiten.weight), _weight(graph, whiten.bias.flatten()))
    x = graph.activate(x, "gelu")
    for group in model.groups:
        assert isinstance(group, ConvGroup)
        x = graph.op("MaxPool", _convolution(graph, x, group.conv1), kernel_shape=[2, 2], strides=[2, 2])
        x = graph.activate(_norm(graph, x, group.norm1), "gelu")
        x = graph.activate(_norm(graph, _convolution(graph, x, group.conv2), group.norm2), "gelu")
    x_NC = graph.op("Flatten", graph.op("GlobalMaxPool", x))
    weight_KC = _array(model.output.weight) * np.float32(OUTPUT_SCALE)
    return graph.op("MatMul", x_NC, graph.weight(weight_KC.T))


def _convolution(graph: Graph, x: str, convolution: nn.Conv2d) -> str:
    pads, strides = [int(convolution.padding[0])] * 4, list(convolution.stride)
    weight, group = _weight(graph, convolution.weight), convolution.groups
    return graph.op("Conv", x, weight, pads=pads, strides=strides, group=group)


def _norm(graph: Graph, x: str, norm: BatchNorm) -> str:
    weight = np.ones_like(_array(norm.bias)) if norm.weight is None else _array(norm.weight)
    statistics = (norm.bias, norm.running_mean, norm.running_var)
    arrays = [graph.weight(weight), *(_weight(graph, tensor) for tensor in statistics)]
    return graph.op("BatchNormalization", x, *arrays, epsilon=norm.eps)


def _weight(graph: Graph, tensor: Tensor) -> str:
    return graph.weight(_array(tensor))


def _array(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().float().cpu().numpy()

"""ResNets of timm and torchvision, whose parameters have our names; what they look like is read from their shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from torch import Tensor

from echelon.data.images.image_store import Normalisation
from echelon.errors import UserError
from echelon.inference.pictures import PictureRules
from echelon.pretrained.pretrained_folder import PretrainedFolder
from echelon.recipe.image_sections import ImageModel
from echelon.shapes.resnet import PRESETS, layers

_IMAGENET = Normalisation((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
"""Of the models of torchvision, and of most of timm's."""
_CROP = 0.875
_BLOCK = re.compile(r"layer([1-9])\.(\d{1,3})\.")
_NOT_KEPT = "num_batches_tracked"
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class ResNetModel:
    """A network in our terms."""

    model: ImageModel
    rules: PictureRules
    tensors: dict[str, Tensor]


def read_resnet(folder: PretrainedFolder, config: Mapping[str, Any]) -> ResNetModel:
    """The network in a folder or file; UserError with the reason if it is none of ours."""
    tensors = {name: tensor for name, tensor in folder.load_tensors().items() if not name.endswith(_NOT_KEPT)}
    model = _model(folder, tensors)
    settings = config.get("pretrained_cfg")
    rules = _rules(len(tensors["fc.bias"]), config, settings if isinstance(settings, dict) else {})
    return ResNetModel(model, rules, tensors)


def _model(folder: PretrainedFolder, tensors: Mapping[str, Tensor]) -> ImageModel:
    """The preset whose parameters these are, width and stem changed if they have to be."""
    sizes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if not name.endswith(_STATISTICS)}
    stem, fc = sizes.get("conv1.weight", ()), sizes.get("fc.weight", ())
    if len(stem) != 4 or len(fc) != 2 or "fc.bias" not in sizes:
        raise UserError(
            f"{folder.weights}: is no ResNet that Echelon knows: it wants conv1, layer1 to layer4 and fc, as "
            "torchvision and timm name them; a stem of three convolutions (resnet50d) is not supported"
        )
    numbers = [(int(match[1]), int(match[2])) for match in map(_BLOCK.match, sizes) if match]
    stages = max((stage for stage, _ in numbers), default=0)
    blocks = tuple(
        len({block for stage, block in numbers if stage == wanted + 1}) for wanted in range(stages)
    )
    width = stem[0]
    kind: Literal["cifar", "imagenet"] = "cifar" if stem[2] == 3 else "imagenet"
    for name, preset in PRESETS.items():
        if preset.blocks != blocks:
            continue
        shape = replace(preset, width=width, stem=kind, classes=fc[0])
        if {part: size for layer in layers(shape) for part, size in layer.parameters} == sizes:
            changed = {
                "width": width if width != preset.width else None,
                "stem": kind if kind != preset.stem else None,
            }
            return ImageModel.model_validate({"preset": name, **changed})
    raise UserError(
        f"{folder.weights}: is none of Echelon's ResNets ({', '.join(PRESETS)}): {'-'.join(map(str, blocks))} blocks, "
        f"{width} channels, and parameters of other names or shapes"
    )


def _rules(num_classes: int, config: Mapping[str, Any], settings: Mapping[str, Any]) -> PictureRules:
    """Classes and pictures as config.json says them, or else as torchvision's models have them."""
    names = settings.get("label_names") or config.get("label_names")
    is_right = (
        isinstance(names, list) and len(names) == num_classes and all(isinstance(n, str) for n in names)
    )
    classes = tuple(names) if is_right else tuple(map(str, range(num_classes)))  # type: ignore[arg-type]
    size = settings.get("input_size")
    pixels = size[-1] if isinstance(size, list) and size and isinstance(size[-1], int) else 224
    crop = settings.get("crop_pct")
    share = crop if isinstance(crop, float) and 0.25 < crop <= 1 else _CROP
    colours = [
        _three(settings.get(key), default)
        for key, default in (("mean", _IMAGENET.mean), ("std", _IMAGENET.deviation))
    ]
    pixels = min(max(pixels, 4), 1024)
    return PictureRules(classes, pixels, Normalisation(*colours), shorter=round(pixels / share))


def _three(given: Any, default: tuple[float, float, float]) -> tuple[float, float, float]:
    """A colour from a scale of 0 to 1 on ours."""
    if (
        not isinstance(given, list)
        or len(given) != 3
        or not all(isinstance(v, float) and 0 < v < 1 for v in given)
    ):
        return default
    red, green, blue = (255.0 * value for value in given)
    return red, green, blue


def rules_as_json(rules: PictureRules) -> dict[str, Any]:
    """What a run's images.json holds."""
    return {key: value for key, value in asdict(rules).items() if key != "takes_whole"}

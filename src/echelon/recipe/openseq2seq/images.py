"""Image2Label with a ResNet as a classification recipe."""

from __future__ import annotations

from typing import Any

from echelon.recipe.openseq2seq.settings import Settings
from echelon.recipe.openseq2seq.training import Draft

SIZES = (18, 34, 50, 101, 152)
TRAINING_PICTURES = {"ImagenetDataLayer": 1_281_167, "CifarDataLayer": 50_000}
ENCODER_REASONS = {
    "regularize_bn": "is left out: weight decay is never on norms",
    "bn_momentum": "",
    "bn_epsilon": "is left out: it is 1e-5",
    "data_format": "",
    "num_filters": "",
    "kernel_size": "",
    "conv_stride": "",
    "first_pool_size": "",
    "first_pool_stride": "",
    "block_sizes": "",
    "block_strides": "",
    "final_size": "",
    "bottleneck": "",
}
DATA_REASONS = {
    "num_parallel_calls": "is left out: pictures are prepared once",
    "distort_color": "has no equivalent",
    "num_classes": "",
    "one_hot": "",
    "use_synthetic_data": "has no equivalent",
}


def convert_images(modes: dict[str, Settings], draft: Draft, slots: int) -> float:
    """Data, model and batch of an Image2Label configuration; the steps of an epoch."""
    train = modes["train"]
    draft.table["task"] = "classification"
    _convert_model(train, draft)
    layer = _convert_data(train, draft)
    pictures = int(train.number("batch_size_per_gpu", 32))
    loss = train.inner("loss_params")
    smoothing = loss.number("label_smoothing")
    draft.put(
        "train",
        batch_images=pictures * slots,
        label_smoothing=None if smoothing is None else float(smoothing),
    )
    draft.notes += loss.left_over({})
    return TRAINING_PICTURES[layer] / (pictures * slots)


def _convert_model(settings: Settings, draft: Draft) -> None:
    if settings.name("encoder") != "ResNetEncoder":
        raise settings.error(
            "encoder", f"is {settings.name('encoder') or 'missing'}; only ResNetEncoder has an equivalent"
        )
    encoder, decoder = settings.inner("encoder_params"), settings.inner("decoder_params")
    size = encoder.number("resnet_size")
    if size not in SIZES:
        raise encoder.error("resnet_size", f"is {size}; use one of {', '.join(map(str, SIZES))}")
    if encoder.get("version", 2) != 1:
        draft.notes.append(
            encoder.note(
                "version", "is 2 (norms before convolutions); Echelon's is 1.5, as most publications have it"
            )
        )
    draft.put("model", preset=f"resnet{size}")
    decoder.get("output_dim")
    draft.notes += [*encoder.left_over(ENCODER_REASONS), *decoder.left_over({})]


def _convert_data(settings: Settings, draft: Draft) -> str:
    name = settings.name("data_layer")
    layer = settings.inner("data_layer_params")
    path, pixels = layer.text("data_dir"), layer.number("image_size")
    augment: dict[str, Any]
    match name:
        case "ImagenetDataLayer":
            draft.put("data", source="folder", path=path, pixels=pixels or 224)
            augment = {"min_area": 0.08, "flip": "random"}
            draft.notes.append(
                layer.note(
                    "data_dir", "held TFRecords; data.path is a folder or .tar with train/CLASS and val/CLASS"
                )
            )
        case "CifarDataLayer":
            draft.put("data", source="cifar10", path=path)
            augment = {"pad": 4, "flip": "random"}
        case _:
            raise settings.error(
                "data_layer",
                f"is {name or 'missing'}; ImagenetDataLayer and CifarDataLayer have an equivalent",
            )
    draft.table["data"]["augment"] = augment
    draft.notes += layer.left_over(DATA_REASONS)
    return name

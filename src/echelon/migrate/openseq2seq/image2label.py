"""Image2Label with a ResNet as a classification recipe."""

from __future__ import annotations

from typing import Any

from echelon.migrate.openseq2seq.base_params import Draft
from echelon.migrate.openseq2seq.settings import Settings

SIZES = (18, 34, 50, 101, 152)
TRAINING_PICTURES = {"ImagenetDataLayer": 1_281_167, "CifarDataLayer": 45_000}
"""In an epoch of the recipe, where 5,000 images of CIFAR-10 are held out for validation."""
STEM = {"first_kernel_size": 7, "first_conv_stride": 2, "first_pool_size": 3, "first_pool_stride": 2}
SMALL_STEM = (3, 1, 0)
"""Kernel, stride and pooling of `model.stem = "cifar"`."""
BLOCKS = {"block_strides": [1, 2, 2, 2], "bn_epsilon": 1e-5}
BOTTLENECK_FROM = 50
ENCODER_REASONS = {
    "regularize_bn": "is left out: weight decay is never on norms",
    "block_sizes": "has no equivalent beside resnet_size",
}
ENCODER_SILENT = {"data_format", "final_size"}  # the last follows from the others
DATA_REASONS = {
    "num_parallel_calls": "is left out: images are prepared once",
    "shuffle_buffer": "is left out: every epoch is shuffled as a whole",
    "distort_color": "has no equivalent",
    "use_synthetic_data": "has no equivalent",
}
DATA_SILENT = {"num_classes", "one_hot"}  # images say how many classes there are


def convert_images(train: Settings, draft: Draft, slots: int) -> int:
    """Data, model and batch of an Image2Label configuration; the steps of an epoch, rounded down as OpenSeq2Seq did."""
    draft.table["task"] = "classification"
    _convert_model(train, draft)
    layer = _convert_data(train, draft)
    pictures = train.count("batch_size_per_gpu", 32)
    loss = train.inner("loss_params")
    smoothing = loss.number("label_smoothing")
    draft.put(
        "train",
        batch_images=pictures * slots,
        label_smoothing=None if smoothing is None else float(smoothing),
    )
    draft.notes += loss.left_over({})
    return max(1, TRAINING_PICTURES[layer] // (pictures * slots))


def _convert_model(settings: Settings, draft: Draft) -> None:
    encoder, decoder = settings.inner("encoder_params"), settings.inner("decoder_params")
    size = encoder.number("resnet_size")
    if size not in SIZES:
        raise encoder.error("resnet_size", f"is {size or 'missing'}; use one of {', '.join(map(str, SIZES))}")
    if encoder.get("version", 2) != 1:
        draft.notes.append(
            encoder.note(
                "version", "is 2 (norms before convolutions); Echelon's is 1.5, as most publications have it"
            )
        )
    draft.put(
        "model",
        preset=f"resnet{size}",
        width=encoder.number("first_num_filters"),
        norm_momentum=round(1.0 - encoder.number("bn_momentum", 0.997), 9),
    )
    usual = {**BLOCKS, "bottleneck": size >= BOTTLENECK_FROM}
    if tuple(encoder.number(key, default) for key, default in STEM.items())[:3] == SMALL_STEM:
        draft.put("model", stem="cifar")
    else:
        usual |= STEM
    draft.notes += [
        encoder.note(key, f"is {value}, which has no equivalent: this ResNet has {common}")
        for key, common in usual.items()
        if (value := encoder.get(key, common)) != common
    ]
    draft.notes += [
        *encoder.left_over(ENCODER_REASONS, ENCODER_SILENT),
        *decoder.left_over({}, {"output_dim"}),
    ]


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
            draft.notes.append(
                layer.note(
                    "data_dir",
                    "is trained on without 5,000 images, which are the validation set; OpenSeq2Seq trained on all "
                    "50,000, cut to 28x28, and validated on the test set",
                )
            )
        case _:
            raise settings.error(
                "data_layer",
                f"is {name or 'missing'}; ImagenetDataLayer and CifarDataLayer have an equivalent",
            )
    draft.table["data"]["augment"] = augment
    if layer.get("shuffle", True) is False:
        draft.notes.append(layer.note("shuffle", "has no equivalent: every epoch is shuffled"))
    draft.notes += layer.left_over(DATA_REASONS, DATA_SILENT)
    return name

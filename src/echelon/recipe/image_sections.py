"""The tables of a recipe that only image classification has: images, how they are varied, and the network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from echelon.recipe.section import Evaluation, Section

ImagePreset = Literal[
    "resnet20",
    "resnet32",
    "resnet44",
    "resnet56",
    "resnet110",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnet26",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "speednet",
]


class Augment(Section):
    """How training images are varied. What happens to an image follows from (seed, step, slot) alone."""

    pad: NonNegativeInt = 0
    """Pixels of border put round an image before a part of the old size is cut out at random; 0 is none."""
    border: Literal["black", "mirror"] = "black"
    """What that border shows."""
    min_area: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Random-resized crop: a part of at least this share of the image, its sides between 3:4 and 4:3, is brought to
    `data.pixels`. ImageNet's usual is 0.08; by default the middle of the image is taken."""
    flip: Literal["no", "random", "alternate"] = "no"
    """Mirror left and right: at random, or every image in every other epoch."""
    cutout: NonNegativeInt = 0
    """Side of a square that is blanked out at a random place, in pixels; 0 is none."""
    mixup: NonNegativeFloat = 0.0
    """Blend images and labels in pairs, by a share from Beta(mixup, mixup); 0 is none."""


class ImageData(Section):
    """The images. A relative path is looked for beside the recipe, then under the folder named by ECHELON_DATA."""

    source: Literal["digits", "cifar10", "idx", "folder"]
    """digits: 1,797 written digits of 8x8 pixels that come with scikit-learn, nothing to fetch; cifar10: 60,000
    images of 32x32, fetched unless `path` is given; idx: the files of MNIST, Fashion-MNIST and others of the family;
    folder: any images in class folders, ImageNet's layout."""
    path: str | None = None
    """cifar10: a folder with the six .bin files, or the official archive. idx: a folder with train-images-idx3-ubyte,
    train-labels-idx1-ubyte and those of t10k, or the same with .gz. folder: a folder or .tar file with
    train/CLASS/*.jpg and val/CLASS/*.jpg (JPEG, PNG and others)."""
    class_names: list[str] | None = None
    """idx: what the classes are called, in the order of their labels; if not given, by their labels, "0" and so on."""
    verify: bool = True
    """cifar10: refuse files that are not, bit for bit, the published ones. Turn it off for a part of the data set."""
    valid_images: NonNegativeInt | None = None
    """Training images held out as the validation set: equally many of each class, the last ones. If not given:
    digits 180, cifar10 5,000, idx 5,000 or a tenth, folder none, as val/ is the validation set. With a number, val/
    becomes the test set if there is no test/; 0 trains on everything and validates on nothing."""
    pixels: Annotated[int, Field(ge=4, le=1024)] | None = None
    """Height and width of what the model sees. If not given, those of the data set: digits 8, cifar10 32, idx 28. For a
    folder it must be given, as its images differ in size."""
    stored_pixels: Annotated[int, Field(ge=4, le=2048)] | None = None
    """Images of a folder are stored with their shorter side this long; by default `pixels` * 8 / 7, which is
    256 for 224."""
    augment: Augment = Augment()
    """How training images are varied."""


class ImageModel(Section):
    """The network."""

    preset: ImagePreset = "resnet18"
    """resnet20, 32, 44, 56, 110: the thin ResNets for 32x32 images; resnet18, 34, 50, 101, 152: for ImageNet (v1.5),
    as are resnet26, wide ResNets and ResNeXts, by torchvision's and timm's names; speednet: a small network that learns
    CIFAR-10 fast."""
    width: PositiveInt | None = None
    """Channels of the first stage, in place of the preset's."""
    stem: Literal["cifar", "imagenet"] | None = None
    """How a ResNet begins, in place of the preset's: a 3x3 convolution that keeps the size, or a 7x7 one and a pooling
    that divide it by 4."""
    zero_init: bool = False
    """Start with every block's last norm at zero, so that blocks begin as if they were not there."""
    norm_momentum: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """Share of a step's statistics in BatchNorm's running ones, which evaluation uses."""


class ImageEvaluation(Evaluation):
    """When and how images are classified for a score."""

    flip: bool = False
    """Classify every image and its mirror image, and take the mean."""
    shift: NonNegativeInt = 0
    """Also classify every image shifted by this many pixels up, left, down and right, and take the mean; 0 does
    not."""

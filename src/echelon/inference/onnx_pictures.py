"""Classifying with ONNX Runtime: no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from echelon.data.images.image_store import Pixels
from echelon.errors import PackageError
from echelon.extras import require_extra


class OnnxPictures:
    """Implements `PictureEngine`."""

    name = "onnxruntime"

    def __init__(self, file: Path, threads: int) -> None:
        runtime = require_extra("onnxruntime", "export")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        try:
            self._session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's errors have no common base class
            raise PackageError(f"{file}: cannot be used: {error}") from error

    def probabilities(self, pictures: Pixels) -> NDArray[np.float32]:
        (result,) = self._session.run(["probabilities"], {"pictures": np.ascontiguousarray(pictures)})
        probabilities: NDArray[np.float32] = result
        return probabilities

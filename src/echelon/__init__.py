"""Echelon: from one recipe file to a trained, evaluated and explained model, on any cluster.

As a library: `from echelon import Translator; Translator.load("runs/demo").translate("The dog sleeps.")`,
`from echelon import Classifier; Classifier.load("runs/digits").classify(["seven.png"])`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from echelon.inference.classifier import Classifier
    from echelon.inference.decoding import Alternative, Decoding, Translation
    from echelon.inference.pictures import Guess
    from echelon.inference.translator import Translator

__version__ = "0.1.0"
__all__ = ["Alternative", "Classifier", "Decoding", "Guess", "Translation", "Translator"]

_HOMES = {
    "Alternative": "echelon.inference.decoding",
    "Classifier": "echelon.inference.classifier",
    "Decoding": "echelon.inference.decoding",
    "Guess": "echelon.inference.pictures",
    "Translation": "echelon.inference.decoding",
    "Translator": "echelon.inference.translator",
}


def __getattr__(name: str) -> Any:
    """Load the library when it is asked for: `echelon --help` needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'echelon' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the API, also what is not loaded yet, and nothing else."""
    return sorted(__all__)

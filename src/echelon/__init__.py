"""Echelon: from one recipe file to a trained, evaluated and explained model, on any cluster.

From Python: `run = echelon.train("recipes/digits.toml", workers=2)`; `run.best()`, `run.metrics()` (docs/python.md).
Trained models: `from echelon import Translator; Translator.load("runs/demo").translate("The dog sleeps.")`,
`from echelon import Classifier; Classifier.load("runs/digits").classify(["seven.png"])`.
"""

from types import ModuleType
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "Alternative",
    "Callbacks",
    "Classifier",
    "Decoding",
    "Event",
    "Guess",
    "Hosts",
    "OwnTask",
    "Recipe",
    "Run",
    "StopTraining",
    "Translation",
    "Translator",
    "allow_code",
    "dump_recipe",
    "load_recipe",
    "load_run",
    "make_recipe",
    "train",
]

# Their types are in __init__.pyi.
_HOMES = {
    "Alternative": "echelon.inference.decoding",
    "Callbacks": "echelon.library.events",
    "Classifier": "echelon.inference.classifier",
    "Decoding": "echelon.inference.decoding",
    "Event": "echelon.library.events",
    "Guess": "echelon.inference.pictures",
    "Hosts": "echelon.library.training_hosts",
    "OwnTask": "echelon.tasks.own",
    "Recipe": "echelon.recipe.schema",
    "Run": "echelon.library.handle",
    "StopTraining": "echelon.library.events",
    "Translation": "echelon.inference.decoding",
    "Translator": "echelon.inference.translator",
    "allow_code": "echelon.library.recipes",
    "dump_recipe": "echelon.recipe.toml",
    "load_recipe": "echelon.library.recipes",
    "load_run": "echelon.library.handle",
    "make_recipe": "echelon.library.recipes",
}


class CallablePackage(ModuleType):
    """The package `echelon.train`, which is also the function: whatever imports the package first, both work."""

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        from importlib import import_module

        return import_module("echelon.library.training_call").train(*arguments, **settings)


def __getattr__(name: str) -> Any:
    """Load the library when it is asked for: `echelon --help` needs none of it."""
    from importlib import import_module

    if name == "train":
        return import_module("echelon.train")
    if name not in _HOMES:
        raise AttributeError(f"module 'echelon' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the API, also what is not loaded yet, and nothing else."""
    return sorted(__all__)

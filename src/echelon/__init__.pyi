"""The types of what `echelon` loads when it is asked for."""

from types import ModuleType
from typing import Any

from echelon.inference.classifier import Classifier as Classifier
from echelon.inference.decoding import Alternative as Alternative
from echelon.inference.decoding import Decoding as Decoding
from echelon.inference.decoding import Translation as Translation
from echelon.inference.pictures import Guess as Guess
from echelon.inference.translator import Translator as Translator
from echelon.library.events import Callbacks as Callbacks
from echelon.library.events import Event as Event
from echelon.library.events import StopTraining as StopTraining
from echelon.library.handle import Run as Run
from echelon.library.handle import load_run as load_run
from echelon.library.recipes import allow_code as allow_code
from echelon.library.recipes import load_recipe as load_recipe
from echelon.library.recipes import make_recipe as make_recipe
from echelon.library.training_call import train as train
from echelon.library.training_hosts import Hosts as Hosts
from echelon.recipe.schema import Recipe as Recipe
from echelon.recipe.toml import dump_recipe as dump_recipe
from echelon.tasks.own import OwnTask as OwnTask

__version__: str
__all__: list[str]

class CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **settings: Any) -> Any: ...

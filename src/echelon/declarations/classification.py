"""Image classification: images, a convolutional network, top-1 and top-5; used by `classify`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echelon.declarations.declaration import TaskDeclaration
from echelon.errors import Problem, UserError
from echelon.recipe.image_checks import find_image_problems
from echelon.recipe.schema import ClassificationRecipe
from echelon.recipe.tasks import Score, StepSize, Use

if TYPE_CHECKING:
    import torch

    from echelon.commands.evaluate import Scorable
    from echelon.commands.given_sets import GivenSet, SetOptions
    from echelon.data.images.image_store import PreparedImages
    from echelon.data.progress import ReportProgress
    from echelon.explain.image_description import ImageDescription
    from echelon.explain.significance import Difference
    from echelon.explain.training_set import TrainingSetSize
    from echelon.explain.workload import Workload
    from echelon.export.export_folder import ExportOptions
    from echelon.runfolder import RunFolder
    from echelon.serve.model_server import Served, ServeOptions
    from echelon.serve.state import ServerState
    from echelon.tasks.classification import ClassificationTask


class ClassificationDeclaration(TaskDeclaration[ClassificationRecipe, "PreparedImages"]):
    """Implements `TaskDeclaration`."""

    recipe = ClassificationRecipe
    scores = (Score("top1", "top-1", "%"), Score("top5", "top-5", "%"))
    score_title = "Accuracy on the validation set, %"
    unit = "images"
    targets = "images"
    use = Use(verb="classify", does="classifies images", do="classify images")

    def batch(self, recipe: ClassificationRecipe) -> StepSize:
        return StepSize("train.batch_images", recipe.train.batch_images, self.unit)

    def find_problems(self, recipe: ClassificationRecipe) -> Iterable[Problem]:
        return find_image_problems(recipe)

    def prepare(
        self, recipe: ClassificationRecipe, recipe_folder: Path, cache: Path, progress: ReportProgress
    ) -> PreparedImages:
        from echelon.data.images.prepare import prepare_images

        return prepare_images(recipe.data, recipe_folder=recipe_folder, cache=cache, progress=progress)

    def open_data(self, folder: Path) -> PreparedImages:
        from echelon.data.images.image_store import open_images

        return open_images(folder)

    def steps_per_epoch(self, recipe: ClassificationRecipe, prepared: PreparedImages) -> float:
        from echelon.data.batch_plan import plan_images

        return plan_images(recipe, prepared).steps_per_epoch

    def find_data(
        self, recipe: ClassificationRecipe, recipe_folder: Path, cache: Path
    ) -> PreparedImages | None:
        from echelon.data.images.prepare import find_images

        return find_images(recipe.data, recipe_folder=recipe_folder, cache=cache)

    def format_prepared(self, prepared: PreparedImages) -> str:
        from echelon.commands.results import format_prepared_images

        return format_prepared_images(prepared)

    def put_data(self, prepared: PreparedImages, address: str) -> str:
        raise UserError(f"--to {address}: is for parallel text; images are prepared where they are used")

    def write_model_files(self, run: RunFolder, prepared: PreparedImages) -> None:
        from echelon.runfolder import write_json

        write_json(run.images, prepared.what_classifying_needs())

    def parameter_sizes(
        self, recipe: ClassificationRecipe, prepared: PreparedImages | None
    ) -> Mapping[str, tuple[int, ...]]:
        from echelon.explain.image_description import num_classes
        from echelon.recipe.sizes import image_shape, model_pixels
        from echelon.shapes.image_models import parameter_sizes

        shape = image_shape(recipe.model, num_classes(recipe, prepared), model_pixels(recipe.data))
        return parameter_sizes(shape)

    def is_larger_than(self, recipe: ClassificationRecipe, num_tensors: int, num_numbers: int) -> bool:
        from echelon.recipe.sizes import image_shape, model_pixels
        from echelon.shapes.image_models import parameter_count

        return parameter_count(image_shape(recipe.model, 1, model_pixels(recipe.data))) > num_numbers

    def describe(self, recipe: ClassificationRecipe, prepared: PreparedImages | None) -> ImageDescription:
        from echelon.explain.image_description import describe_images

        return describe_images(recipe, prepared)

    def format_description(self, description: ImageDescription) -> str:
        from echelon.explain.image_description import format_images

        return format_images(description)

    def workload(
        self, recipe: ClassificationRecipe, prepared: PreparedImages | None, steps: int | None
    ) -> Workload:
        from echelon.explain.workload import image_workload

        return image_workload(recipe, prepared, steps)

    def build_task(
        self, recipe: ClassificationRecipe, run: RunFolder, device: torch.device
    ) -> ClassificationTask:
        from echelon.tasks.classification import ClassificationTask

        return ClassificationTask.of_run(recipe, run, device)

    def measure_training_set(self, manifest: Any) -> TrainingSetSize:
        from echelon.explain.training_set import measure_pictures

        return measure_pictures(manifest)

    def compare_outputs(
        self,
        recipe: ClassificationRecipe,
        first: Sequence[str],
        second: Sequence[str],
        references: Sequence[str],
    ) -> list[Difference]:
        from echelon.explain.significance import compare_classes

        return [compare_classes(first, second, references)]

    def refuse_sets(self, options: SetOptions) -> None:
        if options.has_text:
            raise UserError(
                "--source, --target and --test are for runs that translate; give --images FOLDER to this one"
            )

    def open_sets(
        self,
        run: RunFolder,
        recipe: ClassificationRecipe,
        sets: Sequence[GivenSet],
        folder: Path,
        device: torch.device,
    ) -> Scorable:
        from echelon.commands.evaluate import open_pictures

        return open_pictures(run, recipe, sets, device)

    def export(self, run: RunFolder, recipe: ClassificationRecipe, options: ExportOptions) -> dict[str, Any]:
        from echelon.export.classifiers import export_classifier

        return export_classifier(run, recipe, options)

    def load_served(self, options: ServeOptions, place: Path) -> Served:
        from echelon.serve.model_server import load_served_classifier

        return load_served_classifier(options)

    def add_routes(self, app: Any, model: Any, state: ServerState) -> None:
        from echelon.serve.picture_queue import add_classification

        add_classification(app, model, state)


TASK = ClassificationDeclaration()

"""Translation: parallel text, a Transformer, BLEU and chrF; used by `translate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echelon.declarations.declaration import TaskDeclaration
from echelon.errors import Problem, UserError
from echelon.recipe.schema import TranslationRecipe
from echelon.recipe.sizes import model_sizes, transformer_shape
from echelon.recipe.tasks import Score, StepSize, Use
from echelon.recipe.translation_checks import find_translation_problems, refuse_idle_preset

if TYPE_CHECKING:
    import torch

    from echelon.commands.evaluate import Scorable
    from echelon.commands.given_sets import GivenSet, SetOptions
    from echelon.data.prepared import Prepared
    from echelon.data.progress import ReportProgress
    from echelon.explain.significance import Difference
    from echelon.explain.text_description import TextDescription
    from echelon.explain.training_set import TrainingSetSize
    from echelon.explain.workload import Workload
    from echelon.export.export_folder import ExportOptions
    from echelon.runfolder import RunFolder
    from echelon.serve.model_server import Served, ServeOptions
    from echelon.serve.state import ServerState
    from echelon.tasks.translation import TranslationTask


class TranslationDeclaration(TaskDeclaration[TranslationRecipe, "Prepared"]):
    """Implements `TaskDeclaration`."""

    recipe = TranslationRecipe
    scores = (Score("bleu", "BLEU"), Score("chrf", "chrF"))
    score_title = "Translation quality on the validation set"
    unit = "tokens"
    targets = "target tokens"
    use = Use(verb="translate", does="translates", do="translate")

    def batch(self, recipe: TranslationRecipe) -> StepSize:
        return StepSize("train.batch_tokens", recipe.train.batch_tokens, self.unit, is_limit=True)

    def find_problems(self, recipe: TranslationRecipe) -> Iterable[Problem]:
        return find_translation_problems(recipe)

    def refuse_idle(self, recipe: TranslationRecipe, overrides: Sequence[str]) -> None:
        refuse_idle_preset(recipe, overrides)

    def width(self, recipe: TranslationRecipe) -> int:
        return model_sizes(recipe.model)["d_model"]

    def slot_sizes(self, recipe: TranslationRecipe, prepared: Prepared) -> tuple[int, int]:
        from echelon.resolve.measured import SMALLEST_SLOT, largest_slot

        return max(SMALLEST_SLOT, recipe.data.max_tokens), largest_slot(recipe, prepared)

    def with_slot_size(self, recipe: TranslationRecipe, size: int) -> TranslationRecipe:
        from echelon.resolve.measured import with_slot_tokens

        return with_slot_tokens(recipe, size)

    def prepare(
        self, recipe: TranslationRecipe, recipe_folder: Path, cache: Path, progress: ReportProgress
    ) -> Prepared:
        from echelon.data.prepare import fetch_prepared, prepare

        if recipe.data.prepared is not None:
            return fetch_prepared(recipe.data, cache)
        tokeniser = _given_tokeniser(recipe)
        return prepare(
            recipe.data, recipe_folder=recipe_folder, cache=cache, progress=progress, tokeniser=tokeniser
        )

    def open_data(self, folder: Path) -> Prepared:
        from echelon.data.prepared import open_prepared

        return open_prepared(folder)

    def steps_per_epoch(self, recipe: TranslationRecipe, prepared: Prepared) -> float:
        from echelon.data.batch_plan import plan_batches

        return plan_batches(recipe, prepared).steps_per_epoch

    def find_data(self, recipe: TranslationRecipe, recipe_folder: Path, cache: Path) -> Prepared | None:
        from echelon.data.prepare import find_fetched, find_prepared

        if recipe.data.prepared is not None:
            return find_fetched(recipe.data, cache)
        tokeniser = _given_tokeniser(recipe)
        return find_prepared(recipe.data, recipe_folder=recipe_folder, cache=cache, tokeniser=tokeniser)

    def fetched_from(self, recipe: TranslationRecipe) -> str | None:
        return recipe.data.prepared

    def data_notes(self, recipe: TranslationRecipe, prepared: Prepared) -> list[str]:
        from echelon.data.held_out import notes_on

        return notes_on(prepared, recipe)

    def format_prepared(self, prepared: Prepared) -> str:
        from echelon.commands.results import format_prepared_text

        return format_prepared_text(prepared)

    def put_data(self, prepared: Prepared, address: str) -> str:
        from echelon.store import put_folder

        place = f"{address.rstrip('/')}/{prepared.key}"
        put_folder(prepared.folder, place)
        return place

    def write_model_files(self, run: RunFolder, prepared: Prepared) -> None:
        from echelon.runfolder import write_atomically

        write_atomically(run.tokeniser, prepared.tokeniser_path.read_bytes())

    def parameter_sizes(
        self, recipe: TranslationRecipe, prepared: Prepared | None
    ) -> Mapping[str, tuple[int, ...]]:
        from echelon.shapes.transformer import parameter_sizes

        vocabulary = prepared.manifest.vocabulary if prepared else recipe.data.vocabulary
        shape = transformer_shape(recipe.model, vocabulary)
        return parameter_sizes(shape)

    def is_larger_than(self, recipe: TranslationRecipe, num_tensors: int, num_numbers: int) -> bool:
        from echelon.shapes.transformer import parameter_count

        shape = transformer_shape(recipe.model, 1)
        num_layers = shape.encoder_layers + shape.decoder_layers
        return num_layers > num_tensors or parameter_count(shape) > num_numbers

    def describe(self, recipe: TranslationRecipe, prepared: Prepared | None) -> TextDescription:
        from echelon.explain.text_description import describe_text

        return describe_text(recipe, prepared)

    def format_description(self, description: TextDescription) -> str:
        from echelon.explain.text_description import format_text

        return format_text(description)

    def workload(self, recipe: TranslationRecipe, prepared: Prepared | None, steps: int | None) -> Workload:
        from echelon.explain.workload import translation_workload

        return translation_workload(recipe, prepared, steps)

    def build_task(self, recipe: TranslationRecipe, run: RunFolder, device: torch.device) -> TranslationTask:
        from echelon.tasks.translation import TranslationTask

        return TranslationTask.of_run(recipe, run, device)

    def measure_training_set(self, manifest: Any) -> TrainingSetSize:
        from echelon.explain.training_set import measure_text

        return measure_text(manifest)

    def compare_outputs(
        self,
        recipe: TranslationRecipe,
        first: Sequence[str],
        second: Sequence[str],
        references: Sequence[str],
    ) -> list[Difference]:
        from echelon.explain.significance import compare_translations

        return compare_translations(first, second, references, recipe.evaluate.tokenisation)

    def refuse_sets(self, options: SetOptions) -> None:
        if options.images:
            raise UserError(
                "--images is for runs that classify images; this one translates: give --source and --target"
            )

    def open_sets(
        self,
        run: RunFolder,
        recipe: TranslationRecipe,
        sets: Sequence[GivenSet],
        folder: Path,
        device: torch.device,
    ) -> Scorable:
        from echelon.commands.evaluate import open_texts

        return open_texts(run, recipe, sets, folder, device)

    def export(self, run: RunFolder, recipe: TranslationRecipe, options: ExportOptions) -> dict[str, Any]:
        from echelon.export.export import export_translator

        return export_translator(run, recipe, options)

    def load_served(self, options: ServeOptions, place: Path) -> Served:
        from echelon.serve.model_server import load_served_translator

        return load_served_translator(options, place)

    def add_routes(self, app: Any, model: Any, state: ServerState) -> None:
        from echelon.serve.app import add_translation

        add_translation(app, model, state)


def _given_tokeniser(recipe: TranslationRecipe) -> Path | None:
    """Fine-tuning keeps the vocabulary of the run it starts from."""
    if recipe.train.init_from is None:
        return None
    from echelon.pretrained.conversion import starting_run

    return starting_run(recipe.train.init_from).tokeniser


TASK = TranslationDeclaration()

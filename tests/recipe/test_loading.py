"""Loading recipes: what a user gets to read for every kind of mistake, and what --set does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.errors import RecipeError, UserError
from echelon.recipe.loading import apply_override, check_recipe, load_recipe, parse_value
from echelon.recipe.schema import Adam, Cosine, Fixed, Sgd, TranslationRecipe
from echelon.recipe.sizes import model_sizes
from echelon.recipe.toml import dump_table
from echelon.shapes.transformer import PRESETS
from tests.sample_recipe import sample_recipe, sample_table

RECIPES = Path(__file__).parents[2] / "recipes"


def problems(*overrides: str, **sections: Any) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        sample_recipe(*overrides, **sections)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_that_comes_with_echelon_loads(path: Path) -> None:
    assert load_recipe(path).name == path.stem


BROKEN = """\
version = 1
name = "broken run"

[data]
valid = { source = "valid.en", target = "valid.de", embeded = true }

[[data.train]]
source = "train.en"
target = "train.de"
weigth = 2.0

[modle]
preset = "tiny"

[train]
stpes = 100
slots = "four"
precision = "bfloat16"

[optimiser]
kind = "sgd"
beta1 = 0.9

[schedule]
kind = "cosin"

[[early_stop]]
metric = "blue"
"""

BROKEN_SAYS = """\
broken.toml has 10 problems:
  name: 'broken run' is not allowed; use letters, digits, '.', '_' and '-', a letter or digit first
  data.train.0.weigth: there is no such key; did you mean 'weight'?
  data.valid.embeded: there is no such key; did you mean 'embedded'?
  train.slots: 'four' is not allowed: it must be a whole number
  train.precision: 'bfloat16' is not allowed; use 'float32', 'bf16' or 'fp16'; did you mean 'float32'?
  train.stpes: there is no such key; did you mean 'steps'?
  optimiser.beta1: there is no such key; the keys here are kind, momentum, nesterov, weight_decay, vector_rate
  schedule.kind: 'cosin' is not known; use one of transformer, inverse_sqrt, cosine, one_cycle, polynomial, \
piecewise, exponential, fixed, own; did you mean 'cosine'?
  early_stop.0.metric: 'blue' is not allowed; use 'bleu', 'chrf', 'loss' or 'perplexity'; did you mean 'bleu'?
  modle: there is no such key; did you mean 'model'?"""


def test_all_problems_of_a_recipe_are_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text(BROKEN)
    with pytest.raises(RecipeError) as caught:
        load_recipe(Path("broken.toml"))
    assert str(caught.value) == BROKEN_SAYS
    assert caught.value.exit_status == 2


def test_several_problems_between_keys_are_reported_at_once() -> None:
    found = problems("train.batch_tokens=4000", "train.slots=3", "model.heads=5", "train.epochs=2")
    assert [text.split(":")[0] for text in found] == ["train", "train.batch_tokens", "model.heads"]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.stpes=3", "train.stpes: there is no such key; did you mean 'steps'?"),
        (
            "track.comet=true",
            "track.comet: there is no such key; the keys here are tensorboard, mlflow, wandb",
        ),
        ("tarin.steps=3", "tarin: there is no such key; did you mean 'train'?"),
        ("train.steps=true", "train.steps: true is not allowed: it must be a whole number"),
        ("train.steps=1.5", "train.steps: 1.5 is not allowed: it must be a whole number"),
        ("train.steps=0", "train.steps: 0 is not allowed: it must be greater than 0"),
        ("train.epochs=inf", "train.epochs: inf is not allowed: it must be a finite number"),
        ("train.clip_norm=nan", "train.clip_norm: nan is not allowed: it must be a finite number"),
        ("model.dropout=1.0", "model.dropout: 1.0 is not allowed: it must be less than 1"),
        ("model.tied=1", "model.tied: 1 is not allowed: it must be true or false"),
        ("name=7", "name: 7 is not allowed: it must be text in quotes"),
        ("model=tiny", "model: 'tiny' is not allowed: it must be a table"),
        ("schedule=3", "schedule: 3 is not allowed: it must be a table"),
        ("data.train=3", "data.train: 3 is not allowed: it must be a list"),
        ("data.train.0=3", "data.train.0: 3 is not allowed: it must be a table"),
        ("data.train=[]", "data.train: [] is not allowed: it must have at least 1 item"),
        (
            "data.source_language=e",
            "data.source_language: 'e' is not allowed: it must have at least 2 characters",
        ),
        (
            "model.preset=bsae",
            "model.preset: 'bsae' is not allowed; use 'tiny', 'small', 'base' or 'big'; did you mean 'base'?",
        ),
        (
            "name=-x",
            "name: '-x' is not allowed; use letters, digits, '.', '_' and '-', a letter or digit first",
        ),
        (
            "schedule.warmup=3",
            "schedule.warmup: there is no such key; did you mean 'warmup_steps'?",
        ),
        (
            "schedule.final_learning_rate=0.1",  # a key of other kinds than the sample's
            "schedule.final_learning_rate: there is no such key; did you mean 'learning_rate'?",
        ),
        ("optimiser.beta1=0.5", "optimiser.kind: is missing; use one of adam, adamw, sgd, own"),
        (
            "optimiser.kind=adma",
            "optimiser.kind: 'adma' is not known; use one of adam, adamw, sgd, own; did you mean 'adam'?",
        ),
        ("schedule=", "schedule: is missing; it is needed: The learning rate over the steps."),
        (
            "schedule.learning_rate=",
            "schedule.learning_rate: is missing; it is needed: The rate.",
        ),
        ("version=", "version: is missing; it is needed: Version of the recipe format: 1."),
        ("version=true", "version: true is not allowed: it must be a whole number"),
        ("version='1'", "version: '1' is not allowed: it must be a whole number"),
        ("version=0", "version: 0 is not allowed: it must be greater than or equal to 1"),
        ("version=2", "version: 2 is newer than this Echelon understands (1); upgrade it"),
    ],
)
def test_a_wrong_key_or_value_is_named_and_explained(override: str, says: str) -> None:
    assert problems(override) == [says]


def test_a_long_value_is_shortened_in_its_error() -> None:
    (text,) = problems(f"train.steps={'x' * 500}")
    assert len(text) < 150


def test_an_empty_file_lists_everything_that_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.write_text("")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert [problem.key for problem in caught.value.problems] == [
        "version",
        "name",
        "data",
        "train",
        "schedule",
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"steps = = 3\n", "is not a recipe: not valid TOML: Invalid value (at line 1, column 9)"),
        (b"name = 'caf\xe9'\n", "is not a recipe: not UTF-8 text (invalid continuation byte)"),
        (b"\x89PNG\r\n", "is not a recipe: not UTF-8 text (invalid start byte)"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_recipe(path)
    assert str(caught.value) == f"{path} {says}"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such recipe file"):
        load_recipe(tmp_path / "missing.toml")
    with pytest.raises(UserError, match="cannot be read as a recipe: Is a directory"):
        load_recipe(tmp_path)


def test_windows_line_ends_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    text = (RECIPES / "multi30k.toml").read_text()
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert load_recipe(path) == load_recipe(RECIPES / "multi30k.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("100", 100),
        ("-1", -1),
        ("1_000", 1000),
        ("2e-3", 0.002),
        ("true", True),
        ("bf16", "bf16"),
        ('"100"', "100"),
        ("'a b'", "a b"),
        ("a b", "a b"),
        ("/data/x=y.en", "/data/x=y.en"),
        ("[1, 2]", [1, 2]),
        ("{ kind = 'fixed' }", {"kind": "fixed"}),
        ("1\nother = 2", "1\nother = 2"),
        ('a"b', 'a"b'),
    ],
)
def test_set_values_are_toml_or_else_text(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_set_reaches_into_tables_and_lists_and_makes_missing_tables() -> None:
    recipe = sample_recipe(
        "train.steps=7",
        "data.train.0.weight=2",
        "optimiser.kind=sgd",
        "optimiser.momentum=0.5",
        "data.test={source='t.en', target='t.de'}",
    )
    assert recipe.train.steps == 7
    assert recipe.data.train[0].weight == 2.0
    assert recipe.optimiser == Sgd(kind="sgd", momentum=0.5)
    assert recipe.data.test is not None
    assert recipe.data.test.source == "t.en"


def test_set_without_a_value_takes_the_key_out() -> None:
    recipe = sample_recipe("train.steps=", "train.epochs=2.5", "train.clip_norm=", "optimiser=")
    assert (recipe.train.steps, recipe.train.epochs) == (None, 2.5)
    assert recipe.optimiser == Adam()
    table = {"list": [1, 2, 3]}
    apply_override(table, "list.1=")
    assert table == {"list": [1, 3]}


def test_later_set_options_win() -> None:
    assert sample_recipe("seed=5", "seed=6").seed == 6


def test_set_can_replace_a_whole_section() -> None:
    recipe = sample_recipe("schedule={kind='cosine', learning_rate=1}")
    assert recipe.schedule == Cosine(kind="cosine", learning_rate=1.0)
    assert sample_recipe().schedule == Fixed(kind="fixed", learning_rate=1e-3)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("train.steps", "write it as KEY=VALUE, e.g. --set train.steps=100"),
        ("=100", "write it as KEY=VALUE, e.g. --set train.steps=100"),
        ("train..steps=1", "write it as KEY=VALUE, e.g. --set train.steps=100"),
        ("", "write it as KEY=VALUE, e.g. --set train.steps=100"),
        ("train.steps.x=1", "train.steps is a value, it has no keys"),
        ("train.steps.x.y=1", "x is not inside a table"),
        ("data.train.1.weight=2", "the list has no entry 1; the entries are 0 to 0"),
        ("data.train.first.weight=2", "the list has no entry first; the entries are 0 to 0"),
        ("data.train.²=3", "the list has no entry ²; the entries are 0 to 0"),
        ("early.0=3", "the list has no entry 0; it is empty"),
    ],
)
def test_a_set_option_that_cannot_be_applied_is_refused(override: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        apply_override(sample_table() | {"early": []}, override)
    assert str(caught.value) == f"--set {override}: {says}"
    assert not isinstance(caught.value, RecipeError)


def test_a_misspelt_set_key_is_reported_like_one_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train\.stesp: there is no such key; did you mean 'steps'\?"):
        load_recipe(RECIPES / "demo.toml", ["train.stesp=3"])


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
keys = st.sampled_from(
    ["version", "name", "data", "train", "schedule", "kind", "steps", "0", "valid", "cosine"]
)
tables = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=4)
)


@given(table=st.dictionaries(keys, tables))
def test_whatever_the_table_holds_the_error_is_a_recipe_error(table: dict[str, Any]) -> None:
    with pytest.raises(RecipeError):
        check_recipe(table, where="any.toml")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("data.train.0.source=https://data.example/train.en?sig=s3cr3t", "data.train.0.source"),
        ('data.mirrors=["https://me:s3cr3t@data.example/"]', "data.mirrors.0"),
        (
            'data.download=[{name = "x.tgz", urls = ["https://data.example/x?X-Goog-Signature=s3cr3t"]}]',
            "data.download.0.urls.0",
        ),
        ("data.prepared=sftp://me:s3cr3t@data.example/prepared", "data.prepared"),
        ("checkpoint.mirror=ftp://me:s3cr3t@data.example/runs", "checkpoint.mirror"),
        ("track.mlflow=https://me:s3cr3t@mlflow.example/", "track.mlflow"),
    ],
)
def test_a_recipe_has_no_secrets(override: str, key: str, tmp_path: Path) -> None:
    """Neither in the file nor by an override; and an override does not hide what the file has."""
    file = tmp_path / "recipe.toml"
    for table, overrides in (
        (sample_table(), [override]),
        (sample_table(override), [f"{override.partition('=')[0]}=3"]),
    ):
        file.write_text(dump_table(table))
        with pytest.raises(RecipeError, match=r"write \$\{ECHELON_URL_NAME\} in its place") as caught:
            load_recipe(file, overrides)
        assert f"{key}: has the " in str(caught.value)
        assert "s3cr3t" not in str(caught.value)


def test_an_override_is_quoted_without_its_secrets(tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text(dump_table(sample_table()))
    with pytest.raises(UserError, match="is a value, it has no keys") as caught:
        load_recipe(file, ["train.steps.x=https://me:s3cr3t@data.example/"])
    assert "https://***@data.example/" in str(caught.value)


def test_a_key_without_its_table_is_found() -> None:
    with pytest.raises(RecipeError, match=r"steps: there is no such key; did you mean train\.steps\?"):
        load_recipe(RECIPES / "demo.toml", ["steps=5"])
    with pytest.raises(RecipeError, match=r"did you mean schedule\.warmup_steps\?"):
        load_recipe(RECIPES / "demo.toml", ["train.warmup_steps=5"])


def test_a_preset_that_fills_in_no_size_is_refused() -> None:
    demo = RECIPES / "demo.toml"
    with pytest.raises(
        UserError, match=r"model\.preset=base changes nothing.* add --set model\.d_model= "
    ) as caught:
        load_recipe(demo, ["model.preset=base"])
    advice = [word for word in str(caught.value).split() if word.startswith("model.") and word.endswith("=")]
    recipe = load_recipe(demo, ["model.preset=base", *advice])
    assert isinstance(recipe, TranslationRecipe)
    assert model_sizes(recipe.model) == PRESETS["base"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (".".join(["a"] * 3000) + " = 1", "is not a recipe: nested too deeply"),
        ("[" + ".".join(["a"] * 3000) + "]", "is not a recipe: nested too deeply"),
        ("version = 0x" + "f" * 5000, "not valid TOML: a whole number has more than 64 bits"),
    ],
)
def test_a_recipe_that_no_key_could_have_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "deep.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        load_recipe(path)

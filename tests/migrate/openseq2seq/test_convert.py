from __future__ import annotations

import re

import pytest

from echelon.data.cleaning import clean_pairs
from echelon.errors import UserError
from echelon.inference.model_folder import text_rules
from echelon.migrate.openseq2seq.convert import convert
from echelon.recipe.loading import check_recipe
from echelon.recipe.schedule import rate_by_step
from echelon.recipe.schema import Adam, Noam, TranslationRecipe
from tests.migrate.openseq2seq.configs import TRANSFORMER

CONFIG = TRANSFORMER.format(data="wmt")


def changed(old: str, new: str) -> str:
    assert old in CONFIG
    return CONFIG.replace(old, new)


def test_a_transformer_means_what_it_meant() -> None:
    recipe = check_recipe(convert(CONFIG, "folder/transformer small.py").table, "x")
    assert isinstance(recipe, TranslationRecipe)
    assert recipe.name == "transformer-small"
    assert recipe.data.tokeniser == "wmt/common.model"
    assert (recipe.data.train[0].source, recipe.data.train[0].pieces) == ("wmt/train.en.tok", True)
    assert recipe.data.valid.target == "wmt/valid.de.tok"
    assert recipe.data.test is None
    assert recipe.data.max_tokens == 56
    model = recipe.model
    assert (model.d_model, model.d_ff, model.heads, model.norm) == (32, 128, 4, "pre")
    assert (model.encoder_layers, model.decoder_layers) == (2, 3)
    assert (model.dropout, model.attention_dropout, model.activation_dropout) == (0.3, 0.1, 0.2)
    train = recipe.train
    assert (train.steps, train.batch_tokens, train.slots, train.precision) == (40, 512, 1, "float32")
    assert (train.label_smoothing, train.log_every) == (0.1, 5)
    assert recipe.optimiser == Adam(beta1=0.9, beta2=0.997, epsilon=1e-9)
    assert recipe.schedule == Noam(kind="transformer", scale=2.0, warmup_steps=80)
    assert (recipe.evaluate.every, recipe.evaluate.beam, recipe.evaluate.length_penalty) == (20, 5, 0.6)
    assert (recipe.checkpoint.every, recipe.checkpoint.keep) == (10, 3)


def test_no_pair_is_cleaned_away_that_was_trained_on() -> None:
    made = convert(CONFIG, "x.py")
    recipe = check_recipe(made.table, "x")
    assert isinstance(recipe, TranslationRecipe)
    same, long, one = "a word", " ".join(["word"] * 200), "word"
    pairs = [(same, same), (long, long), (one, long), (one, one)]
    assert clean_pairs(pairs, recipe.data.clean).dropped == {}
    assert not recipe.data.clean.drop_duplicates
    assert any(
        "max_length is data.max_tokens: pairs with a longer side are left out" in note for note in made.notes
    )


def test_what_has_no_equivalent_is_listed_with_line_and_reason() -> None:
    notes = convert(
        changed('"use_horovod": True', '"use_horovod": True, "larc_params": {}, "my_key": 3'), "x.py"
    ).notes
    text = "\n".join(notes)
    assert re.search(r"line \d+: larc_params has no equivalent: rates do not adapt layer by layer", text)
    assert re.search(r"line \d+: my_key is not known to this converter", text)
    assert re.search(r"line \d+: batch_size_per_gpu counts pairs: 16 became 512 tokens", text)
    assert re.search(r"line \d+: logdir is not part of a recipe; give it as --run", text)
    assert re.search(r"line \d+: data_layer_params.target_file is the source again", text)
    assert "shuffle_buffer_size is left out" in text
    assert "GO_SYMBOL" not in text
    assert re.search(r"line \d+: eval_params.batch_size_per_gpu is left out", text)
    assert "eval_params.data_layer" not in text


def test_workers_and_accumulated_batches_become_slots() -> None:
    made = convert(changed('"num_gpus": 1', '"num_gpus": 1, "iter_size": 2'), "x.py", workers=4)
    table, notes = made.table, made.notes
    assert (table["train"]["slots"], table["train"]["workers"], table["train"]["batch_tokens"]) == (
        8,
        4,
        8 * 512,
    )
    assert not any("use_horovod makes" in note for note in notes)
    notes = convert(CONFIG, "x.py").notes
    assert any("give --workers N to convert for N" in note for note in notes)


def test_listed_gpus_are_counted() -> None:
    made = convert(changed('"num_gpus": 1', '"gpu_ids": [0, 2, 3]'), "x.py")
    assert (made.table["train"]["slots"], made.table["train"]["workers"]) == (3, 3)
    assert any("gpu_ids are only counted" in note for note in made.notes)


def test_none_is_as_good_as_not_given() -> None:
    table = convert(
        changed('"max_steps": 40', '"max_steps": 40, "max_grad_norm": None, "num_epochs": None'), "x.py"
    ).table
    assert "clip_norm" not in table["train"]
    assert "epochs" not in table["train"]


def test_text_that_is_not_shuffled_is_pointed_out() -> None:
    assert not any(": shuffle" in note for note in convert(CONFIG, "x.py").notes)
    notes = convert(changed('"shuffle": True', '"shuffle": False'), "x.py").notes
    assert any("shuffle has no equivalent: every epoch is shuffled" in note for note in notes)


@pytest.mark.parametrize(
    ("policy", "parameters", "schedule"),
    [
        ("fixed_lr", '"learning_rate": 0.1', {"kind": "fixed", "learning_rate": 0.1}),
        (
            "poly_decay",
            '"learning_rate": 0.1, "power": 2, "min_lr": 0.01, "warmup_steps": 5, "decay_steps": 9',
            {
                "kind": "polynomial",
                "learning_rate": 0.1,
                "power": 2.0,
                "final_learning_rate": 0.01,
                "warmup_steps": 5,
            },
        ),
        (
            "exp_decay",
            '"learning_rate": 0.1, "decay_steps": 10, "decay_rate": 0.5, "use_staircase_decay": True',
            {"kind": "exponential", "learning_rate": 0.1, "decay": 0.5, "decay_steps": 10, "staircase": True},
        ),
        (
            "piecewise_constant",
            '"learning_rate": 0.2, "boundaries": [10, 20], "decay_rates": [0.5, 0.25]',
            {"kind": "piecewise", "boundaries": [10, 20], "learning_rates": [0.2, 0.1, 0.05]},
        ),
        (
            "cosine_decay",
            '"learning_rate": 0.1',
            {"kind": "cosine", "learning_rate": 0.1, "final_learning_rate": 0.0},
        ),
    ],
)
def test_policies_of_the_rate_have_equivalents(
    policy: str, parameters: str, schedule: dict[str, object]
) -> None:
    table = convert(with_policy(policy, parameters), "x.py").table
    assert table["schedule"] == schedule
    check_recipe(table, "x")


def with_policy(policy: str, parameters: str) -> str:
    text = CONFIG.replace("import transformer_policy", f"import {policy}").replace(
        "transformer_policy,", f"{policy},"
    )
    return re.sub(r'"lr_policy_params": \{[^}]*\}', f'"lr_policy_params": {{{parameters}}}', text)


@pytest.mark.parametrize("d_model", [32, 64])
def test_the_rate_is_that_of_the_policy_s_own_width(d_model: int) -> None:
    made = convert(
        with_policy(
            "transformer_policy",
            f'"learning_rate": 2.0, "coefficient": 0.5, "warmup_steps": 80, "d_model": {d_model}',
        ),
        "x.py",
    )
    rate = rate_by_step(check_recipe(made.table, "x"), steps=40)
    for step in (1, 80, 4000):
        theirs = 2.0 * 0.5 * d_model**-0.5 * min(step * 80**-1.5, step**-0.5)
        assert rate(step) == pytest.approx(theirs)
    assert any("lr_policy_params.d_model is 64" in note for note in made.notes) == (d_model == 64)


def test_exponential_decay_takes_the_whole_training_where_its_steps_are_not_given() -> None:
    text = with_policy("exp_decay", '"learning_rate": 0.1, "decay_rate": 0.5')
    assert convert(text, "x.py").table["schedule"]["decay_steps"] == 40
    in_epochs = text.replace('"max_steps": 40', '"num_epochs": 3')
    with pytest.raises(
        UserError, match=r"lr_policy_params.decay_steps is missing, and the training's length"
    ):
        convert(in_epochs, "x.py")
    given = in_epochs.replace('"decay_rate": 0.5', '"decay_rate": 0.5, "decay_steps": 7')
    assert convert(given, "x.py").table["schedule"]["decay_steps"] == 7
    with pytest.raises(UserError, match=r"lr_policy_params.decay_rate is missing"):
        convert(with_policy("exp_decay", '"learning_rate": 0.1'), "x.py")


def test_boundaries_of_a_rate_must_be_a_list() -> None:
    text = CONFIG.replace("transformer_policy,", "piecewise,").replace(
        "import transformer_policy", "import piecewise_constant as piecewise"
    )
    text = re.sub(
        r'"lr_policy_params": \{[^}]*\}', '"lr_policy_params": {"learning_rate": 1.0, "boundaries": 30}', text
    )
    with pytest.raises(UserError, match=r"lr_policy_params.boundaries is 30, not a list of numbers"):
        convert(text, "x.py")


TENSORFLOW_ADAM = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}


@pytest.mark.parametrize(
    ("optimiser", "expected"),
    [
        ('"Momentum"', {"kind": "sgd", "momentum": 0.5}),
        ("tf.train.AdamOptimizer", {"kind": "adam", **TENSORFLOW_ADAM}),
        ('"AdamW"', {"kind": "adamw", **TENSORFLOW_ADAM, "weight_decay": 0.0}),
    ],
)
def test_optimisers_have_equivalents(optimiser: str, expected: dict[str, object]) -> None:
    text = changed("tf.contrib.opt.LazyAdamOptimizer", optimiser)
    text = re.sub(r'"optimizer_params": \{[^}]*\}', '"optimizer_params": {"momentum": 0.5}', text)
    assert convert(text, "x.py").table["optimiser"] == expected


def test_an_optimiser_without_equivalent_is_refused_as_its_rate_suits_no_other() -> None:
    text = changed("tf.contrib.opt.LazyAdamOptimizer", '"NovoGrad"').replace(
        '"learning_rate": 2.0', '"learning_rate": 0.04'
    )
    says = (
        r"x\.py:\d+: optimizer is NovoGrad, which has no equivalent, and its rate \(0\.04\) would not suit another; "
        r"choose one of Adam, AdamW, Momentum and SGD, and a rate for it"
    )
    with pytest.raises(UserError, match=says):
        convert(text, "x.py")


UNREADABLE = (
    "base_model = Text2Text\nscale = [x for x in range(3)][0]\nif scale:\n    scale = 2\nhook = lambda x: x\n"
)
"""More Python than a configuration is read with, in every place that examples of OpenSeq2Seq have it."""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("import Text2Text", "import Speech2Text as Text2Text", r"x\.py:\d+: base_model is Speech2Text"),
        (
            '"encoder": TransformerEncoder',
            '"encoder": tf.Rnn',
            r"x\.py:\d+: encoder is Rnn; only Transformer",
        ),
        (
            '"decoder": TransformerDecoder',
            '"decoder": tf.Rnn',
            r"x\.py:\d+: decoder is Rnn; only Transformer",
        ),
        ("x", "x", r"x\.py:\d+:9: a ListComp expression is more than"),
    ],
)
def test_a_model_without_equivalent_is_refused_before_the_python_in_its_settings(
    old: str, new: str, message: str
) -> None:
    text = changed("base_model = Text2Text\n", UNREADABLE).replace(
        '"optimizer_params": {', '"optimizer_params": {"clip": lambda x: min(x, 1.0), '
    )
    with pytest.raises(UserError, match=message):
        convert(text.replace(old, new), "x.py")


def test_what_the_configuration_says_of_its_optimiser_stays() -> None:
    text = changed("tf.contrib.opt.LazyAdamOptimizer", '"AdamW"')
    text = re.sub(
        r'"optimizer_params": \{[^}]*\}', '"optimizer_params": {"beta2": 0.95, "weight_decay": 0.1}', text
    )
    expected = {"kind": "adamw", "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
    assert convert(text, "x.py").table["optimiser"] == expected


def test_mixed_precision_and_regularisation_are_taken_over() -> None:
    text = changed(
        '"dtype": tf.float32',
        '"dtype": "mixed", "loss_scaling": "Backoff", "max_grad_norm": 2, "random_seed": 5, '
        '"regularizer": tf.contrib.layers.l2_regularizer, "regularizer_params": {"scale": 0.001}',
    )
    recipe = check_recipe(convert(text, "x.py").table, "x")
    assert (recipe.train.precision, recipe.train.clip_norm, recipe.seed) == ("fp16", 2.0, 5)
    assert recipe.optimiser.weight_decay == 0.001


def test_a_save_at_the_very_end_becomes_auto() -> None:
    made = convert(changed('"save_checkpoint_steps": 10', '"save_checkpoint_steps": 39'), "x.py")
    table, notes = made.table, made.notes
    assert "every" not in table["checkpoint"]
    assert any("too rare for 40 steps" in note for note in notes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("base_model = Text2Text", "base_model = Speech2Text", r"Speech2Text, which nothing before defines"),
        (
            "import Text2Text",
            "import Text2Speech as Text2Text",
            r"x\.py:\d+: base_model is Text2Speech, which has no equivalent",
        ),
        (
            '"encoder": TransformerEncoder',
            '"encoder": tf.Rnn',
            r"x\.py:\d+: encoder is Rnn; only TransformerEncoder",
        ),
        (
            '"num_heads": 4,\n        "attention_dropout": 0.1,\n        "relu',
            '"num_heads": 8,\n        "attention_dropout": 0.1,\n        "relu',
            "both must be alike",
        ),
        ('"max_steps": 40', '"max_steps": "many"', r"max_steps is 'many', not a number"),
        ('"max_steps": 40', '"max_steps": float("inf")', r"max_steps is inf, not a number"),
        ('"num_gpus": 1', '"num_gpus": 0', r"num_gpus is 0; give 1 or more"),
        ('"num_gpus": 1', '"gpu_ids": "0,1"', r"gpu_ids is '0,1', not a list of numbers"),
        ('"dtype": tf.float32', '"dtype": tf.int8', r"dtype is tensorflow\.int8; use"),
        ('"lr_policy": transformer_policy', '"lr_policy": tf.mine', "lr_policy mine has no equivalent"),
        (
            '"tgt_vocab_file": data_root + "common.vocab"',
            '"tgt_vocab_file": data_root + "de.vocab"',
            "two languages",
        ),
        ('"source_file": data_root + "train.en.tok",', "", "source_file is missing"),
        ('"delimiter": " "', '"delimiter": "|"', r"x\.py:\d+: data_layer_params\.delimiter is not a space"),
        ("base_params = {", "other = {", "has no base_model or no base_params"),
    ],
)
def test_what_cannot_be_converted_is_an_error(old: str, new: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(changed(old, new), "x.py")


@pytest.mark.parametrize(
    ("source", "target", "languages", "why"),
    [
        ("es/train.clean.es.tok", "en/train.clean.en.tok", "es to en", "as the names of the training files"),
        ("europarl.cs-en.cs", "europarl.cs-en.en", "cs to en", "as the names of the training files"),
        ("train.src", "train.tgt", "en to de", "as nothing else is known"),
        ("a.es", "b.en", "en to de", "as nothing else is known"),
        ("train.es.tok", "train.en", "en to de", "as nothing else is known"),
    ],
)
def test_languages_are_those_of_the_files_names_or_assumed_and_said(
    source: str, target: str, languages: str, why: str
) -> None:
    text = CONFIG.replace('data_root + "train.en.tok"', f'"{source}"')
    made = convert(text.replace('data_root + "train.de.tok"', f'"{target}"'), "x.py")
    data = made.table["data"]
    assert f"{data['source_language']} to {data['target_language']}" == languages
    assert any(f"names no languages: {languages} is assumed, {why}" in note for note in made.notes)


def test_lines_longer_than_in_training_are_translated_whole_as_infer_params_say() -> None:
    text = changed(
        '"source_file": data_root + "test.en.tok",', '"source_file": "test.en.tok", "max_length": 512,'
    )
    made = convert(text, "x.py")
    recipe = check_recipe(made.table, "x")
    assert isinstance(recipe, TranslationRecipe)
    assert (recipe.data.max_tokens, text_rules(recipe).longest) == (56, 512)
    notes = "\n".join(made.notes)
    assert re.search(r"line \d+: data_layer_params.max_length is evaluate.split_above for infer", notes)
    assert re.search(r"line \d+: data_layer_params.max_length is left out for eval", notes)


def test_what_becomes_of_long_lines_is_said_where_infer_params_do_not() -> None:
    made = convert(CONFIG, "x.py")
    recipe = check_recipe(made.table, "x")
    assert isinstance(recipe, TranslationRecipe)
    assert text_rules(recipe).longest == 56
    assert any("`translate` splits lines of more pieces than data.max_tokens" in note for note in made.notes)


TEST_TARGET = '"target_file": data_root + "test.en.tok",'


@pytest.mark.parametrize(
    ("instead", "note"),
    [
        ('"use_targets": False,', r"line \d+: data_layer_params\.use_targets is False for infer"),
        (
            '"target_file": data_root + "test.de.tok", "use_targets": False,',
            r"line \d+: data_layer_params\.use_targets is False for infer",
        ),
        ("", r"data_layer_params\.target_file is missing for infer"),
    ],
)
def test_text_without_references_is_translated_and_not_scored(instead: str, note: str) -> None:
    made = convert(changed(TEST_TARGET, instead), "x.py")
    assert "test" not in made.table["data"]
    assert made.infer_source == "wmt/test.en.tok"
    assert any(re.match(f"{note}: without references there is no data.test", said) for said in made.notes)


def test_text_with_references_is_scored() -> None:
    made = convert(changed(TEST_TARGET, '"target_file": "test.de.tok", "use_targets": True,'), "x.py")
    assert made.table["data"]["test"]["target"] == "test.de.tok"
    assert not any("use_targets" in note for note in made.notes)


def test_a_placeholder_for_the_path_is_pointed_out() -> None:
    notes = convert(TRANSFORMER.format(data="[REPLACE THIS]"), "x.py").notes
    assert any("put the real path there" in note for note in notes)


def test_settings_are_changed_as_run_py_took_them() -> None:
    changes = {"max_steps": "7", "lr_policy_params/learning_rate": "0.5", "logdir": "elsewhere"}
    made = convert(CONFIG, "x.py", None, changes)
    assert (made.table["train"]["steps"], made.table["schedule"]["scale"], made.logdir) == (
        7,
        0.5,
        "elsewhere",
    )
    assert made.infer_source == "wmt/test.en.tok"
    with pytest.raises(UserError, match="--max_step: the configuration has no such setting"):
        convert(CONFIG, "x.py", None, {"max_step": "7"})

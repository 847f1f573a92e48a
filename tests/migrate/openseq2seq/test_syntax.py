from __future__ import annotations

import re
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.migrate.openseq2seq.syntax import Named, Table, read_what_can_be


def read(text: str) -> Table:
    variables, problem = read_what_can_be(text, "config.py")
    if problem is not None:
        raise problem
    return variables


def test_what_configurations_are_written_with_is_understood() -> None:
    values = read(
        '"""Doc."""\n'
        "import tensorflow as tf\nimport os.path\nfrom a.b import c as d\n"
        "x = 4 * (2 + 1) // 5\ny = -1e-3\nz = x ** 2\nroot = '/data/'\n"
        "p = {'a': [1, 2.5, None, True], 'f': root + 'x', 'n': tf.contrib.opt.Lazy, **{'m': d}}\n"
        "p['g'] = os.path.join(root, 'y')\nq = dict(**{'k': 1, 'm': 3}, k=int(2.9))\n"
        "t: int = p['a'][0]\nname = f'{root}{x}'\n"
    )
    assert (values["x"], values["y"], values["z"]) == (2, -1e-3, 4)
    assert values["p"] == {
        "a": [1, 2.5, None, True],
        "f": "/data/x",
        "n": Named("tensorflow.contrib.opt.Lazy"),
        "m": Named("a.b.c"),
        "g": "/data/y",
    }
    assert (values["q"], values["t"], values["name"]) == ({"k": 2, "m": 3}, 1, "/data/2")
    assert values["p"].lines["g"] == 10


def test_tensorflow_is_there_without_an_import_as_run_py_had_it() -> None:
    assert read("x = tf.float32") == {"x": Named("tensorflow.float32")}
    assert read("tf = 3\nx = tf")["x"] == 3


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("a = 1\nb = open('x')", "2:5", "a call of open"),
        ("import os\nx = os.system('rm -rf /')", "2:5", "a call of os.system"),
        ("x = [i for i in (1, 2)]", "1:5", "a ListComp expression"),
        ("if True:\n  x = 1", "1:1", "an If statement"),
        ("def f(): pass", "1:1", "a FunctionDef statement"),
        ("x = lambda: 1", "1:5", "a Lambda expression"),
        ("x = undefined", "1:5", "undefined, which nothing before defines,"),
        ("x = 'a' * 1000000000", "1:5", "'a' * 1000000000"),
        ("x = 9 ** 9 ** 9", "1:5", "the power 9 ** 9 ** 9"),
        ("x = int('abc')", "1:5", "int('abc') (invalid literal"),
        ("x = int(float('inf'))", "1:5", "int(float('inf')) (cannot convert float infinity"),
        ("a = 10 ** 150\nb = a * a", "2:5", "so large a number"),
        ("a = 'x'\n" + "a = f'{a}{a}'\n" * 30, "21:5", "a value without end"),
        (f"a = '{'x' * 1000}'\nb = f'{'{a}' * 20_000}'", r"2:\d+", "a value without end"),
        (f"a = '{'x' * 1000}'\n" + "b = a + 'x'\n" * 10_000, r"\d+:5", "a value without end"),
        (
            "import os\n" + f"a = '{'x' * 1000}'\n" + f"b = os.path.join({'a, ' * 20_000})",
            r"3:\d+",
            "a value without end",
        ),
        ("a = []\nb = f'{a}'", "2:\\d+", "a text of something that is no text or number"),
        ("x = dict(**3)", "1:12", "** of something that is no dictionary"),
        ("x = 1 / 0", "1:5", "1 / 0 (division by zero)"),
        ("x = {'a': 1}\ny = x['b']", "2:5", "x['b'], which is not there,"),
        ("x, y = 1, 2", "1:1", "an assignment to (x, y)"),
        ("x = 'a'.join(['b'])", "1:5", "a call of 'a'.join"),
        ("x = 'a'.upper", "1:5", "the attribute upper of a value"),
        ("exec('x = 1')", "1:1", "an Expr statement"),
    ],
)
def test_more_python_than_that_is_an_error_with_line_and_column(text: str, where: str, what: str) -> None:
    with pytest.raises(UserError, match=rf"config\.py:{where}: {re.escape(what)}"):
        read(text)


def test_what_is_not_python_is_an_error_with_line_and_column() -> None:
    with pytest.raises(UserError, match=r"config\.py:2:5: is not Python"):
        read("x = 1\ny = = 2")
    with pytest.raises(UserError, match=r"is not Python|nested too deeply|no configuration"):
        read("x = " + "(" * 5000 + ")" * 5000)
    with pytest.raises(UserError, match=r"nested too deeply|is not Python"):
        read("x = " + "-" * 100_000 + "1")


@pytest.mark.parametrize(
    "text",
    [
        "a = [1, 1, 1, 1, 1, 1, 1, 1]\n" + "a = [a, a, a, a, a, a, a, a]\n" * 30,
        "a = {}\n" + "a = {'x': a, 'y': a}\n" * 60,
        "a = {}\na['x'] = a\n",
        "a = []\n" + "a = [a]\n" * 5000,
    ],
    ids=["shared lists", "shared tables", "itself", "deep"],
)
def test_values_that_hold_each_other_without_end_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="its values hold each other"):
        read(text)


def test_nothing_is_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    with pytest.raises(UserError):
        read(f"import pathlib\npathlib.Path({str(trap)!r}).touch()\n")
    assert not trap.exists()

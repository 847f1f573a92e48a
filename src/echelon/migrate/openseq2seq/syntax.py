"""The values that a Python configuration file assigns, read off its syntax tree. Nothing of it is ever executed."""

from __future__ import annotations

import ast
import operator
import posixpath
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from echelon.errors import UserError

LARGEST_EXPONENT = 1000
LONGEST_INTEGER_BITS = 512
LONGEST_VALUE = 1_000_000
MOST_EVALUATED = 10_000_000
"""Characters of texts and entries of lists that all expressions of a file may make together."""
DEEPEST_VALUE = 100


@dataclass(frozen=True)
class Named:
    """Something that the file imports, e.g. `tf.float32`: known by its name, never looked up."""

    path: str

    @property
    def name(self) -> str:
        """The last part: what configurations are told apart by."""
        return self.path.rpartition(".")[2]

    def __str__(self) -> str:
        return self.path


class Table(dict[str, Any]):
    """A dictionary of the file; `lines` says where each key stands."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}

    def put(self, key: str, value: Any, line: int) -> None:
        self[key] = value
        self.lines[key] = line

    def put_all(self, other: Table) -> None:
        for key, value in other.items():
            self.put(key, value, other.lines[key])


@dataclass(frozen=True)
class Unread:
    """A value of a dictionary that is more Python than a configuration is read with."""

    problem: UserError


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
PREDEFINED = {"tf": "tensorflow"}
"""What run.py put into a configuration before it ran it."""
_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "str": str}


def read_what_can_be(text: str, where: str) -> tuple[Table, UserError | None]:
    """The file's variables, and the first thing in it that cannot be read.

    What can be read tells whether the rest is worth mending: a model may have no equivalent at all.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UserError(f"{where}:{error.lineno}:{error.offset}: is not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{where}: is not Python: {error or 'nested too deeply'}") from None
    reader = _Reader(where)
    for statement in tree.body:
        try:
            reader.read(statement)
        except UserError as problem:
            reader.problems.append(problem)
        except RecursionError:
            raise UserError(f"{where}: is no configuration: nested too deeply") from None
    _refuse_endless(reader.variables, where)
    return reader.variables, reader.problems[0] if reader.problems else None


def _refuse_endless(variables: Table, where: str) -> None:
    """UserError if values hold each other: a few lines can name a list of lists too large to walk through."""
    left = LONGEST_VALUE
    waiting: list[tuple[Any, int]] = [(variables, 0)]
    while waiting:
        value, depth = waiting.pop()
        inner = value.values() if isinstance(value, Table) else value if isinstance(value, list) else ()
        waiting += [(entry, depth + 1) for entry in inner]
        left -= len(inner)
        if left < 0 or depth > DEEPEST_VALUE:
            raise UserError(
                f"{where}: is no configuration: its values hold each other, too often or too deeply"
            )


class _Reader:
    """Walks over the statements, and keeps what they assign."""

    def __init__(self, where: str) -> None:
        self.variables = Table()
        self.problems: list[UserError] = []
        """What could not be read, in the order of the file."""
        self._where = where
        self._left = MOST_EVALUATED

    def read(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass  # a docstring
            case ast.Import(names=names):
                for alias in names:
                    top = alias.name.partition(".")[0]
                    self._assign_name(
                        alias.asname or top, Named(alias.name if alias.asname else top), statement
                    )
            case ast.ImportFrom(module=module, names=names):
                for alias in names:
                    self._assign_name(alias.asname or alias.name, Named(f"{module}.{alias.name}"), statement)
            case ast.Assign(targets=targets, value=value):
                result = self.value(value)
                for target in targets:
                    self._assign(target, result)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self.value(value))
            case _:
                raise self._refused(statement, f"{_article(_kind(statement))} statement")

    def _assign_name(self, name: str, value: Any, node: ast.stmt | ast.expr) -> None:
        self.variables.put(name, value, node.lineno)

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._assign_name(name, value, target)
            case ast.Subscript(value=holder, slice=key):
                table, name = self.value(holder), self.value(key)
                if not isinstance(table, Table) or not isinstance(name, str):
                    raise self._refused(target, "an assignment to something that is no key of a dictionary")
                table.put(name, value, target.lineno)
            case _:
                raise self._refused(target, f"an assignment to {ast.unparse(target)}")

    def value(self, node: ast.expr) -> Any:
        """What an expression means; one that would grow without bound is refused."""
        value = self._read(node)
        if isinstance(value, str | list | Table):
            self._take(node, len(value))
        if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER_BITS:
            raise self._refused(node, "so large a number")
        return value

    def _take(self, node: ast.stmt | ast.expr, size: int) -> None:
        """Count what is made against the bounds of one value and of the whole file; every part of a value counts."""
        self._left -= size
        if size > LONGEST_VALUE or self._left < 0:
            raise self._refused(node, "a value without end")

    def _read(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._variable(node, name)
            case ast.Attribute(value=holder, attr=attribute):
                return self._attribute(node, holder, attribute)
            case ast.List(elts=entries) | ast.Tuple(elts=entries):
                return [self.value(entry) for entry in entries]
            case ast.Dict(keys=keys, values=values):
                return self._table(node, keys, values)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
                number = self._number(operand)
                return -number if isinstance(sign, ast.USub) else number
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self.value(operand)
            case ast.BinOp(left=left, op=op, right=right):
                return self._combine(node, self.value(left), op, self.value(right))
            case ast.Subscript(value=holder, slice=key):
                return self._entry(node, self.value(holder), self.value(key))
            case ast.Call():
                return self._call(node)
            case ast.JoinedStr(values=parts):
                return "".join(str(self._text_part(part)) for part in parts)
        raise self._refused(node, f"{_article(_kind(node))} expression")

    def _variable(self, node: ast.expr, name: str) -> Any:
        if name in self.variables:
            return self.variables[name]
        if name in PREDEFINED:
            return Named(PREDEFINED[name])
        raise self._refused(node, f"{name}, which nothing before defines,")

    def _attribute(self, node: ast.expr, holder: ast.expr, attribute: str) -> Named:
        value = self.value(holder)
        if not isinstance(value, Named):
            raise self._refused(node, f"the attribute {attribute} of a value")
        return Named(f"{value.path}.{attribute}")

    def _table(self, node: ast.expr, keys: list[ast.expr | None], values: list[ast.expr]) -> Table:
        table = Table()
        for key, value in zip(keys, values, strict=True):
            if key is None:  # {**other}
                table.put_all(self._other_table(value))
                continue
            name = self.value(key)
            if not isinstance(name, str | int):
                raise self._refused(key, "a dictionary's key that is no text")
            table.put(str(name), self._entry_value(value), key.lineno)
        return table

    def _entry_value(self, node: ast.expr) -> Any:
        """A dictionary's value; one that cannot be read does not keep the others from being read."""
        try:
            return self.value(node)
        except UserError as problem:
            self.problems.append(problem)
            return Unread(problem)

    def _other_table(self, node: ast.expr) -> Table:
        """What stands after `**`."""
        other = self.value(node)
        if not isinstance(other, Table):
            raise self._refused(node, "** of something that is no dictionary")
        return other

    def _number(self, node: ast.expr) -> int | float:
        value = self.value(node)
        if not isinstance(value, int | float):
            raise self._refused(node, "a sign before something that is no number")
        return value

    def _combine(self, node: ast.BinOp, left: Any, op: ast.operator, right: Any) -> Any:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        texts = isinstance(left, str) and isinstance(right, str) and isinstance(op, ast.Add)
        lists = isinstance(left, list) and isinstance(right, list) and isinstance(op, ast.Add)
        if type(op) not in _OPERATORS or not (numbers or texts or lists):
            raise self._refused(node, ast.unparse(node))
        if isinstance(op, ast.Pow) and (abs(left) > LONGEST_VALUE or abs(right) > LARGEST_EXPONENT):
            raise self._refused(node, f"the power {ast.unparse(node)}")
        try:
            return _OPERATORS[type(op)](left, right)
        except ArithmeticError as error:
            raise self._refused(node, f"{ast.unparse(node)} ({error})") from None

    def _entry(self, node: ast.expr, holder: Any, key: Any) -> Any:
        try:
            if isinstance(holder, Table | list):
                return holder[key]
        except (KeyError, IndexError, TypeError):
            raise self._refused(node, f"{ast.unparse(node)}, which is not there,") from None
        raise self._refused(node, ast.unparse(node))

    def _call(self, node: ast.Call) -> Any:
        """The few calls that configurations are written with; every other is refused."""
        if isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
            table = Table()
            for keyword in node.keywords:
                if keyword.arg is None:  # dict(**other)
                    table.put_all(self._other_table(keyword.value))
                else:
                    table.put(keyword.arg, self._entry_value(keyword.value), keyword.lineno)
            return table
        arguments = [self.value(argument) for argument in node.args]
        is_join = not node.keywords and ast.unparse(node.func) == "os.path.join"
        if is_join and arguments and all(isinstance(argument, str) for argument in arguments):
            return posixpath.join(*arguments)
        if isinstance(node.func, ast.Name) and len(arguments) == 1 and not node.keywords:
            convert = _CONVERSIONS.get(node.func.id)
            if convert is not None and isinstance(arguments[0], int | float | str):
                try:
                    return convert(arguments[0])
                except (ValueError, ArithmeticError) as error:
                    raise self._refused(node, f"{ast.unparse(node)} ({error})") from None
        raise self._refused(node, f"a call of {ast.unparse(node.func)}")

    def _text_part(self, part: ast.expr) -> Any:
        match part:
            case ast.FormattedValue(value=inner, conversion=-1, format_spec=None):
                part = inner
        value = self.value(part)
        if not isinstance(value, str | int | float):
            raise self._refused(part, "a text of something that is no text or number")
        return value

    def _refused(self, node: ast.stmt | ast.expr, what: str) -> UserError:
        return UserError(
            f"{self._where}:{node.lineno}:{node.col_offset + 1}: {what} is more than a configuration is read with, "
            "as nothing in it is executed; write the value itself there"
        )


def _kind(node: ast.AST) -> str:
    return type(node).__name__


def _article(word: str) -> str:
    return f"an {word}" if word[0] in "AEIOU" else f"a {word}"

"""Measure the size and the shape of the source: `python -m tools.measure_source`."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "echelon"
_SHOWN = 15
_MANY_PARAMETERS = 6
_SMALL_FILE_LINES = 25

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A file of the source."""

    name: str
    """Its path below the package."""
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def imported_as(self) -> str:
        parts = Path(self.name).with_suffix("").parts
        return ".".join(("echelon", *(parts[:-1] if parts[-1] == "__init__" else parts)))

    def functions(self) -> Iterator[Function]:
        yield from (node for node in ast.walk(self.tree) if isinstance(node, Function))


def read_modules(source: Path) -> list[Module]:
    texts = {path: path.read_text() for path in sorted(source.rglob("*.py"))}
    return [Module(str(path.relative_to(source)), text, ast.parse(text)) for path, text in texts.items()]


def count_lines(modules: list[Module]) -> dict[str, int]:
    return {
        "files": len(modules),
        "lines": sum(module.lines for module in modules),
        "blank": sum(not line.strip() for module in modules for line in module.text.splitlines()),
        "docstrings": sum(_docstring_lines(module.tree) for module in modules),
        "comment lines": sum(_comment_lines(module.text) for module in modules),
        "functions": sum(1 for module in modules for _ in module.functions()),
    }


def _docstring_lines(tree: ast.Module) -> int:
    """Strings that stand alone: docstrings of modules, classes, functions, and of the names above them."""
    strings = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in strings)


def _comment_lines(text: str) -> int:
    lines = iter(text.splitlines(keepends=True))
    tokens = tokenize.generate_tokens(lambda: next(lines, ""))
    return sum(token.type == tokenize.COMMENT and token.line.lstrip().startswith("#") for token in tokens)


def longest_files(modules: list[Module]) -> list[tuple[int, str]]:
    return sorted(((module.lines, module.name) for module in modules), reverse=True)[:_SHOWN]


def longest_functions(modules: list[Module]) -> list[tuple[int, str]]:
    found = (
        ((node.end_lineno or 0) - node.lineno + 1, f"{module.name}:{node.lineno} {node.name}")
        for module in modules
        for node in module.functions()
    )
    return sorted(found, reverse=True)[:_SHOWN]


def many_parameters(modules: list[Module]) -> list[tuple[int, str]]:
    found = (
        (_parameters(node), f"{module.name}:{node.lineno} {node.name}")
        for module in modules
        for node in module.functions()
    )
    return sorted((each for each in found if each[0] > _MANY_PARAMETERS), reverse=True)


def _parameters(function: Function) -> int:
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(parameter.arg not in ("self", "cls") for parameter in parameters)


def used_once(modules: list[Module]) -> list[str]:
    """Private functions of a module whose name stands in one other place."""
    found = []
    for module in modules:
        words = Counter(re.findall(r"\w+", module.text))
        found += [
            f"{module.name}:{node.lineno} {node.name}"
            for node in module.tree.body
            if isinstance(node, Function) and node.name.startswith("_") and words[node.name] == 1 + 1
        ]
    return found


def small_with_one_importer(modules: list[Module]) -> list[str]:
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in ast.walk(module.tree):
            for name in _imported(node):
                importers[name].add(module.name)
    return [
        f"{module.lines} {module.name} <- {importer}"
        for module in modules
        if module.lines < _SMALL_FILE_LINES and not module.name.endswith("__init__.py")
        for importer in importers[module.imported_as]
        if len(importers[module.imported_as]) == 1
    ]


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str() as module, names=names):
            return [module, *(f"{module}.{alias.name}" for alias in names)]
    return []


def main() -> None:
    modules = read_modules(SOURCE)
    for name, number in count_lines(modules).items():
        print(f"{number:>7,} {name}")
    for title, rows in (
        ("longest files", longest_files(modules)),
        ("longest functions", longest_functions(modules)),
        (f"functions with more than {_MANY_PARAMETERS} parameters", many_parameters(modules)),
    ):
        print(f"\n{title}: {len(rows)}")
        print(*(f"{number:>7,} {name}" for number, name in rows), sep="\n")
    print(f"\nprivate functions used once: {len(used_once(modules))}")
    small = small_with_one_importer(modules)
    print(f"\nmodules under {_SMALL_FILE_LINES} lines with one importer: {len(small)}", *small, sep="\n")


if __name__ == "__main__":
    main()

"""Where the source branches on the task: everywhere but in its declaration, that is one too many.

`python -m tests.tasks.branches` lists them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "echelon"
DECLARATIONS = "declarations"
CLASSES = {
    *("TranslationRecipe", "ClassificationRecipe", "TranslationTrain", "ImageTrain", "Data", "ImageData"),
    *("Prepared", "PreparedImages", "Manifest", "ImageManifest", "TextDescription", "ImageDescription"),
    *("Translator", "Classifier", "TranslationTask", "ClassificationTask"),
    *("OwnRecipe", "OwnData", "OwnModel", "OwnTrain", "OwnTask"),
}
"""Each belongs to one task."""
WORDS = {"translation", "classification", "tokens", "images", "bleu", "chrf", "top1", "top5"}
"""Names of tasks, what they count, and how they are scored."""


def find_branches(text: str) -> Iterator[tuple[int, str]]:
    """The lines that compare with a task's class or word."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]) if _names(kinds) & CLASSES:
                yield node.lineno, ast.unparse(node)
            case ast.MatchClass(cls=kind) if _names(kind) & CLASSES:
                yield node.lineno, f"case {ast.unparse(node)}"
            case ast.MatchValue(value=value) if _words([value]) & WORDS:
                yield value.lineno, f"case {ast.unparse(value)}"
            case ast.Compare(left=left, comparators=others) if _words([left, *others]) & WORDS:
                yield node.lineno, ast.unparse(node)


def _names(node: ast.AST) -> set[str]:
    return {found.id for found in ast.walk(node) if isinstance(found, ast.Name)}


def _words(nodes: list[ast.expr]) -> set[object]:
    """The constants that are compared, also those in a tuple; not the keys by which a record's values are read."""
    listed = [
        *nodes,
        *(each for node in nodes if isinstance(node, ast.Tuple | ast.Set | ast.List) for each in node.elts),
    ]
    return {node.value for node in listed if isinstance(node, ast.Constant)}


def branches_outside() -> list[str]:
    """Every branch on the task outside the declarations."""
    return [
        f"{path.relative_to(SOURCE)}:{line}: {code}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != DECLARATIONS
        for line, code in sorted(find_branches(path.read_text()))
    ]


if __name__ == "__main__":
    found = branches_outside()
    print(*found, f"{len(found)} branches in {len({line.split(':')[0] for line in found})} files", sep="\n")

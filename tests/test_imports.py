"""Imports go one way, and the control half never loads torch. Read from the source, not from what happens to run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"

LAYERS: list[tuple[str, ...]] = [
    ("errors", "untrusted"),
    ("addresses",),
    ("runfolder", "shapes", "extras", "console", "validation"),
    ("files",),
    ("recipe", "lease", "store"),
    ("monitor", "lab"),
    ("data", "comm", "models"),
    ("tasks", "resolve"),
    ("train",),
    ("launch",),
    ("cloud",),
    ("explain",),
    ("search",),
    ("inference",),
    ("pretrained",),
    ("export",),
    ("serve",),
    ("dashboard",),
    ("agent",),
    ("cluster",),
    ("migrate",),
    ("commands",),
    ("declarations",),
    ("library",),
    ("cli",),
    ("__main__", "run", "cifar10_main", "imagenet_distributed"),
]
"""From the lowest to the highest: a part may import, anywhere in its files, itself and parts of lower rows."""

MUST_NOT_KNOW = {
    "lab": {"recipe", "shapes"},
    "cloud": {"shapes", "comm", "models", "tasks", "train"},
    "launch": {"comm", "models", "tasks", "train"},
    "agent": {"comm", "models", "tasks", "train"},
    "cluster": {"comm", "models", "tasks", "train"},
    "explain": {"comm", "models", "tasks", "train"},
    "resolve": {"comm", "models"},
    "models": {"recipe", "comm", "monitor", "runfolder"},
    "comm": {"recipe", "data", "models"},
}
"""Beyond the rows: the control half starts the worker half as processes; models and comm know no recipe."""

TORCH_MODULES = (
    "inference.torch_engine",
    "inference.torch_models",
    "inference.torch_pictures",
    "commands.evaluate",
)
MAY_LOAD_TORCH = ("comm", "models", "tasks", "train", "pretrained", "export", *TORCH_MODULES)
"""Everything else must start at once: nothing it imports at module level, through however many files, is torch."""


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((SOURCE / "echelon").rglob("*.py"))}


def part_of(module: str) -> str:
    """`echelon.train.loop` -> `train`."""
    return module.split(".")[1]


@cache
def imports_of(module: str, *, at_load: bool) -> frozenset[str]:
    """Modules that a module imports: all, or only those that are loaded together with it."""
    tree = ast.parse(MODULES[module].read_text())
    names: set[str] = set()
    for node in _nodes_at_load(tree) if at_load else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            assert node.module is not None
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else node.module for name in below}
    return frozenset(name for name in names if name in MODULES or not name.startswith("echelon"))


def _nodes_at_load(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is loaded: not the bodies of functions, nor what only type checkers read."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        yield from _nodes_at_load(child)


def with_packages(module: str) -> Iterator[str]:
    """A module and the packages whose __init__ is loaded before it."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def way_to_torch(module: str) -> tuple[str, ...] | None:
    """A chain of imports by which loading `module` loads torch; None where it does not."""
    ways: list[tuple[str, ...]] = [(module,)]
    seen = {module}
    while ways:
        way = ways.pop()
        for name in sorted(imports_of(way[-1], at_load=True)):
            if name.split(".")[0] in ("torch", "tensorboard") or name.startswith("safetensors.torch"):
                return (*way, name)
            new = [loaded for loaded in with_packages(name) if name in MODULES and loaded not in seen]
            seen.update(new)
            ways += [(*way, loaded) for loaded in new]
    return None


def test_every_part_has_a_layer() -> None:
    listed = [part for layer in LAYERS for part in layer]
    assert len(listed) == len(set(listed))
    assert {part_of(module) for module in MODULES if module != "echelon"} == set(listed)


@pytest.mark.parametrize("module", [module for module in MODULES if module != "echelon"])
def test_imports_go_one_way(module: str) -> None:
    rank = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    own = part_of(module)
    imported = {part_of(name) for name in imports_of(module, at_load=False) if name.startswith("echelon.")}
    wrong = {part for part in imported if part != own and rank[part] >= rank[own]}
    assert wrong == set(), f"{module} imports from its own row or above"
    assert imported & MUST_NOT_KNOW.get(own, set()) == set()


def is_control_half(module: str) -> bool:
    return not any(f"{module}.".startswith(f"echelon.{name}.") for name in MAY_LOAD_TORCH)


@pytest.mark.parametrize("module", [module for module in MODULES if is_control_half(module)])
def test_the_control_half_never_loads_torch(module: str) -> None:
    way = way_to_torch(module)
    assert way is None, f"loading {module} loads torch: {' -> '.join(way or ())}"


def test_the_worker_half_is_found_to_load_torch() -> None:
    """The test above can see torch: through a package, and through another module."""
    assert way_to_torch("echelon.comm.group") == ("echelon.comm.group", "torch")
    assert way_to_torch("echelon.commands.evaluate") is not None
    assert way_to_torch("echelon.tasks.line_translator") is not None


def test_only_comm_calls_torch_distributed() -> None:
    users = {
        part_of(module)
        for module in MODULES
        if any(name.startswith("torch.distributed") for name in imports_of(module, at_load=False))
    }
    assert users == {"comm"}


def test_no_module_imports_itself_in_a_circle() -> None:
    """Not even inside functions or for type checkers."""
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, f"circle: {' -> '.join((*path, module))}"
        if module in done:
            return
        for name in imports_of(module, at_load=False):
            if name in MODULES and name != module:
                visit(name, (*path, module))
        done.add(module)

    for module in MODULES:
        visit(module, ())

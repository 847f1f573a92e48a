"""Code of the user's own, named by an import path such as `mypackage.tasks:Tagger`.

It is imported only if the user has named it: in a recipe on the command line or in Python, or with `--own-code`. A run
folder may be anybody's, so a path in it imports nothing. What is allowed stands in an environment variable, which the
workers that this process starts inherit; so does what finds the code, if this process found it elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from echelon.errors import UserError

ALLOWED_VARIABLE = "ECHELON_OWN_CODE"
"""Import paths that may be imported, with spaces between them."""
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*")
ImportPath = Annotated[str, Field(pattern=f"^{_PATH.pattern}$")]


def is_import_path(text: object) -> bool:
    """Whether this names code: `package.module:name`."""
    return isinstance(text, str) and _PATH.fullmatch(text) is not None


def paths_in(value: Any) -> Iterator[str]:
    """The import paths anywhere in a recipe's table."""
    match value:
        case dict():
            for inner in value.values():
                yield from paths_in(inner)
        case str() if is_import_path(value):
            yield value


def own_paths(recipe: BaseModel) -> list[str]:
    """The import paths that a recipe names."""
    return list(dict.fromkeys(paths_in(recipe.model_dump())))


def allow(paths: Iterable[str]) -> None:
    """Let this process, and processes that it starts from now on, import these."""
    for path in paths:
        if not is_import_path(path):
            raise UserError(f"{path!r} is no import path; write it as package.module:name")
        if path not in allowed():
            os.environ[ALLOWED_VARIABLE] = " ".join([*allowed(), path])


def allowed() -> list[str]:
    return os.environ.get(ALLOWED_VARIABLE, "").split()


def require_allowed(paths: Iterable[str]) -> None:
    """UserError that says how to allow the paths that are not allowed yet."""
    missing = [path for path in dict.fromkeys(paths) if path not in allowed()]
    if missing:
        flags = " ".join(f"--own-code {path}" for path in missing)
        raise UserError(
            f"{', '.join(missing)}: is code of somebody's own, which is not imported because a run's folder names it; "
            f"if it is yours, `echelon {flags} VERB ...` imports it, and from Python `echelon.allow_code`"
        )


def import_own(path: str) -> Any:
    """What an import path names; UserError if it is not allowed, or cannot be imported."""
    require_allowed([path])
    name, _, attribute = path.partition(":")
    if name == "__main__":
        raise UserError(
            f"{path}: workers cannot import what is defined in a notebook or a script; use a module"
        )
    if name.partition(".")[0] in sys.stdlib_module_names:
        # A recipe from someone else has no code with it, and could call what is installed here with its own arguments.
        raise UserError(
            f"{path}: is Python's own and not yours; name a function or class that you have written"
        )
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"{path} cannot be imported: {error}") from error
        raise UserError(
            f"{path}: Python finds no module {error.name}; install it, or put the folder that holds it into PYTHONPATH"
        ) from None
    if not hasattr(module, attribute):
        raise UserError(f"{path}: {module.__file__} has no {attribute}")
    _let_workers_find(module.__file__, name)
    return getattr(module, attribute)


def _let_workers_find(file: str | None, name: str) -> None:
    """Workers look where this process has found it: a notebook or a script may have a path of its own."""
    if file is None:
        return
    is_package = Path(file).stem == "__init__"
    root = str(Path(file).resolve().parents[name.count(".") + is_package])
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in places and not root.startswith(sys.prefix):
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, places)])


def read_sources(paths: Iterable[str]) -> dict[str, bytes]:
    """The files behind import paths, by their place below the folder where Python finds them, without importing them:
    a module, or all modules of a package."""
    tops = dict.fromkeys(path.partition(":")[0].partition(".")[0] for path in paths)
    return {name: content for top in tops for name, content in _read_module(top)}


def _read_module(top: str) -> Iterator[tuple[str, bytes]]:
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        found = None
    if found is None:
        return
    for place in map(Path, found.submodule_search_locations or ()):
        for file in sorted(place.rglob("*.py")):
            yield f"{top}/{file.relative_to(place)}", file.read_bytes()
    if not found.submodule_search_locations and found.origin and found.origin.endswith(".py"):
        yield f"{top}.py", Path(found.origin).read_bytes()


def digest_sources(sources: Mapping[str, bytes]) -> str:
    """SHA-256 of source files and their names."""
    digest = hashlib.sha256()
    for name, content in sorted(sources.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()

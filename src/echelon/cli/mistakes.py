"""What is said of a command line that cannot be understood."""

from __future__ import annotations

import difflib
import re

from typer import TyperException


def format_usage(error: TyperException, help_line: str) -> str:
    """What is wrong with the words of a command line, what may have been meant, and where the help is."""
    wrong = getattr(error, "option_name", None)
    if wrong is not None:
        known = list(getattr(error, "possibilities", None) or ())
        return _join(f"there is no option {wrong}{_suggest_option(str(wrong), known)}", help_line)
    message = error.format_message().rstrip(".")
    message = re.sub(r"Input should ", "it must ", message)
    if message.startswith("No such command"):
        message = (
            message.replace("', '", "' or '").replace("No such", "there is no").replace(". Did", "; did")
        )
    return _join(message, help_line)


def _join(message: str, help_line: str) -> str:
    return f"{message} ({help_line})" if message.endswith("?") else f"{message}; {help_line}"


def _suggest_option(wrong: str, known: list[str]) -> str:
    """The most similar option, or a key of recipes of that name, which --set takes."""
    from echelon.recipe.keys import recipe_keys

    name = wrong.lstrip("-").replace("-", "_")
    keys = [key for key in recipe_keys() if key.rpartition(".")[2] == name]
    near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.7)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; did you mean --set {keys[0]}=VALUE?" if keys else ""

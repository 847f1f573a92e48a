"""Flags declared once, in small frozen dataclasses, for a library that wants one parameter for each."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints


def takes_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with a parameter for each field of its parameters that are dataclasses, as Typer reads them.

    A field is declared as Typer's parameters are: `steps: Annotated[int | None, typer.Option(...)] = None`. The verb
    itself is called with whole dataclasses.
    """
    parameters: list[Parameter] = []
    groups: dict[str, type[Any]] = {}
    hints = get_type_hints(verb, include_extras=True)
    for name, parameter in signature(verb).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _parameters_of(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

    @functools.wraps(verb)
    def call(**given: Any) -> None:
        for name, kind in groups.items():
            own = {field.name: given.pop(field.name) for field in dataclasses.fields(kind)}
            given[name] = kind(**{name: value for name, value in own.items() if value is not None})
        verb(**given)

    call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def _parameters_of(kind: type[Any]) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=None if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(kind)
    ]

"""Calls one function again and again, with what a harness returns or with stand-ins."""

from __future__ import annotations

import asyncio
import builtins
import dis
import importlib
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from oomlint.verify.targets import Target


class CannotCall(Exception):
    """There are no arguments to call the function with; the message is one sentence."""


class Lacking(CannotCall):
    """Some parameters were given no value, and nothing was planned for them."""


def lookup(module: types.ModuleType, name: str) -> Any:
    """A function by its qualified name. Raises CannotCall."""
    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CannotCall(f"importing the file defines no `{name}`") from None
    return found


def harness_of(target: Target) -> Callable[..., Any]:
    """The function that a harness names. Raises CannotCall, and what its module raises."""
    place, _, name = target.harness.rpartition(":")
    if place.endswith(".py"):
        path = os.path.join(target.folder, place)
        if not os.path.isfile(path):
            raise CannotCall(f"the harness {target.harness}: {path} does not exist")
        stem = os.path.basename(path).removesuffix(".py")
        sys.path.insert(0, os.path.dirname(path))
        module = importlib.import_module(stem)
        if os.path.realpath(getattr(module, "__file__", None) or "") != os.path.realpath(path):
            raise CannotCall(f"the harness {target.harness}: another module is called {stem}")
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name != place and not place.startswith(f"{error.name}."):
                raise
            raise CannotCall(
                f"the harness {target.harness}: no module {place} is found from {target.folder}"
            ) from None
    made = getattr(module, name, None)
    if not callable(made):
        raise CannotCall(f"the harness {target.harness}: {place} has no function `{name}`")
    return made  # type: ignore[no-any-return]


def given_by(target: Target, function: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the harness returns: a tuple or list by position, a dict by name. Raises CannotCall."""
    make = harness_of(target)
    takes = [
        parameter
        for parameter in inspect.signature(make).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    try:
        made = make(*([function] if takes else []))
    except Exception as error:
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise CannotCall(f"the harness {target.harness} raises {said}") from error
    if isinstance(made, dict):
        return (), {str(key): value for key, value in made.items()}
    if isinstance(made, (tuple, list)):
        return tuple(made), {}
    kind = type(made).__name__
    raise CannotCall(
        f"the harness {target.harness} returns {kind}; it must return the arguments of "
        f"{target.function}: a tuple, or a dict by parameter"
    )


def hand_globals(module: types.ModuleType, function: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Defines in the file what the function takes from there, and it lacks; gives the rest."""
    lacks = unbound(function)
    for name in lacks & named.keys():
        setattr(module, name, named[name])
    return {name: value for name, value in named.items() if name not in lacks}


def unbound(function: Any) -> set[str]:
    """Global names that a function reads, and that its file does not define."""
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return set()
    known = {*plain.__globals__, *dir(builtins)}
    read = (str(i.argval) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL")
    return {name for name in read if name not in known}


def missing(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Parameters that still need a value. Raises CannotCall for arguments that do not fit."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise CannotCall(f"the harness's arguments do not fit: {error}") from None
    return [
        name
        for name, parameter in signature.parameters.items()
        if name not in bound.arguments
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def call_until_done(call: Callable[[], Any], steps: Callable[[], int]) -> None:
    """Calls until the recorder stops the process, or until a call takes no step."""
    while True:
        before = steps()
        finish(call())
        if steps() == before:
            return


def finish(result: Any) -> None:
    """Runs what was only begun: a coroutine, a generator."""
    if inspect.iscoroutine(result):
        asyncio.run(result)
    elif inspect.isgenerator(result):
        for _ in result:
            pass

"""Whether a function of the user accepts the arguments that Crew calls it with."""

from __future__ import annotations

import inspect


def accepts_arguments(function: object, count: int) -> bool:
    """Whether this can be called with so many positional arguments; True where its signature is not known."""
    if not callable(function):
        return False

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a callable without a signature, such as one of an extension module

    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False

    return True

"""Process functions under the names of upstream's arguments."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any


def rename_parameters(
    function: Callable[..., None], names: Mapping[str, str], **defaults: Any
) -> Callable[..., None]:
    """Return a function with some parameters renamed, and other defaults.

    Parameters
    ----------
    function
        The function.
    names
        New names of parameters.
    defaults
        New defaults of keyword-only parameters.

    Examples
    --------
    >>> def area(width, *, height=1):
    ...     print(width * height)
    >>> inspect.signature(rename_parameters(area, {"width": "w"}, height=2))
    <Signature (w, *, height=2)>
    >>> rename_parameters(area, {"width": "w"}, height=2)(w=5)
    10
    """
    own = inspect.signature(function)
    parameters = [
        parameter.replace(name=names.get(name, name), default=defaults.get(name, parameter.default))
        for name, parameter in own.parameters.items()
    ]
    signature = own.replace(parameters=parameters)

    former = {new: name for name, new in names.items()}

    @functools.wraps(function)
    def renamed(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        function(**defaults | {former.get(name, name): given[name] for name in given})

    renamed.__signature__ = signature  # type: ignore[attr-defined]
    return renamed

"""Answers Megatron's imports of its datasets by zindex's, so that its scripts stay as they are.

``import megatron.core.datasets.gpt_dataset`` then gives ``zindex.datasets.gpt_dataset``, for
whoever imports it: a training script, Megatron's training loop, a tool. Everything else of
Megatron stays Megatron's.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType
from typing import Any

from zindex.datasets.blended_megatron_dataset_config import DEFAULTS
from zindex.errors import ConfigError

logger = logging.getLogger(__name__)

_CORE = (
    "bert_dataset",
    "blended_dataset",
    "blended_megatron_dataset_builder",
    "blended_megatron_dataset_config",
    "data_schedule",
    "gpt_dataset",
    "helpers",
    "indexed_dataset",
    "masked_dataset",
    "megatron_dataset",
    "megatron_tokenizer",
    "multimodal_dataset",
    "object_storage_utils",
    "t5_dataset",
    "utils",
    "utils_s3",
)
_TRAINING = ("fim_dataset", "sft_dataset", "varlen_dataset")

#: Each module of Megatron that is answered, and the one of zindex that answers.
ALIASES: Mapping[str, str] = {
    f"megatron.core.datasets.{name}": f"zindex.datasets.{name}" for name in _CORE
} | {f"megatron.training.datasets.{name}": f"zindex.datasets.{name}" for name in _TRAINING}


class _AliasLoader(Loader):
    """Puts a module of ours where one of Megatron's is imported."""

    def __init__(self, target: str) -> None:
        self._target = target

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave the module to Python; `exec_module` replaces it."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Replace the module that is being imported; Python takes what it finds there then."""
        ours = import_module(self._target)
        if not hasattr(ours, "__getattr__"):
            vars(ours)["__getattr__"] = _look_in_megatrons(module.__name__, ours)
        sys.modules[module.__name__] = ours


def _look_in_megatrons(name: str, ours: ModuleType) -> Callable[[str], Any]:
    """Return what gives our module the names that only a newer Megatron's own module has."""

    @cache
    def load() -> ModuleType | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        spec = PathFinder.find_spec(name, getattr(parent, "__path__", None))
        if spec is None or spec.loader is None:
            return None
        theirs = module_from_spec(spec)
        spec.loader.exec_module(theirs)
        return theirs

    def find(attribute: str) -> Any:
        theirs = None if attribute.startswith("__") else load()
        if theirs is None or not hasattr(theirs, attribute):
            raise AttributeError(f"module {ours.__name__!r} has no attribute {attribute!r}")
        logger.warning(
            "%s.%s comes from Megatron itself: zindex has nothing of this name", name, attribute
        )
        return getattr(theirs, attribute)

    return find


class _AliasFinder(MetaPathFinder):
    """Finds our modules under Megatron's names, each when it is first imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the way to our module, or None for all that is not ours."""
        ours = ALIASES.get(fullname)
        return None if ours is None else spec_from_loader(fullname, _AliasLoader(ours))


def install(**defaults: Any) -> None:
    """Have Megatron's imports of its datasets answered by zindex, in this process.

    A name that only another version of Megatron has is taken from there, with a warning.

    Call it before anything imports Megatron's datasets: as the first line of a script, or as
    ``python -m zindex.megatron SCRIPT``. Calling it again changes the defaults alone.

    Parameters
    ----------
    defaults
        What configurations take for zindex's own settings, of which a Megatron script knows
        nothing: ``order`` (``"megatron"`` or ``"scalable"``), ``store`` (``"all"`` or
        ``"minimal"``) and ``shuffle`` (``"keyed"`` or ``"uniform"``). Left out, Megatron's order.

    Raises
    ------
    ConfigError
        If Megatron's own datasets were imported before, or there is no such setting or value.
    """
    set_defaults(defaults)
    early = [
        name
        for name, ours in ALIASES.items()
        if name in sys.modules and sys.modules[name].__name__ != ours
    ]
    if early:
        raise ConfigError(
            "install must come before Megatron's datasets are imported, but "
            f"{', '.join(early[:3])}{' and others' * (len(early) > 3)} "
            f"{'is' if len(early) == 1 else 'are'} there already; make it the first line of the "
            "script, or run python -m zindex.megatron SCRIPT"
        )
    if not any(isinstance(finder, _AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder())


def set_defaults(values: Mapping[str, Any]) -> None:
    """Set what configurations take where they are told nothing; all of it, or none."""
    for name, value in values.items():
        if name not in DEFAULTS.allowed:
            raise ConfigError(
                f"a default must be one of {', '.join(DEFAULTS.allowed)}, got {name!r}; the other "
                "settings are Megatron's, and its scripts give them"
            )
        if value not in DEFAULTS.allowed[name]:
            raise ConfigError(
                f"{name} must be {' or '.join(map(repr, DEFAULTS.allowed[name]))}, got {value!r}"
            )
    for name, value in values.items():
        setattr(DEFAULTS, name, value)

"""Answers Megatron's imports of its datasets by zindex's, so that its scripts stay as they are.

``import megatron.core.datasets.gpt_dataset`` then gives ``zindex.datasets.gpt_dataset``, for
whoever imports it: a training script, Megatron's training loop, a tool. Everything else of
Megatron stays Megatron's.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from zindex.datasets.blended_megatron_dataset_config import DEFAULTS
from zindex.errors import ConfigError

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
        sys.modules[module.__name__] = import_module(self._target)


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

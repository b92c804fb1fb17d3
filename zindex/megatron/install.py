"""Redirect Megatron's imports of its datasets to zindex, so that its scripts run unmodified.

``import megatron.core.datasets.gpt_dataset`` then imports ``zindex.datasets.gpt_dataset`` in the
training script, in Megatron's training loop and in its tools. The rest of Megatron is unchanged.
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

from zindex.datasets.blended_megatron_dataset_config import CHOICES, DEFAULTS
from zindex.errors import ConfigError, check_choice

logger = logging.getLogger(__name__)

_CORE = (
    *("bert_dataset", "gpt_dataset", "masked_dataset", "multimodal_dataset", "t5_dataset"),
    *("blended_megatron_dataset_builder", "blended_megatron_dataset_config", "blended_dataset"),
    *("data_schedule", "data_schedule_utils", "indexed_dataset", "megatron_dataset"),
    *("helpers", "megatron_tokenizer", "object_storage_utils", "utils", "utils_s3"),
)
_TRAINING = ("fim_dataset", "sft_dataset", "varlen_dataset")

#: Modules of Megatron, and the modules of zindex that replace them.
ALIASES: Mapping[str, str] = {
    f"megatron.core.datasets.{name}": f"zindex.datasets.{name}" for name in _CORE
} | {f"megatron.training.datasets.{name}": f"zindex.datasets.{name}" for name in _TRAINING}


def _fall_back_to_megatron(name: str, ours: ModuleType) -> Callable[[str], Any]:
    """Return a ``__getattr__`` that takes names of a newer Megatron from its own module."""

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
        logger.warning("%s.%s is Megatron's own: zindex has no such name", name, attribute)
        return getattr(theirs, attribute)

    return find


class _Aliases(MetaPathFinder, Loader):
    """Imports zindex's modules under Megatron's names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a replaced module, None for all others."""
        return spec_from_loader(fullname, self) if fullname in ALIASES else None

    def exec_module(self, module: ModuleType) -> None:
        """Replace the entry in ``sys.modules``, which Python reads after the import."""
        ours = import_module(ALIASES[module.__name__])
        if not hasattr(ours, "__getattr__"):
            vars(ours)["__getattr__"] = _fall_back_to_megatron(module.__name__, ours)
        sys.modules[module.__name__] = ours


def install(**defaults: Any) -> None:
    """Redirect this process's imports of Megatron's datasets to zindex.

    Names that zindex lacks, such as those of a newer Megatron, are imported from Megatron with a
    warning.

    Call it before anything imports Megatron's datasets: in the first line of a script, or through
    ``python -m zindex.megatron SCRIPT``. A second call only changes the defaults.

    Parameters
    ----------
    defaults
        Values of zindex's own settings, which Megatron scripts do not set: ``order``
        (``"megatron"``, the default, or ``"scalable"``), ``store`` (``"all"`` or ``"minimal"``),
        ``shuffle`` (``"keyed"`` or ``"uniform"``), ``max_computed_rows``, 0 to store all,
        ``sft_rules`` (``"main"``, ``"dev"``, ``"0.17"``, ``"0.16"``, ``"0.15"`` or
        ``"0.14"``; see ``GPTDatasetConfig``) and ``bert_rules`` (``"main"`` or ``"0.17"``; see
        ``BERTMaskedWordPieceDatasetConfig``), both by default those of the installed Megatron, and
        ``fim_draws`` (``"keyed"`` or ``"sequential"``; see ``GPTFIMDatasetConfig``).

    Raises
    ------
    ConfigError
        If Megatron's datasets are already imported, or a setting or value is unknown.
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
    if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Aliases())


def set_defaults(values: Mapping[str, Any]) -> None:
    """Set the defaults of configurations, all of them or none."""
    for name, value in values.items():
        check_choice("a default", name, vars(DEFAULTS))
        if name in CHOICES:
            check_choice(name, value, CHOICES[name])
    for name, value in values.items():
        setattr(DEFAULTS, name, value)

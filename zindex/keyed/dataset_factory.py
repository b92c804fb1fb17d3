"""Create the dataset of a keyed store by kind of record."""

import os
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from zindex.errors import ConfigError, check_choice
from zindex.formats.keyed.record_schema import RecordSchema
from zindex.formats.keyed.schema_field import Mode
from zindex.formats.keyed.schema_presets import PRESETS, find_schema
from zindex.io.objects import PlaceLike
from zindex.keyed.base_dataset import BaseDataset
from zindex.keyed.record_dataset import KeyedRecordDataset
from zindex.keyed.window_dataset import WindowDataset

D = TypeVar("D", bound=type[BaseDataset])

# Options of all datasets, and those of windows only.
_OPTIONS = ("pad_id", "split", "split_weights", "split_seed")
_WINDOW_OPTIONS = ("documents", "tail")


class DatasetFactory:
    """Creates datasets of keyed stores by kind of record."""

    _registered: ClassVar[dict[str, type[BaseDataset]]] = {}

    @classmethod
    def register(cls, train_type: str) -> Callable[[D], D]:
        """Return a decorator that registers a class as the dataset of a new type of training.

        Raises
        ------
        ConfigError
            If the name is taken, or the class is not a `BaseDataset`.
        """

        def add(kind: D) -> D:
            if train_type in PRESETS or train_type in cls._registered:
                raise ConfigError(
                    f"train_type {train_type!r} is registered already; choose another name"
                )
            if not (isinstance(kind, type) and issubclass(kind, BaseDataset)):
                raise ConfigError(f"a dataset must be a class of BaseDataset, got {kind!r}")
            cls._registered[train_type] = kind
            return kind

        return add

    @classmethod
    def create(
        cls,
        train_type: str | os.PathLike[str] | RecordSchema,
        window_size: int | None = None,
        stride: int | None = None,
        *,
        mode: Mode | None = None,
        **options: Any,
    ) -> BaseDataset:
        """Return a dataset that is not yet loaded; parameters as of `load`."""
        if isinstance(train_type, str) and train_type in cls._registered:
            make: Callable[..., BaseDataset] = cls._registered[train_type]
            return make(window_size, stride, **options)
        schema = find_schema(train_type)
        chosen = schema.modes[0] if mode is None else mode
        check_choice(f"mode of {schema.name!r}", chosen, schema.modes)
        known = _OPTIONS if chosen == "records" else (*_WINDOW_OPTIONS, *_OPTIONS)
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ConfigError(
                f"options of {chosen} of {schema.name!r} must be among {', '.join(known)}, got "
                f"{', '.join(unknown)}; name one of them"
                + ", or choose mode='windows'"
                * ("windows" in schema.modes and not set(unknown).isdisjoint(_WINDOW_OPTIONS))
            )
        if chosen == "records":
            return KeyedRecordDataset(schema, **options)
        if window_size is None:
            raise ConfigError(
                f"windows of {schema.name!r} need a window_size, got none; give the values of a "
                "window"
            )
        return WindowDataset(schema, window_size, stride, **options)

    @classmethod
    def load(
        cls,
        train_type: str | os.PathLike[str] | RecordSchema,
        load_path: PlaceLike,
        window_size: int | None = None,
        stride: int | None = None,
        storage_type: str | None = None,
        *,
        strict: bool = True,
        mode: Mode | None = None,
        **options: Any,
    ) -> BaseDataset:
        """Return the dataset of a keyed store.

        Parameters
        ----------
        train_type
            ``"seq"``, ``"sft"``, ``"dpo"``, ``"grpo"``, ``"kto"``, ``"reward"``, ``"prm"``,
            ``"prompts"`` or ``"distill"``; a `RecordSchema`, or its YAML file; or a registered
            class.
        load_path
            The store: a file or folder.
        window_size
            Values of a window, > 0. Samples that are records need none, as they are whole.
        stride
            Values from one window to the next; None for ``window_size``.
        storage_type
            ``"h5"``, ``"bin"``, ``"zarr"``, ``"mapped_bin"`` (see `MappedStore`) or a registered
            format; None detects it from the files.
        strict
            Whether the keys must agree in every shard; see `KeyedStore.load`.
        mode
            ``"windows"`` or ``"records"``, if the kind allows it. By default samples of ``seq`` and
            ``sft`` are windows, and those of other types records. Windows of ``dpo`` and ``grpo``
            are those of AstrAI before it had records: all keys are split at the same positions, so
            pairs are misaligned.
        options
            ``documents``, ``tail``, ``pad_id``, ``split``, ``split_weights`` and ``split_seed``, as
            for `WindowDataset`; records take the last four.

        Returns
        -------
        dataset
            A map-style dataset with ``__getitems__``, ``collate`` and ``fingerprint``.

        Raises
        ------
        ConfigError
            If a setting is invalid.
        StoreNotFoundError, MissingKeyError, SourceError
            If the store is missing, lacks a key, or is damaged.

        Examples
        --------
        >>> dataset = DatasetFactory.load("sft", "chats.zarr", 2048)  # doctest: +SKIP
        >>> dataset[0]["input_ids"].shape  # doctest: +SKIP
        torch.Size([2048])
        """
        made = cls.create(train_type, window_size, stride, mode=mode, **options)
        return made.load(load_path, storage_type, strict=strict)


#: `DatasetFactory.load` under a name that YAML files of `zindex.streaming` use as a target.
open_keyed_dataset = DatasetFactory.load

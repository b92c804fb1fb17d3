"""Mock samples of text with an image, and the configuration of multimodal datasets.

``IndexedDataset(prefix, multimodal=True)`` reads real multimodal data, whose sequences have modes.
Users write their own dataset on top of it, which is split and blended like any other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from zindex.datasets.gpt_config import GPTDatasetConfig
from zindex.datasets.gpt_dataset import MockGPTDataset
from zindex.errors import ConfigError
from zindex.samples.batch import BatchRequest, SampleBatch, allocate_arrays
from zindex.samples.gpt import make_batch

Item = dict[str, Any]


def _keep(sample: Item) -> Item:
    """Return a sample unchanged; a named function, so that configurations can be pickled."""
    return sample


@dataclass
class MultimodalDatasetConfig(GPTDatasetConfig):
    """Settings of multimodal datasets, by Megatron Core's names."""

    #: Height of images in pixels; required.
    image_h: int | None = None

    #: Width of images in pixels; required.
    image_w: int | None = None

    #: Creates an item from a sample with its image. Spawned loader workers need a module-level
    #: function.
    preprocess_func: Callable[[Item], Item] = _keep

    def __post_init__(self) -> None:
        """Check the settings."""
        super().__post_init__()
        for name in ("image_h", "image_w"):
            size = getattr(self, name)
            if size is None or size < 1:
                raise ConfigError(f"{name} must be a number of pixels, got {size}; set it")


def make_multimodal_batch(wanted: BatchRequest) -> SampleBatch:
    """Return GPT samples with their images."""
    texts = make_batch(wanted)
    config = wanted.first.config
    shape = len(wanted.which), 3, config.image_h or 0, config.image_w or 0
    images, arrays = allocate_arrays({"image": (shape, torch.float32)})
    arrays["image"].fill(0)
    batch = SampleBatch({**texts.tensors, **images})
    if config.preprocess_func is _keep:
        return batch
    return SampleBatch.of_items([config.preprocess_func(item) for item in batch])


class MockMultimodalDataset(MockGPTDataset):
    """Mock GPT samples, each with an image of zeros.

    Parameters
    ----------
    dataset, dataset_path, indices, num_samples, index_split
        As for ``MockGPTDataset``.
    config
        A configuration without any blend.
    """

    config: MultimodalDatasetConfig
    _make_together = staticmethod(make_multimodal_batch)

    def __getitem__(self, idx: int | None) -> Item:
        """Return a sample.

        Parameters
        ----------
        idx
            As for ``GPTDataset``.

        Returns
        -------
        item
            The item of ``GPTDataset``, with ``image`` of shape (3, image_h, image_w), float32; or
            the result of ``config.preprocess_func``.
        """
        return self._make_batch([idx])[0]

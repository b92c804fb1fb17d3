"""Keyed stores as sources of a mixture that a YAML file describes."""

from pathlib import Path

from torch.utils.data import DataLoader

from tests.keyed.small_stores import write_sft
from zindex.streaming import instantiate_from_yaml, stack_collate

YAML = """
target: MergedDataset
params:
  seed: 3
  datasets:
    - target: open_keyed_dataset
      params: {{train_type: sft, load_path: {folder}/chats, window_size: 8}}
      name: chats
      percent: 1
    - target: open_keyed_dataset
      params: {{train_type: sft, load_path: {folder}/code, window_size: 8, stride: 4}}
      name: code
      percent: 3
"""


def test_stores_are_mixed_by_percent(tmp_path: Path) -> None:
    for name in ("chats", "code"):
        write_sft(tmp_path / name)
    (tmp_path / "mixture.yaml").write_text(YAML.format(folder=tmp_path))
    dataset = instantiate_from_yaml(tmp_path / "mixture.yaml")
    batches = iter(DataLoader(dataset, 8, collate_fn=stack_collate))
    for _ in range(4):
        batch = next(batches)
        assert batch["input_ids"].shape == (8, 8)
        assert sorted(batch["__datasetname__"]) == ["chats"] * 2 + ["code"] * 6

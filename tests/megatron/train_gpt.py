"""A small training run of Megatron Core, on CPU: an unmodified script, which knows no zindex.

``python train_gpt.py CACHE PREFIX...`` prints its losses, and which package its data came from.
"""

import json
import sys
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import Split, get_blend_from_list
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

NUM_STEPS, BATCH_SIZE, SEQUENCE_LENGTH, VOCAB_SIZE = 4, 8, 16, 64


class Tokenizer:
    """What the datasets ask of a tokenizer."""

    vocab_size, eod, pad = VOCAB_SIZE, 0, VOCAB_SIZE - 1
    unique_identifiers = {"class": "Tokenizer"}  # noqa: RUF012


class Attention(torch.nn.Module):
    """Attention by torch: Megatron's own asks for a CUDA device."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        """Return the context, (sequence, batch, hidden)."""
        heads = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        context = torch.nn.functional.scaled_dot_product_attention(
            *heads, attn_mask=~attention_mask
        )
        return context.permute(2, 0, 1, 3).flatten(2)


def make_model() -> GPTModel:
    """Return Megatron's GPT, small and always the same."""
    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=1,
        hidden_size=32,
        num_attention_heads=4,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    layer = get_gpt_layer_local_spec()
    layer.submodules.self_attention.submodules.core_attention = Attention
    return GPTModel(
        config=config,
        transformer_layer_spec=layer,
        vocab_size=VOCAB_SIZE,
        max_sequence_length=SEQUENCE_LENGTH,
    )


def train(cache: str, data_path: list[str]) -> dict[str, Any]:
    """Return the losses of some steps, and where the data came from."""
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=SEQUENCE_LENGTH,
        blend=get_blend_from_list(data_path),
        split="90,10,0",
        path_to_cache=cache,
        tokenizer=Tokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=True,
    )
    sizes = [NUM_STEPS * BATCH_SIZE, BATCH_SIZE, 0]
    datasets = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    dataset = datasets[Split.train.value]
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    batches = iter(torch.utils.data.DataLoader(dataset, batch_size=BATCH_SIZE))
    for _ in range(NUM_STEPS):
        batch = next(batches)
        each = model(
            batch["tokens"], batch["position_ids"], batch["attention_mask"], labels=batch["labels"]
        )
        loss = (each * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "module": type(dataset).__module__, "length": len(dataset)}


if __name__ == "__main__":
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    print(json.dumps(train(sys.argv[1], sys.argv[2:])), flush=True)
    torch.distributed.destroy_process_group()

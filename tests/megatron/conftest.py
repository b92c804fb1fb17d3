"""The training script is a process of its own: it imports Megatron's models, which warn."""

collect_ignore = ["train_gpt.py"]

"""The scripts are processes of their own: they import Megatron's models, which warn."""

collect_ignore = ["megatron_suite.py", "train_gpt.py"]

"""Keyed token stores: seq, sft, dpo and grpo datasets, and a sampler that any job resumes."""

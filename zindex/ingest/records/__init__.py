"""Import of tar and jsonl files to ragged record stores: a read stage and a write stage."""

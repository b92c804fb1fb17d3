"""What masked datasets are made of: vocabularies, sentences, masks and batches of samples."""

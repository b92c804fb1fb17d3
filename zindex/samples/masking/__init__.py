"""Masked samples for BERT and T5: vocabularies, sentences, masks and batches."""

"""Answers on runs and paths: what is there, what a step saw, where a document is, what differs."""

"""Conversations as samples: records of JSON files, and batches of encoded rows."""

"""Segments: the files that hold a log's batches."""

"""Batches, and the micro-batches that they are cut into."""

"""Batches, and their micro-batches."""

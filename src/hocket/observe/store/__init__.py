"""Recorded runs as tables for SQL."""

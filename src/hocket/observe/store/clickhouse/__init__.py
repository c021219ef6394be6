"""Stores whose rows are in a ClickHouse server."""

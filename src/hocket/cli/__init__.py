"""The `hocket` command: one file a verb, found by its function `register`."""

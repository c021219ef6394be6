"""The `hocket` command: one file per verb, discovered by its function `register`."""

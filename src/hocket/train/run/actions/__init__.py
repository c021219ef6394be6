"""Functions that execute actions, one file for each family; `hocket.train.run.actions.registry` finds the files."""

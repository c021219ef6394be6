"""One file a family of actions that are executed; all of them are found by `hocket.train.run.actions.registry`."""

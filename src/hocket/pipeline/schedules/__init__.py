"""One file a schedule; all of them are found by `hocket.pipeline.registry`."""

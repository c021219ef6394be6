"""One file a family of kinds of actions; all of them are found by `hocket.pipeline.kind`."""

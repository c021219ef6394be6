"""One file a format; all of them are found by `hocket.tune.export`."""

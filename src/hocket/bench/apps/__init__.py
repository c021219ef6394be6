"""One file a distributed application that is measured; all of them are found by `hocket.bench.apps.registry`."""

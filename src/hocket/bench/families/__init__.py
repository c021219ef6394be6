"""One file a family of benchmarks; all of them are found by `hocket.bench.registry`."""

"""The families of benchmarks, one file each; `hocket.bench.registry` discovers them."""

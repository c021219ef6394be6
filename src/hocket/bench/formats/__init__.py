"""The output formats of results, one file each; `hocket.bench.writers` discovers them."""

"""One file a library that benchmarks call directly."""

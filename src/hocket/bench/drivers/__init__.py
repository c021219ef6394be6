"""The libraries that benchmarks call directly, one file each."""

"""One file a form in which results are written; all of them are found by `hocket.bench.writers`."""

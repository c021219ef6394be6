"""One file a family of algorithms; all of them are found by the registry."""

"""One file a kind of memory that messages are made of; all of them are found by `find_kind`."""

"""The kinds of memory that hold messages, one file each; `find_kind` discovers them."""

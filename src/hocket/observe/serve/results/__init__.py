"""The kinds of results that the page opens, one file each."""

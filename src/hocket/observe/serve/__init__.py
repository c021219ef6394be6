"""The HTTP interface of a store of runs, and the page that shows them."""

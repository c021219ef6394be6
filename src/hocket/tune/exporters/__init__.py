"""One file per format; `hocket.tune.export` discovers them."""

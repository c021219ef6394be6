"""Distributed applications that are measured, one file each; `hocket.bench.apps.registry` finds them."""

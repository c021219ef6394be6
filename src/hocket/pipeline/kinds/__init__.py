"""Kinds of actions, one file per family; `hocket.pipeline.kind` discovers them."""

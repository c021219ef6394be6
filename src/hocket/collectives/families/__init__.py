"""Families of algorithms, one file per family; the registry discovers them."""

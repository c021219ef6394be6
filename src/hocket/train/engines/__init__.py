"""Gradient engines: ways to sum the gradients of ranks that train copies of one model, one file each."""

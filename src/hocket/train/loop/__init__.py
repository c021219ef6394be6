"""Epochs, steps, callbacks and checkpoints of a training."""

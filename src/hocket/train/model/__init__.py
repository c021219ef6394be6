"""Models as layers, and as stages of layers."""

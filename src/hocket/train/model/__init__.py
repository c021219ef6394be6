"""How a model becomes layers, and stages of layers."""

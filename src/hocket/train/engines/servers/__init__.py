"""Parameter servers: their processes, their messages, and which tensors each of them has."""

"""How a training is laid out: partitions, replicas, schedule, cuts, and what those cost."""

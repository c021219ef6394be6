"""The set-up of a training: partitions, replicas, schedule, cuts, and their costs."""

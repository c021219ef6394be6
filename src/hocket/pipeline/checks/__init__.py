"""What a schedule has to hold to be run: one file a check."""

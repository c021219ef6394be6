"""Passes that transform schedules, one file per pass."""

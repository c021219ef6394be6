"""Checks of schedules, one file per check."""

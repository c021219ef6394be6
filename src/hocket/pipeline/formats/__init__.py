"""Schedules as files: one file a form, all of which `hocket.pipeline.files` finds."""

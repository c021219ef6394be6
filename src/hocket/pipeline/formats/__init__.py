"""File formats of schedules, one file per format; `hocket.pipeline.files` discovers them."""

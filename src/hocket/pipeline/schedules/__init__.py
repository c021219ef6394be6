"""Published schedules, one file per schedule; `hocket.pipeline.registry` discovers them."""

"""From table to table: one file a pass."""

"""A recorded run as one page with pictures."""

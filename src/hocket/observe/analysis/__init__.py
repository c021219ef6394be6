"""What a recorded run shows: where its time and bytes went, who waited for whom, and why."""

"""Write a pipeline schedule, check it, and simulate and draw it beside published ones. Needs no ranks."""

from hocket import pipeline

MINE = """
hocket pipeline schedule, version 1
name: mine
micro-batches: 2
pipe 0: 0 1
rank 0: 0F0 0F1 0I0 0I1 0W0 0W1      # weight gradients last: rank 1 does not wait for them
rank 1: 1F0 1I0 1F1 1I1 1W0 1W1
"""

mine = pipeline.load_text(MINE)
pipeline.validate(mine)
costs = pipeline.CostModel(seconds={"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0})
for schedule in (mine, pipeline.build("1f1b", 2, 2), pipeline.build("chimera", 2, 2)):
    timeline = pipeline.simulate(schedule, costs)
    print(f"{schedule.name}: {timeline.makespan_s:g} s, bubbles {timeline.bubble():.0%} of the step")
    print(pipeline.draw_text(timeline, width=60))

wrong = mine.with_actions([mine.actions[0][:-1], mine.actions[1]])
try:
    pipeline.validate(wrong)
except pipeline.InvalidSchedule as error:
    print(f"{type(error).__name__}: {error}")

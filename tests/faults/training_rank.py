# ruff: noqa: F821
# A rank of a pipeline; one rank dies, stops or fails during a training step (test_training.py).
import torch
from torch import nn

from hocket import pipeline
from hocket.train import MicroBatch, PipelineExecutor, graph_of

how, schedule, victim = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)


class Trap(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.num_left = 6

    def forward(self, x):
        if victim == RANK and not torch.is_grad_enabled():
            return x * self.weight
        if victim == RANK and type(x) is torch.Tensor:  # not when the executor determines output shapes
            self.num_left -= 1
        if self.num_left == 0:
            note("failure")
            if how == "raise":
                raise RuntimeError("out of luck")
            os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        return x * self.weight


def num_errors():
    return sum('"error"' in open(name).read() for name in os.listdir() if name.startswith("notes-"))


comm = hk.init(timeout=30)
table = pipeline.build(schedule, SIZE, 4)
model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), Trap()) for _ in range(table.num_stages)))
split = graph_of(model).split(list(range(table.num_stages + 1)))
executor = PipelineExecutor(table, split, comm, lambda output, _: output.sum(), timeout=2)
batch = [MicroBatch({"input": torch.ones(2, 4)}) for _ in range(4)]
for again in range(2):
    try:
        for _ in range(10):
            executor.step(batch)
    except Exception as error:
        event = "again" if again else "error"
        note(event, type=type(error).__name__, text=str(error), ranks=list(getattr(error, "ranks", ())))
        if again:
            # The others must fail because of the error on this rank, not because this rank leaves.
            wait_until(lambda: victim != RANK or num_errors() == SIZE)
            raise  # so that the launcher ends the stopped rank

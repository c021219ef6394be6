"""Actions that torch.distributed.pipelining adds for stages with sharded weights (FSDP)."""

from hocket.pipeline.kind import Kind, Need, register_kind

register_kind(Kind("UNSHARD", "gather the weights of a stage", scope="stage", cost="UNSHARD"))
register_kind(Kind("RESHARD", "free the gathered weights of a stage", scope="stage", cost="RESHARD"))
register_kind(
    Kind(
        "REDUCE_GRAD",
        "reduce the gradients of a stage over its shards, after its last backward pass",
        scope="stage",
        needs=(Need(("B", "W"), match=("step", "pipe", "stage")),),
        cost="REDUCE_GRAD",
    )
)

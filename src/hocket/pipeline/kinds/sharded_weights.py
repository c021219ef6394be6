"""What torch.distributed.pipelining adds to its tables for stages whose weights are sharded (FSDP)."""

from hocket.pipeline.kind import Kind, Need, register_kind

register_kind(Kind("UNSHARD", "gather the weights of a stage", scope="stage", cost="UNSHARD"))
register_kind(Kind("RESHARD", "drop the gathered weights of a stage", scope="stage", cost="RESHARD"))
register_kind(
    Kind(
        "REDUCE_GRAD",
        "reduce the gradients of a stage over its shards, after its last backward pass",
        scope="stage",
        needs=(Need(("B", "W"), match=("step", "pipe", "stage")),),
        cost="REDUCE_GRAD",
    )
)

"""Messages between ranks: outputs of forward passes, and their gradients."""

from hocket.pipeline.kind import SAME, Kind, Need, register_kind

_PEER = (*SAME, "peer")

register_kind(
    Kind(
        "SEND_F",
        "send the output of a forward pass",
        needs=(Need(("F",)),),
        message="send",
        carries="activation",
        peer_offset=1,
        is_of_forward=True,
    )
)
register_kind(
    Kind(
        "RECV_F",
        "receive the input of a forward pass",
        needs=(Need(("SEND_F",), stages="peer", match=_PEER, carries="message"),),
        message="receive",
        carries="activation",
        peer_offset=-1,
        is_of_forward=True,
    )
)
register_kind(
    Kind(
        "SEND_B",
        "send the gradient of the inputs",
        needs=(Need(("B", "I")),),
        message="send",
        carries="gradient",
        peer_offset=-1,
    )
)
register_kind(
    Kind(
        "RECV_B",
        "receive the gradient of the outputs",
        needs=(Need(("SEND_B",), stages="peer", match=_PEER, carries="message"),),
        message="receive",
        carries="gradient",
        peer_offset=1,
    )
)

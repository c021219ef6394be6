"""Messages between ranks: what leaves a forward pass, and the gradients that come back."""

from hocket.pipeline.kind import SAME, Kind, Need, register_kind

_OTHER_END = (*SAME, "peer")

register_kind(
    Kind(
        "SEND_F",
        "send what a forward pass gave",
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
        "receive the inputs of a forward pass",
        needs=(Need(("SEND_F",), stages="peer", match=_OTHER_END, carries="message"),),
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
        needs=(Need(("SEND_B",), stages="peer", match=_OTHER_END, carries="message"),),
        message="receive",
        carries="gradient",
        peer_offset=1,
    )
)

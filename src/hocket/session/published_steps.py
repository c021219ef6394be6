"""The traffic of one training step of published models, computed from their shapes.

Bytes follow from the shapes in the papers. The time of computation is a count of floating-point operations divided by
a rate that the caller gives: two operations per parameter and token forward, four backward. Gradients are summed; the
loss is scaled to average them, as DeepSpeed does with 16-bit floats. Nothing here was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hocket.errors import InvalidArgument
from hocket.trace.traffic import Traffic, TrafficStep

_BACKWARD = 2.0  # times the forward pass: one product for the input's gradient, one for that of the weights


def gpt_345m(num_ranks: int, *, scale: int = 1, flops_per_s: float | None = None) -> Traffic:
    """Dense data parallelism with a sharded optimizer: a GPT-2 of 345 million parameters, in float16.

    24 layers of hidden size 1,024 and 1,024 tokens a sequence: Shoeybi et al., Megatron-LM, arXiv 1909.08053, section 5
    (GPT-2's 50,257 tokens not padded); 8 sequences a rank. Optimizer state and gradients sharded as in Rajbhandari et
    al., ZeRO, arXiv 1910.02054, section 7.1: the backward pass reduce-scatters the gradients of each layer when they
    are ready, those of the embeddings last; then every shard is updated and gathered.

    Args:
        num_ranks: ranks that share the optimizer.
        scale: divides the layers and the rows of the token embedding, rounded up.
        flops_per_s: rate of one rank, in floating-point operations a second; None: no time for computation.

    Raises:
        InvalidArgument: an argument is zero or negative.
    """
    _check(num_ranks, scale, flops_per_s)
    hidden, sequence, num_layers, vocabulary = 1024, 1024, math.ceil(24 / scale), math.ceil(50257 / scale)
    layer = 12 * hidden**2 + 13 * hidden
    embeddings = (vocabulary + sequence) * hidden + 2 * hidden  # and the last normalisation
    buckets = [layer] * num_layers + [embeddings]
    tokens = 8 * sequence
    forward_s = _seconds(2 * (num_layers * layer + vocabulary * hidden) * tokens, flops_per_s)
    steps = []
    for index, num_parameters in enumerate(buckets):
        compute_s = _seconds(_BACKWARD * 2 * layer * tokens, flops_per_s) if index < num_layers else 0.0
        if index == 0:
            compute_s += forward_s + _seconds(_BACKWARD * 2 * vocabulary * hidden * tokens, flops_per_s)
        block = math.ceil(num_parameters / num_ranks) * 2
        steps.append(TrafficStep("reduce_scatter", block, "float16", "sum", is_async=True, compute_s=compute_s))
    steps += [
        TrafficStep("all_gather", step.nbytes, "float16", is_async=True, waits=(index,))
        for index, step in enumerate(steps)
    ]
    source = (
        "GPT-2 345M (24 layers, hidden 1024, 50257 tokens; Megatron-LM, arXiv 1909.08053) in float16 with gradients "
        "and optimizer sharded (ZeRO, arXiv 1910.02054), a bucket a layer, whole blocks, 8 x 1024 tokens a rank"
    )
    reduced = f"{num_layers} of 24 layers, {vocabulary} of 50257 rows of the embedding"
    return _traffic("gpt-345m", num_ranks, source, reduced, scale, flops_per_s, steps)


def moe_350m(num_ranks: int, *, scale: int = 1, flops_per_s: float | None = None) -> Traffic:
    """Expert parallelism: DeepSpeed-MoE's 350M+MoE-128, in bfloat16.

    24 layers of hidden size 1,024, in every other one 128 experts instead of the feed-forward layer, top-1 gating with
    capacity factor 1 as in the Switch Transformer (Fedus et al., arXiv 2101.03961, section 2.2): Rajbhandari et al.,
    arXiv 2201.05596, table 1; four sequences of 2,048 tokens a rank, as in Megatron-DeepSpeed's
    ds_pretrain_gpt_350M_MoE128.sh. An all_to_all sends the tokens, padded to the experts' capacity, to the experts and
    another sends them back, forward and backward; a rank holds 128 / num_ranks experts, rounded up. All other gradients
    are all-reduced when they are ready, in one bucket for every two layers.

    Args:
        num_ranks: ranks that share the experts.
        scale: divides the pairs of layers, the tokens a rank and the rows of the token embedding, rounded up.
        flops_per_s: rate of one rank, in floating-point operations a second; None: no time for computation.

    Raises:
        InvalidArgument: an argument is zero or negative.
    """
    _check(num_ranks, scale, flops_per_s)
    hidden, num_experts, sequence, dtype = 1024, 128, 2048, "bfloat16"
    num_pairs, tokens, vocabulary = math.ceil(12 / scale), math.ceil(4 * sequence / scale), math.ceil(50257 / scale)
    capacity = max(4, math.ceil(tokens / num_experts))  # for the tokens of one rank; 4 as in the script
    block = math.ceil(num_experts / num_ranks) * capacity * hidden * 2
    attention = 4 * hidden**2 + 4 * hidden + 4 * hidden  # and two normalisations
    feed_forward = 8 * hidden**2 + 5 * hidden
    pair = 2 * attention + feed_forward + hidden * num_experts  # the gate has no bias
    embeddings = (vocabulary + sequence) * hidden + 2 * hidden

    dense_s = _seconds(2 * pair * tokens, flops_per_s)
    expert_s = _seconds(2 * feed_forward * tokens, flops_per_s)
    head_s = _seconds(2 * vocabulary * hidden * tokens, flops_per_s)
    steps = []
    for _ in range(num_pairs):
        steps.append(TrafficStep("all_to_all", block, dtype, compute_s=dense_s))
        steps.append(TrafficStep("all_to_all", block, dtype, compute_s=expert_s))
    for index in range(num_pairs):
        before_s = (1 + _BACKWARD) * head_s if index == 0 else 0.0
        steps.append(TrafficStep("all_to_all", block, dtype, compute_s=before_s))
        steps.append(TrafficStep("all_to_all", block, dtype, compute_s=_BACKWARD * expert_s))
        steps.append(_gradients(pair, dtype, _BACKWARD * dense_s))
    steps.append(_gradients(embeddings, dtype, 0.0))
    source = (
        "350M+MoE-128 (24 layers, hidden 1024, 128 experts in every other layer, top-1, capacity factor 1; "
        "DeepSpeed-MoE, arXiv 2201.05596, and Switch Transformer, arXiv 2101.03961) in bfloat16, 4 x 2048 tokens a "
        "rank, experts on one rank each and their gradients local"
    )
    reduced = f"{2 * num_pairs} of 24 layers, {tokens} of 8192 tokens a rank, {vocabulary} of 50257 rows"
    return _traffic("moe-350m", num_ranks, source, reduced, scale, flops_per_s, steps)


def dlrm_criteo(num_ranks: int, *, scale: int = 1, flops_per_s: float | None = None) -> Traffic:
    """Recommendation: DLRM on the Criteo click logs as in MLPerf training, in float32.

    26 embedding tables of dimension 128, bottom MLP 13-512-256-128, top MLP 1024-1024-512-256-1 on the 351 products of
    pairs and the 128 outputs of the bottom MLP, 2,048 samples: Naumov et al., arXiv 1906.00091, and the configuration
    of MLPerf in its code (bench/run_and_time.sh). Each rank holds whole tables, 26 / num_ranks rounded up. An
    all_to_all sends their rows forward, while the bottom MLP computes, and another sends the rows' gradients backward;
    the gradients of each MLP are one all_reduce.

    Args:
        num_ranks: ranks that share the tables and the samples.
        scale: divides the samples, rounded up.
        flops_per_s: rate of one rank, in floating-point operations a second; None: no time for computation.

    Raises:
        InvalidArgument: an argument is zero or negative.
    """
    _check(num_ranks, scale, flops_per_s)
    num_tables, dimension, dtype = 26, 128, "float32"
    samples = math.ceil(math.ceil(2048 / scale) / num_ranks)
    num_features = (num_tables + 1) * num_tables // 2 + dimension
    bottom = _mlp_parameters([13, 512, 256, dimension])
    top = _mlp_parameters([num_features, 1024, 1024, 512, 256, 1])
    block = math.ceil(num_tables / num_ranks) * samples * dimension * 4
    bottom_s = _seconds(2 * bottom * samples, flops_per_s)
    top_s = _seconds(2 * top * samples, flops_per_s)
    rows = TrafficStep("all_to_all", block, dtype, is_async=True)
    steps = [
        rows,
        # A step waits first and computes then, so the bottom MLP is counted behind the wait.
        replace(_gradients(top, dtype, bottom_s + (1 + _BACKWARD) * top_s), waits=(0,)),
        rows,
        _gradients(bottom, dtype, _BACKWARD * bottom_s),
    ]
    source = (
        "DLRM of MLPerf training on Criteo (26 tables of dimension 128, MLPs 13-512-256-128 and "
        "479-1024-1024-512-256-1, batch 2048; arXiv 1906.00091 and facebookresearch/dlrm "
        "bench/run_and_time.sh) in float32, tables whole on ranks"
    )
    reduced = f"{samples * num_ranks} of 2048 samples"
    return _traffic("dlrm-criteo", num_ranks, source, reduced, scale, flops_per_s, steps)


def _check(num_ranks: int, scale: int, flops_per_s: float | None) -> None:
    for name, number in (("num_ranks", num_ranks), ("scale", scale)):
        if not isinstance(number, int) or number < 1:
            raise InvalidArgument(f"{name} must be 1 or more, not {number!r}")
    if flops_per_s is not None and not 0 < flops_per_s < math.inf:
        raise InvalidArgument(f"flops_per_s must be above zero, or None, not {flops_per_s!r}")


def _seconds(flops: float, flops_per_s: float | None) -> float:
    return 0.0 if flops_per_s is None else flops / flops_per_s


def _mlp_parameters(widths: Sequence[int]) -> int:
    return sum(inputs * outputs + outputs for inputs, outputs in pairwise(widths))


def _gradients(num_parameters: int, dtype: str, compute_s: float) -> TrafficStep:
    nbytes = num_parameters * (4 if dtype == "float32" else 2)
    return TrafficStep("all_reduce", nbytes, dtype, "sum", is_async=True, compute_s=compute_s)


def _traffic(
    name: str,
    num_ranks: int,
    source: str,
    reduced: str,
    scale: int,
    flops_per_s: float | None,
    steps: Sequence[TrafficStep],
) -> Traffic:
    computed = "no computation" if flops_per_s is None else f"computation modelled at {flops_per_s:g} FLOP/s a rank"
    size = "full size" if scale == 1 else f"reduced by {scale}: {reduced}"
    return Traffic(name, num_ranks, f"{source}; {size}; {computed}", tuple(steps))

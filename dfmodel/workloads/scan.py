"""The selective scan of state-space models: h[t] = decay[t] h[t - 1] + increment[t], y[t] the sum over C[t] h[t].

Gu and Dao, arXiv 2312.00752, section 3; the recurrence is a scan of pairs under the associative operation
(a, b), (c, d) -> (c a, c b + d). Three ways to do it, a choice of the workload and not of the chip:

| scan | how | combinations for n tokens |
|---|---|---|
| serial | one kernel walks the tokens, state in registers | n - 1, of 2 FLOP (the product of decays is not needed) |
| hardware | one kernel, up- and down-sweep over lanes that exchange values (Blelloch 1990; Mamba's own) | `sweep` |
| parallel | passes of doubling distance (Hillis and Steele 1986), each over the pairs of all tokens | `doubling` |

The first two keep what is [token, channel, state] large on chip and compute it again in the backward pass (section
3.3.2 there); the third has it in memory, and moves it between passes on chips that run kernel by kernel.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from dfmodel.workloads.block_builder import BlockBuilder
from dfmodel.workloads.layers import VECTOR_FLOPS

Scan = Literal["serial", "parallel", "hardware"]
SCANS: tuple[Scan, ...] = get_args(Scan)

#: FLOP of one combination: of pairs, and of a state alone.
PAIR_FLOPS = 3.0
STATE_FLOPS = 2.0

#: Bytes of a number the scan keeps: fp32, as Mamba's kernels do.
_STATE_BYTES = 4

_CHANNELS = "batch token channel"
_STATES = "batch token state"
_EXPANDED = "batch token channel state"

#: FLOP at every [token, channel, state]: the decay exp(delta A), the increment delta x B, the sum over states of C h.
_DECAY, _INCREMENT, _READ = 2.0, 1.0, 2.0
#: FLOP at every [token, channel]: softplus of delta (as many as silu), delta x, the skip D x added.
_PER_CHANNEL = VECTOR_FLOPS["silu"] + 1.0 + 2.0


def doubling_passes(n: int) -> int:
    """Passes of a scan of n elements by doubling distances."""
    return max(1, math.ceil(math.log2(n)))


def doubling_combinations(n: int) -> int:
    """Combinations of a scan by doubling distances: n less the distance in every pass (Hillis and Steele)."""
    return sum(n - 2**k for k in range(doubling_passes(n)) if 2**k < n)


def sweep_combinations(n: int) -> int:
    """Combinations of an inclusive scan by an up-sweep and a down-sweep over a tree (Blelloch; Brent and Kung)."""
    distances = [2**k for k in range(n.bit_length())]
    return sum(n // (2 * d) for d in distances) + sum((n - d) // (2 * d) for d in distances if d < n)


def scan_flops(scan: Scan, tokens: int) -> float:
    """FLOP of the recurrence alone for one channel and state over all tokens."""
    if scan == "serial":
        return STATE_FLOPS * (tokens - 1)
    if scan == "hardware":
        return PAIR_FLOPS * sweep_combinations(tokens)
    return PAIR_FLOPS * doubling_combinations(tokens)


def selective_scan(g: BlockBuilder, scan: Scan, delta: str, source: str, b: str, c: str) -> str:
    """Kernels of the selective scan of `source` with step `delta` ([batch, token, channel]) and `b`, `c` ([batch,
    token, state]); the name of its result [batch, token, channel]."""
    if scan == "parallel":
        return _in_passes(g, delta, source, b, c)
    tokens, states = g.extents["token"], g.extents["state"]
    recurrence = scan_flops(scan, tokens) / tokens
    again = _DECAY + _INCREMENT + recurrence
    # states again; C dy; the scan backwards; gradients of C, decay, A and delta (4), B and delta x (4)
    backward = again + 1.0 + recurrence + 2.0 + 2.0 + 4.0 + 4.0
    # softplus and delta x again; gradients of x and delta 3, D 4, softplus 4
    backward_channel = VECTOR_FLOPS["silu"] + 1.0 + 11.0
    g.kernel(
        "scan",
        {
            delta: _CHANNELS,
            source: _CHANNELS,
            b: _STATES,
            c: _STATES,
            g.weight("w_decay", "channel state"): "channel state",
            g.weight("w_skip", "channel"): "channel",
        },
        {"scan_out": _CHANNELS},
        "vector",
        again + _READ + _PER_CHANNEL / states,
        op="selective_scan",
        unsplittable=frozenset({"token", "state"}),
        sequential=frozenset({"token"}) if scan == "serial" else frozenset(),
        backward_flops_per_point=backward + backward_channel / states,
        backward_repeated_flops_per_point=again,
    )
    return "scan_out"


def _in_passes(g: BlockBuilder, delta: str, source: str, b: str, c: str) -> str:
    """The scan with pairs and states in memory: channel by channel, since a pass needs all tokens."""
    tokens, states = g.extents["token"], g.extents["state"]
    passes = doubling_passes(tokens)
    combine = scan_flops("parallel", tokens) / tokens
    g.kernel(
        "discretise",
        {
            delta: _CHANNELS,
            source: _CHANNELS,
            b: _STATES,
            g.weight("w_decay", "channel state"): "channel state",
        },
        {"decay": _EXPANDED, "increment": _EXPANDED},
        "vector",
        _DECAY + _INCREMENT + (VECTOR_FLOPS["silu"] + 1.0) / states,
        op="discretise",
        tiling="channel",
        dtypes={"decay": "fp32", "increment": "fp32"},
        # the decay again; gradients of decay, A and delta (4), B and delta x (4); of softplus, x and delta
        backward_flops_per_point=_DECAY + 9.0 + (VECTOR_FLOPS["silu"] + 1.0 + 7.0) / states,
        backward_repeated_flops_per_point=_DECAY,
    )
    g.kernel(
        "scan",
        {"decay": _EXPANDED, "increment": _EXPANDED},
        {"states": _EXPANDED},
        "vector",
        combine / passes,
        op="scan",
        tiling="channel",
        unsplittable=frozenset({"token"}),
        runs=passes,
        run_bytes_per_point=2 * 2 * _STATE_BYTES,  # a pair written and read
        dtypes={"states": "fp32"},
        # the scan backwards; gradient of the decay
        backward_flops_per_point=(combine + 1.0) / passes,
    )
    g.kernel(
        "readout",
        {
            "states": _EXPANDED,
            c: _STATES,
            source: _CHANNELS,
            g.weight("w_skip", "channel"): "channel",
        },
        {"scan_out": _CHANNELS},
        "vector",
        _READ + 2.0 / states,
        op="readout",
        tiling="channel",
        unsplittable=frozenset({"state"}),
        # gradients of states 1 and C 2; of x and D
        backward_flops_per_point=3.0 + 4.0 / states,
    )
    return "scan_out"

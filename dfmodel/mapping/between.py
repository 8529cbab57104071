"""What passes between chips that hold different layers or copies of the same ones, at least, for a class of plans.

Messages between stages: each at no less than on the best single dimension. Data-parallel communication once per step:
where every stage has equally many layers, the first one waits for no other, so what of its reduction and gathering its
own passes cannot hide is seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dfmodel.mapping.block_costs import BlockCosts
from dfmodel.mapping.least_cost import LeastCost


@dataclass(frozen=True)
class Between:
    """Seconds of one message across a stage's border, with and without chunks interleaved; of reducing the gradients
    and gathering the parameters of one layer over the chips that hold the same, arrays like the plans bounded;
    `overlap_share` of a pass may hide those."""

    send_s: float | np.ndarray
    interleaved_send_s: float | np.ndarray
    reduce_s: np.ndarray
    gather_s: np.ndarray
    overlap_share: float

    def once_s(self, layers: np.ndarray, slowest_s: np.ndarray) -> np.ndarray:
        """Seconds seen at least, whatever ZeRO's stage, of a stage with so many `layers`.

        The stage's passes hide at most a share of their seconds, which are no more than the slowest stage's; and that
        one's seconds recur with every micro-batch, so more of them never pays.
        """
        taken = layers * (self.reduce_s + np.minimum(self.reduce_s, self.gather_s))
        return np.asarray(np.maximum(0.0, taken - self.overlap_share * slowest_s))

    def once_after_mapping_s(
        self, layers: np.ndarray, slowest_s: np.ndarray, layer: BlockCosts | LeastCost, zero: np.ndarray
    ) -> np.ndarray:
        """The same under a known ZeRO stage and for known passes of a `layer`; 0 for ZeRO 2 and 3, whose communication
        recurs."""
        forward = layers * self.overlap_share * layer.forward_s
        backward = layers * self.overlap_share * (layer.backward_s + layer.weights_s)
        reduce, gather = layers * self.reduce_s, layers * self.gather_s
        # what else the first stage holds lengthens its passes, by no more than the slowest stage has beside its layers
        other = self.overlap_share * np.maximum(slowest_s - layers * layer.seconds, 0.0)
        all_reduced = np.maximum(0.0, 2 * reduce - backward - other)
        divided = np.maximum(0.0, np.maximum(0.0, reduce - backward) + np.maximum(0.0, gather - forward) - other)
        return np.asarray(np.where(zero == 0, all_reduced, np.where(zero == 1, divided, 0.0)))

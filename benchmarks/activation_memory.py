"""Memory of the first pipeline stage: the closed forms of Korthikanti et al., the layers of our graphs, and the
physical footprint with the embedding: `python benchmarks/activation_memory.py`. GiB per GPU, tensor parallel 8."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from megatron_memory import CASES, GIB, first_stage

MODES = (("none", False), ("none", True), ("selective", False), ("selective", True), ("full", False))
STATE = ("weights", "gradients", "optimizer state")


def main() -> None:
    print(f"{'model':<14}{'recompute':<12}{'sequence':<10}{'':>22}{'closed form':>12}{'layers':>12}{'physical':>12}")
    for case in CASES:
        for mode, sequence in MODES:
            layers = first_stage(case, mode, sequence, with_embedding=False)
            physical = first_stage(case, mode, sequence, with_embedding=True)
            label = f"{case.model:<14}{mode:<12}{'divided' if sequence else 'whole':<10}"
            rows = [("activations", case.closed_activations(mode, sequence), ("activations",))]
            if mode == "none" and not sequence:
                rows.insert(0, ("parameters, optimizer", case.closed_state(), STATE))
            for name, closed, parts in rows:
                shown = [sum(held[p] for p in parts) / GIB for held in (layers, physical)]
                print(f"{label}{name:>22}{closed:>12.4f}{shown[0]:>12.4f}{shown[1]:>12.4f}")
    print("\nrelative to tensor parallelism alone, GPT-3 175B, one layer:")
    case = CASES[1]
    base = first_stage(case, "none", False, with_embedding=False)["activations"]
    for mode, sequence in MODES[1:]:
        share = first_stage(case, mode, sequence, with_embedding=False)["activations"] / base
        print(f"  {mode:<10} {'sequence divided' if sequence else 'sequence whole':<18} {100 * share:6.2f} %")


if __name__ == "__main__":
    main()

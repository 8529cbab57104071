"""The original's cycle-level runs: proven optimum over all tile counts."""

from __future__ import annotations

import time

import dfmodel

#: Study -> (tiles of an independently computed optimum or None, its ns per layer and sequence, the log's ns).
CASES = {
    "mapping_existing_8x1": (None, 5_345_280, 1212.251846411307 / 2304 / 96),
    "mapping_dfmodel_4x2": (19, 6_882_755, 800.9758461146134 / 1152 / 96),
    "mapping_dfmodel_4x2_nooverlap": (19, 13_802_865, 1702.9330580274875 / 1152 / 96),
    "sweep_df_large": (None, 6_350_438, 782.7577896959592 / 1152 / 96),
    "sweep_kbk_large": (None, 10_194_371, 1134.5709898137713 / 1152 / 96),
    "sweep_kbk_small": (None, 29_445_120, 3289.53005604864 / 1152 / 96),
    "memory_3d_08": (None, 409_271_789, 1015813.1234920172 / 16384 / 128),
}


def main() -> None:
    """One line per case, then the partitions of the mappings that differ from the independent optimum."""
    print(f"{'case':32} {'ns per layer':>14} {'independent':>14} {'log':>14} {'wall s':>7}")
    differing = []
    for study, (tiles, expected, logged_s) in CASES.items():
        began = time.perf_counter()
        result = dfmodel.optimize(study=study)
        found = (result.metrics["layer_s"] or 0) * 1e9
        print(f"{study:32} {found:14,.0f} {expected:14,} {logged_s * 1e9:14,.0f} {time.perf_counter() - began:7.2f}")
        if tiles is not None:
            differing.append((study, tiles))
    for study, tiles in differing:
        for label, settings in (("best", {}), (f"{tiles} tiles", {"assumptions.partitions.tiles": tiles})):
            print(f"\n{study}, {label} (ns: compute, memory, network, total; SRAM bytes)")
            for p in dfmodel.optimize(study=study, settings=settings).partitions:
                parts = (p.compute_s, p.memory_s, p.network_s, p.seconds)
                print(
                    "  "
                    + " ".join(f"{s * 1e9:11,.0f}" for s in parts)
                    + f" {p.sram_bytes:13,.0f}  {' '.join(p.kernels)}"
                )


if __name__ == "__main__":
    main()

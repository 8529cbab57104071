"""Processes and how chips are made on them, from what catalog files say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dfmodel.errors import InputError
from dfmodel.systems.memory import Memory
from dfmodel.systems.schema import ProcessFile, SiliconFile
from dfmodel.systems.silicon import Demand, Process


def process_of(spec: ProcessFile, name: str) -> Process:
    """The process a checked file describes."""
    return Process(
        name=name,
        wafer_usd=spec.wafer_price,
        wafer_diameter_m=spec.wafer_diameter,
        edge_exclusion_m=spec.edge_exclusion,
        scribe_m=spec.scribe,
        reticle_m2=spec.reticle,
        defects_per_m2=spec.defect_density,
        yield_model=spec.yield_model,
        clustering=spec.clustering,
        compute_m2_per_flops=spec.compute_area,
        sram_m2_per_byte=spec.sram_area,
        memory_m2_per_byte_per_s=spec.memory_interface_area,
        link_m2_per_byte_per_s=spec.link_interface_area,
        other_share=spec.other_share,
        stack_usd=spec.stack_price,
        stack_m2=spec.stack_area,
        package_usd_per_m2=spec.package_price,
        bonding_yield=spec.bonding_yield,
        test_usd=spec.test_price,
        gross_margin=spec.gross_margin,
    )


def demand_of(
    spec: SiliconFile, matrix: Mapping[str, float], sram_bytes: float, memories: Sequence[Memory], where: str
) -> Demand:
    """What a chip's package has to hold: its 16-bit matrix peak (the largest where it has none), SRAM and interfaces.

    Raises InputError where the stacks would be paid twice: counted here, and priced by their memory's file.
    """
    priced = [m.name for m in memories if m.price_usd is not None]
    if spec.hbm_stacks and priced:
        raise InputError(
            f"{where}.hbm_stacks: the stacks would be paid twice, for memory '{priced[0]}' states a price; set it to 0"
        )
    return Demand(
        flops_per_s=max([matrix[d] for d in ("bf16", "fp16") if d in matrix] or matrix.values()),
        sram_bytes=sram_bytes,
        memory_bytes_per_s={m.name: m.bytes_per_s for m in memories},
        link_bytes_per_s=spec.link_bandwidth,
        dies=spec.dies,
        stacks=spec.hbm_stacks,
        repairable=spec.repairable,
        stitched=spec.stitched,
        area_m2=spec.area,
    )

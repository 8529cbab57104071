"""What catalog files of chips, memories, links, efficiency curves and systems may hold.

Unknown keys are refused, quantities carry units, bandwidths carry their convention. A key that names another
catalog file (`memory: hbm3_h100`) may hold that file's content instead, or `{base: hbm3_h100, ...}` to change
some of its values.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dfmodel import units
from dfmodel.errors import did_you_mean
from dfmodel.systems.algorithms import ALGORITHMS
from dfmodel.systems.chip import Fusion
from dfmodel.systems.network import Collective, DimensionKind
from dfmodel.systems.silicon import YieldModel
from dfmodel.systems.wiring import WiringRule


def _quantity(dimension: str) -> BeforeValidator:
    return BeforeValidator(lambda text: units.convert(text, dimension))


def _capacity(text: object) -> float:
    return math.inf if text == "unlimited" else units.convert(text, "bytes")


def _reference(value: object) -> object:
    if isinstance(value, dict) or (isinstance(value, str) and value):
        return value
    raise ValueError("expected a catalog name or the keys of one")


def _references(value: object) -> object:
    if isinstance(value, list) and value:
        return [_reference(v) for v in value]
    return _reference(value)


def _size(value: object) -> int | str:
    if isinstance(value, str) and not value.isdecimal() and value:
        return value
    if isinstance(value, int | str) and not isinstance(value, bool) and value and int(value) >= 1:
        return int(value)
    raise ValueError("expected a whole number of 1 or more, or the name of a parameter")


Bandwidth = Annotated[float, _quantity("bandwidth"), Field(gt=0)]
Bytes = Annotated[float, _quantity("bytes")]
Capacity = Annotated[float, BeforeValidator(_capacity), Field(gt=0)]
Area = Annotated[float, _quantity("area"), Field(gt=0)]
AreaPerBandwidth = Annotated[float, _quantity("area_per_bandwidth")]
AreaPerRate = Annotated[float, _quantity("area_per_rate")]
AreaPerSize = Annotated[float, _quantity("area_per_size")]
Length = Annotated[float, _quantity("length")]
PerArea = Annotated[float, _quantity("per_area")]
MoneyPerArea = Annotated[float, _quantity("money_per_area")]
EnergyPerFlop = Annotated[float, _quantity("energy_per_flop")]
EnergyPerByte = Annotated[float, _quantity("energy_per_byte")]
Flops = Annotated[float, _quantity("flops")]
FlopRate = Annotated[float, _quantity("flop_rate"), Field(gt=0)]
Frequency = Annotated[float, _quantity("frequency"), Field(gt=0)]
Money = Annotated[float, _quantity("money")]
MoneyPerBandwidth = Annotated[float, _quantity("money_per_bandwidth")]
MoneyPerEnergy = Annotated[float, _quantity("money_per_energy")]
MoneyPerSize = Annotated[float, _quantity("money_per_size")]
Power = Annotated[float, _quantity("power")]
PowerPerBandwidth = Annotated[float, _quantity("power_per_bandwidth")]
Time = Annotated[float, _quantity("time")]
Share = Annotated[float, Field(gt=0, le=1)]
Reference = Annotated[Any, BeforeValidator(_reference)]
References = Annotated[Any, BeforeValidator(_references)]

Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"]

#: Where a number comes from: a vendor's document, a measurement, nowhere (a stated assumption), or the
#: set-up files of a published study, which need not be what the vendor ships.
Status = Literal["datasheet", "measured", "assumed", "study"]


class SpecPart(BaseModel):
    """Keys of a catalog file; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Sourced(SpecPart):
    """A catalog entry. `sources` and `status` go from a key path (or "*", the whole file) to its origin."""

    name: str | None = None
    title: str = ""
    notes: str = ""
    sources: dict[str, str] = {}
    status: dict[str, Status] = {}


class MemoryFile(Sourced):
    """One memory tier of one chip."""

    capacity: Capacity = Field(description="a size, or `unlimited`")
    bandwidth: Bandwidth
    convention: Literal["peak, read plus write"]
    price_per_bandwidth: MoneyPerBandwidth | None = None
    power_per_bandwidth: PowerPerBandwidth | None = None
    price: Money | None = None
    power: Power | None = None
    energy: EnergyPerByte | None = None


class AchievedFile(SpecPart):
    """What collectives reach of a link; see dfmodel.systems.network.Achieved."""

    kinds: tuple[DimensionKind, ...] = ()
    operations: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    efficiency: Share
    ramp: Bytes = 0.0
    start: Time = 0.0
    status: Literal["assumed", "calibrated"]
    source: str

    @model_validator(mode="after")
    def _known_names(self) -> AchievedFile:
        for stated, known, what in (
            (self.operations, (*get_args(Collective), "scatter", "gather"), "operation"),
            (self.algorithms, tuple(ALGORITHMS), "algorithm"),
        ):
            for name in stated:
                if name not in known:
                    raise ValueError(f"unknown {what} '{name}'{did_you_mean(name, known)}")
        return self


class LinkFile(Sourced):
    """A link; `links` is how many of them a chip has. `achieved_like` names a link whose `achieved` is assumed here."""

    bandwidth: Bandwidth
    convention: Literal["per link and direction", "per chip and direction"]
    links: int | None = Field(None, ge=1)
    latency: Time = 0.0
    price_per_bandwidth: MoneyPerBandwidth | None = None
    power_per_bandwidth: PowerPerBandwidth | None = None
    switch_price_per_bandwidth: MoneyPerBandwidth | None = None
    switch_power_per_bandwidth: PowerPerBandwidth | None = None
    energy: EnergyPerByte | None = None
    achieved: tuple[AchievedFile, ...] = ()
    achieved_like: str | None = None


class GemmFile(SpecPart):
    """Shape dependence of matrix work; see dfmodel.systems.gemm.GemmCurve."""

    units: int = Field(ge=1)
    k_half: float = Field(ge=0)
    tile_exponent: float = Field(ge=0, le=1)
    blend: float = Field(ge=1)


class EfficiencyFile(SpecPart):
    """Achieved share of peak by size; see dfmodel.systems.chip.Efficiency."""

    name: str | None = None
    title: str = ""
    notes: str = ""
    matrix_max: Share
    matrix_half: Flops
    vector_max: Share
    memory_max: Share
    memory_half: Bytes
    link_max: Share
    links_achieve: bool = True
    gemm: GemmFile | None = None
    attention_max: float | None = Field(None, gt=0, le=2)
    attention_half: float = Field(0.0, ge=0)
    matrix_max_of: dict[Dtype, Share] = {}
    stacks: dict[str, float] = {}
    launch: Time
    step: Time = 0.0
    status: Literal["assumed", "calibrated"]
    source: str


def _by_dtype(value: object) -> object:
    if isinstance(value, dict):
        return value
    stated = value if isinstance(value, str) else "989 TFLOP/s"
    raise ValueError(f"a peak without its dtype; write {{bf16: {stated}}}, one entry per dtype")


Peaks = Annotated[dict[Dtype, FlopRate], BeforeValidator(_by_dtype)]


class PeakFile(SpecPart):
    """Dense peaks per dtype."""

    matrix: Peaks = {}
    vector: Peaks = {}


def _by_unit(value: object) -> object:
    if isinstance(value, dict | PeakFile):
        return value
    stated = value if isinstance(value, str) else "989 TFLOP/s"
    raise ValueError(f"a peak without its unit and dtype; write peak: {{matrix: {{bf16: {stated}}}}}")


class TilesFile(SpecPart):
    """Compute tiles; `dtypes` are those that run at 2 x count x lanes x stages x clock FLOP/s."""

    count: int = Field(ge=1)
    lanes: int = Field(ge=1)
    stages: int = Field(ge=1)
    clock: Frequency
    dtypes: list[Dtype] = Field(min_length=1)


class ProcessFile(Sourced):
    """A semiconductor process and the package around it; see dfmodel.systems.silicon."""

    wafer_price: Money
    wafer_diameter: Length
    edge_exclusion: Length
    scribe: Length
    reticle: Area
    defect_density: PerArea
    yield_model: YieldModel
    clustering: float = Field(3.0, gt=0)
    compute_area: AreaPerRate
    sram_area: AreaPerSize
    memory_interface_area: dict[str, AreaPerBandwidth]
    link_interface_area: AreaPerBandwidth
    other_share: float = Field(ge=0, lt=1)
    stack_price: Money
    stack_area: Area
    package_price: MoneyPerArea
    bonding_yield: Share
    test_price: Money
    gross_margin: float = Field(ge=0, lt=1)


class SiliconFile(SpecPart):
    """How a chip is made, where its price is to follow from its area; see dfmodel.systems.silicon.Demand.
    `link_bandwidth` is of all its links in one direction."""

    process: Reference
    dies: int = Field(1, ge=1)
    hbm_stacks: int = Field(0, ge=0)
    link_bandwidth: Annotated[float, _quantity("bandwidth")] = 0.0
    repairable: float = Field(0.0, ge=0, le=1)
    stitched: bool = False
    area: Annotated[float, _quantity("area"), Field(gt=0)] | None = None


class ChipEnergyFile(SpecPart):
    """Energy of matrix work by format, of vector work, and of a byte read from or written to on-chip memory."""

    matrix: dict[Dtype, EnergyPerFlop] = {}
    vector: EnergyPerFlop | None = None
    sram: EnergyPerByte | None = None


class ChipFile(Sourced):
    """A chip; peaks come from `peak`, from `tiles`, or from both for different dtypes.

    `dense` names the dtypes whose peak is dense though its ratio to a wider type's looks sparse, and what says so
    (see dfmodel.systems.peaks). What a file leaves out is filled by dfmodel.systems.defaults.
    """

    kind: str = Field(min_length=1)
    execution: Literal["dataflow", "kernel_by_kernel"]
    peak: Annotated[PeakFile, BeforeValidator(_by_unit)] = PeakFile()
    dense: dict[Dtype, str] = {}
    tiles: TilesFile | None = None
    sram: Bytes
    memory: References
    efficiency: Reference | None = None
    power: Power | None = None
    price: Money | None = None
    silicon: SiliconFile | None = None
    energy: ChipEnergyFile = ChipEnergyFile()
    reconfiguration: Time = 0.0
    fusions: tuple[Fusion, ...] = ()

    @model_validator(mode="after")
    def _one_peak_per_dtype(self) -> ChipFile:
        derived = set(self.tiles.dtypes) if self.tiles else set()
        if not derived and not self.peak.matrix:
            raise ValueError("no matrix peak; give peak.matrix (per dtype) or tiles")
        if self.price is not None and self.silicon is not None:
            raise ValueError("price and silicon both give the price of the chip; remove one (price: null)")
        twice = sorted(derived & (set(self.peak.matrix) | set(self.peak.vector)))
        if twice:
            raise ValueError(f"{', '.join(twice)} in both tiles.dtypes and peak; the tiles give the peak, remove one")
        if not derived and not self.peak.vector:
            raise ValueError("no vector peak; give peak.vector (fp32 at least)")
        return self


class PriceInputs(SpecPart):
    """Prices: of a chip (`chip` for all, else by kind), of memory outside its package, of links and switch ports."""

    chip: Money | None = None
    chip_of_kind: dict[str, Money] = {}
    memory_per_capacity: dict[str, MoneyPerSize] = {}
    link_per_bandwidth: dict[str, MoneyPerBandwidth] = {}
    switch_per_bandwidth: dict[str, MoneyPerBandwidth] = {}


class PowerInputs(SpecPart):
    """Power of a chip: `chip` for all, else by kind."""

    chip: Power | None = None
    chip_of_kind: dict[str, Power] = {}


class EnergyInputs(SpecPart):
    """Energy of an operation by format, of a byte on the chip, and of a byte through memory, a link, a switch port."""

    matrix: dict[Dtype, EnergyPerFlop] = {}
    vector: EnergyPerFlop | None = None
    sram: EnergyPerByte | None = None
    memory: dict[str, EnergyPerByte] = {}
    link: dict[str, EnergyPerByte] = {}
    switch: dict[str, EnergyPerByte] = {}


class OperationInputs(SpecPart):
    """How a system is run: see dfmodel.systems.system.Operation."""

    pue: float = Field(1.0, ge=1, le=5)
    electricity: MoneyPerEnergy | None = None
    amortisation: Time | None = Field(None, gt=0)
    utilisation: Share | None = None


class CostFile(Sourced):
    """Assumed inputs of cost and energy. `in_package` lists memories whose price and power are part of the chip's."""

    price: PriceInputs = PriceInputs()
    power: PowerInputs = PowerInputs()
    energy: EnergyInputs = EnergyInputs()
    in_package: tuple[str, ...] = ()
    operation: OperationInputs = OperationInputs()


class DimensionFile(SpecPart):
    """One dimension; `size` is a number or the name of one of the system's parameters."""

    name: str
    kind: DimensionKind
    size: Annotated[Any, BeforeValidator(_size)]
    link: Reference | None = None
    links_per_chip: int | None = Field(None, ge=1)
    oversubscription: float = Field(1.0, ge=1)
    in_network_reduction: bool = False
    pod_size: int | None = Field(None, ge=1)


class SystemFile(Sourced):
    """A system; `memory` and `efficiency` replace the chip's, `link` serves dimensions that name none; `wiring` says
    how links are counted to be bought (dfmodel.systems.wiring)."""

    chip: Reference
    memory: References | None = None
    efficiency: Reference | None = None
    link: Reference | None = None
    parameters: dict[str, Annotated[int, Field(ge=1)]] = {}
    wiring: WiringRule = "per chip"
    topology: list[DimensionFile] = Field(min_length=1)
    chips: int | None = Field(None, ge=1, description="what the sizes must multiply to, where stated")
    high_bandwidth_domain: int | None = Field(None, ge=1)
    copies: int = Field(1, ge=1)
    facts: dict[str, Any] = {}

    @model_validator(mode="after")
    def _parameters_do_not_hide_keys(self) -> SystemFile:
        hidden = sorted(set(self.parameters) & set(SystemFile.model_fields))
        if hidden:
            raise ValueError(f"parameters may not be called {', '.join(hidden)}: these are keys of a system")
        return self


class AliasFile(SpecPart):
    """Another name for a system, or a variant of it: `overrides` as in load_system."""

    alias_of: str
    name: str | None = None
    title: str = ""
    notes: str = ""
    overrides: dict[str, Any] = {}
    sources: dict[str, str] = {}
    status: dict[str, Status] = {}

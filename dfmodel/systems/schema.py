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
EnergyPerByte = Annotated[float, _quantity("energy_per_byte")]
Flops = Annotated[float, _quantity("flops")]
FlopRate = Annotated[float, _quantity("flop_rate"), Field(gt=0)]
Frequency = Annotated[float, _quantity("frequency"), Field(gt=0)]
Money = Annotated[float, _quantity("money")]
MoneyPerBandwidth = Annotated[float, _quantity("money_per_bandwidth")]
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


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Sourced(_Part):
    """A catalog entry. `sources` and `status` go from a key path (or "*", the whole file) to its origin."""

    name: str | None = None
    title: str = ""
    notes: str = ""
    sources: dict[str, str] = {}
    status: dict[str, Status] = {}


class MemoryFile(_Sourced):
    """One memory tier of one chip."""

    capacity: Capacity = Field(description="a size, or `unlimited`")
    bandwidth: Bandwidth
    convention: Literal["peak, read plus write"]
    price_per_bandwidth: MoneyPerBandwidth = 0.0
    power_per_bandwidth: PowerPerBandwidth = 0.0
    price: Money = 0.0
    power: Power = 0.0
    energy: EnergyPerByte | None = None


class AchievedFile(_Part):
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


class LinkFile(_Sourced):
    """A link; `links` is how many of them a chip has. `achieved_like` names a link whose `achieved` is assumed here."""

    bandwidth: Bandwidth
    convention: Literal["per link and direction", "per chip and direction"]
    links: int | None = Field(None, ge=1)
    latency: Time = 0.0
    price_per_bandwidth: MoneyPerBandwidth = 0.0
    power_per_bandwidth: PowerPerBandwidth = 0.0
    switch_price_per_bandwidth: MoneyPerBandwidth = 0.0
    switch_power_per_bandwidth: PowerPerBandwidth = 0.0
    energy: EnergyPerByte | None = None
    achieved: tuple[AchievedFile, ...] = ()
    achieved_like: str | None = None


class GemmFile(_Part):
    """Shape dependence of matrix work; see dfmodel.systems.gemm.GemmCurve."""

    units: int = Field(ge=1)
    k_half: float = Field(ge=0)
    tile_exponent: float = Field(ge=0, le=1)
    blend: float = Field(ge=1)


class EfficiencyFile(_Part):
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


class PeakFile(_Part):
    """Dense peaks per dtype."""

    matrix: dict[Dtype, FlopRate] = {}
    vector: dict[Dtype, FlopRate] = {}


class TilesFile(_Part):
    """Compute tiles; `dtypes` are those that run at 2 x count x lanes x stages x clock FLOP/s."""

    count: int = Field(ge=1)
    lanes: int = Field(ge=1)
    stages: int = Field(ge=1)
    clock: Frequency
    dtypes: list[Dtype] = Field(min_length=1)


class ChipFile(_Sourced):
    """A chip; peaks come from `peak`, from `tiles`, or from both for different dtypes."""

    kind: str = Field(min_length=1)
    execution: Literal["dataflow", "kernel_by_kernel"]
    peak: PeakFile = PeakFile()
    tiles: TilesFile | None = None
    sram: Bytes
    memory: References
    efficiency: Reference | None = None
    power: Power | None = None
    price: Money | None = None
    reconfiguration: Time = 0.0
    fusions: tuple[Fusion, ...] = ()

    @model_validator(mode="after")
    def _one_peak_per_dtype(self) -> ChipFile:
        derived = set(self.tiles.dtypes) if self.tiles else set()
        if not derived and not self.peak.matrix:
            raise ValueError("no matrix peak; give peak.matrix (per dtype) or tiles")
        twice = sorted(derived & (set(self.peak.matrix) | set(self.peak.vector)))
        if twice:
            raise ValueError(f"{', '.join(twice)} in both tiles.dtypes and peak; the tiles give the peak, remove one")
        if not derived and not self.peak.vector:
            raise ValueError("no vector peak; give peak.vector (fp32 at least)")
        return self


class DimensionFile(_Part):
    """One dimension; `size` is a number or the name of one of the system's parameters."""

    name: str
    kind: DimensionKind
    size: Annotated[Any, BeforeValidator(_size)]
    link: Reference | None = None
    links_per_chip: int | None = Field(None, ge=1)
    oversubscription: float = Field(1.0, ge=1)
    in_network_reduction: bool = False
    pod_size: int | None = Field(None, ge=1)


class SystemFile(_Sourced):
    """A system; `memory` and `efficiency` replace the chip's, `link` serves dimensions that name none."""

    chip: Reference
    memory: References | None = None
    efficiency: Reference | None = None
    link: Reference | None = None
    parameters: dict[str, Annotated[int, Field(ge=1)]] = {}
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


class AliasFile(_Part):
    """Another name for a system, or a variant of it: `overrides` as in load_system."""

    alias_of: str
    name: str | None = None
    title: str = ""
    notes: str = ""
    overrides: dict[str, Any] = {}
    sources: dict[str, str] = {}
    status: dict[str, Status] = {}

"""Units: exact reading, no silent guess, and text that reads back."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dfmodel.errors import InputError
from dfmodel.units import DIMENSIONS, convert, format_quantity, parse


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("80 GiB", "bytes", 80 * 2**30),
        ("80 GB", "bytes", 80e9),
        ("80GB", "bytes", 80e9),
        ("1_099_511_600_000 B", "bytes", 1099511600000.0),
        ("8 Mb", "bytes", 1e6),
        ("3.35 TB/s", "bandwidth", 3.35e12),
        ("200 Gb/s", "bandwidth", 25e9),
        ("150 ns", "time", 150e-9),
        ("3 µs", "time", 3e-6),
        ("2 h", "time", 7200.0),
        ("989 TFLOP/s", "flop_rate", 989e12),
        ("989 TFLOPS", "flop_rate", 989e12),
        ("624 TOP/s", "flop_rate", 624e12),
        ("1 GFLOP", "flops", 1e9),
        ("700 W", "power", 700.0),
        ("33000 USD", "money", 33000.0),
        ("3.1 MUSD", "money", 3.1e6),
        ("1.83 GHz", "frequency", 1.83e9),
        ("7 pJ/bit", "energy_per_byte", 56e-12),
        ("1 USD per GB/s", "money_per_bandwidth", 1e-9),
        ("0.052 W per GB/s", "power_per_bandwidth", 0.052e-9),
        ("0.12 USD/kWh", "money_per_energy", 0.12 / 3.6e6),
        ("0 USD", "money", 0.0),
    ],
)
def test_reads_every_unit_exactly(text, dimension, value):
    assert parse(text, dimension) == value


@pytest.mark.parametrize(
    ("text", "dimension", "words"),
    [
        ("3.35", "bandwidth", "without a unit; expected a bandwidth such as '3.35 TB/s'"),
        (3.35, "bandwidth", "without a unit"),
        (True, "bytes", "not a quantity"),
        (None, "bytes", "not a quantity"),
        ("80 GB", "bandwidth", "'GB' is a unit of size; expected a bandwidth"),
        ("3.35 TB/s", "bytes", "'TB/s' is a unit of bandwidth"),
        ("7 W/USD", "bytes", "unit of another dimension"),
        ("nan GB", "bytes", "not a finite number"),
        ("inf GB", "bytes", "not a finite number"),
        ("-3 GB", "bytes", "negative"),
        ("3 gb", "bytes", "unknown unit 'gb'"),
        ("3 KB", "bytes", "unknown unit 'KB' (did you mean"),
        ("1,000 GB", "bytes", "unknown unit"),
        ("1e999 GB", "bytes", "too large"),
        ("1e99999999999 GB", "bytes", "unknown unit"),
        ("9" * 5000 + " GB", "bytes", "not a finite number"),
        ("", "bytes", "not a finite number"),
        ("GB", "bytes", "not a finite number"),
        ("3 GB/", "bytes", "unknown unit ''"),
        ("3 m s", "time", "unknown unit 'm s'"),
    ],
)
def test_refuses_what_it_would_have_to_guess(text, dimension, words):
    with pytest.raises(InputError) as caught:
        parse(text, dimension, where="chips/x.yaml: sram")
    assert words in str(caught.value)
    assert str(caught.value).startswith("chips/x.yaml: sram: ")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (3.35e12, "bandwidth", "3.35 TB/s"),
        (0.0412, "time", "41.2 ms"),
        (12.3 * 2**30, "bytes", "12.3 GiB"),
        (0.99999e9, "bandwidth", "1 GB/s"),
        (0.0, "bytes", "0 B"),
        (0.0, "time", "0 s"),
        (4909.15, "time", "4909 s"),
        (17757184.0, "money", "17.76 MUSD"),
        (33000.0, "money", "33000 USD"),
        (2e-9, "money_per_bandwidth", "2 USD per GB/s"),
        (math.inf, "bytes", "unlimited"),
        (-0.5e-3, "time", "-500 us"),
        (5e-15, "time", "0.005 ps"),
    ],
)
def test_prints_what_people_write(value, dimension, text):
    assert format_quantity(value, dimension) == text


@given(
    dimension=st.sampled_from(sorted(DIMENSIONS)),
    value=st.floats(min_value=1e-30, max_value=1e30, allow_nan=False),
    digits=st.integers(2, 17),
)
def test_printed_text_reads_back_to_the_digits_shown(dimension, value, digits):
    back = parse(format_quantity(value, dimension, digits), dimension)
    assert back == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits) + 1e-15)


@given(number=st.decimals(min_value=0, max_value=10**6, places=6), unit=st.sampled_from(["GiB", "GB", "Gb", "B"]))
def test_reading_is_correctly_rounded(number, unit):
    size = {"GiB": Fraction(2**30), "GB": Fraction(10**9), "Gb": Fraction(10**9, 8), "B": Fraction(1)}[unit]
    assert convert(f"{number:f} {unit}", "bytes") == float(Fraction(number) * size)


@given(st.text(max_size=30))
def test_any_text_is_a_number_or_a_value_error(text):
    for dimension in DIMENSIONS:
        try:
            value = convert(text, dimension)
        except ValueError:
            continue
        assert value >= 0 and math.isfinite(value)

"""The derived backward pass is the derivative: against finite differences, and by its counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import run

from dfmodel.errors import InputError
from dfmodel.workloads.differentiate import differentiate, saved_for_backward, with_backward
from dfmodel.workloads.graph import Block, Kernel, Operand, Strategy, Tensor

EXTENTS = {"b": 2, "t": 3, "s": 3, "h": 4, "f": 5, "g": 2}


def tensor(name, dims, role="activation", dtype="fp32", own=None):
    names = (own or dims).split()
    return Tensor(name, {n: EXTENTS[d] for n, d in zip(names, dims.split(), strict=True)}, dtype, role)


def kernel(name, inputs, output, op="einsum", unit="matrix", **options):
    walks = {**dict([output]), **dict(inputs)}
    dims = {d: EXTENTS[d] for walk in walks.values() for d in walk.split()}
    return Kernel(
        name,
        dims,
        tuple(Operand(t, tuple(w.split())) for t, w in inputs),
        (Operand(output[0], tuple(output[1].split())),),
        unit,
        2.0,
        op=op,
        **options,
    )


def block(kernels, tensors, outputs):
    return Block("test", tuple(kernels), {t.name: t for t in tensors}, tuple(outputs))


CHAIN = block(
    [
        kernel("up", [("x", "b t h"), ("w1", "h f"), ("bias", "f")], ("u", "b t f"), added=("bias",)),
        kernel("down", [("u", "b t f"), ("w2", "f h")], ("y", "b t h")),
    ],
    [
        tensor("x", "b t h"),
        tensor("w1", "h f", "weight"),
        tensor("bias", "f", "weight"),
        tensor("u", "b t f"),
        tensor("w2", "f h", "weight"),
        tensor("y", "b t h"),
    ],
    ["y"],
)

GATED_RESIDUAL = block(
    [
        kernel("gate", [("x", "b t h"), ("w1", "h f")], ("g", "b t f")),
        kernel("up", [("x", "b t h"), ("w2", "h f")], ("u", "b t f")),
        kernel("product", [("g", "b t f"), ("u", "b t f")], ("p", "b t f"), "multiply", "vector"),
        kernel("down", [("p", "b t f"), ("w3", "f h")], ("d", "b t h")),
        kernel("add", [("x", "b t h"), ("d", "b t h")], ("y", "b t h"), "sum", "vector", linear=True),
    ],
    [
        tensor("x", "b t h"),
        *(tensor(w, d, "weight") for w, d in (("w1", "h f"), ("w2", "h f"), ("w3", "f h"))),
        *(tensor(a, "b t f") for a in "gup"),
        tensor("d", "b t h"),
        tensor("y", "b t h"),
    ],
    ["y"],
)

# attention without softmax: k and v are made over tokens and read over keys; g groups, f features
ATTENTION = block(
    [
        kernel("q", [("x", "b t h"), ("wq", "h g f")], ("q", "b g t f")),
        kernel("k", [("x", "b t h"), ("wk", "h g f")], ("k", "b g t f")),
        kernel("v", [("x", "b t h"), ("wv", "h g f")], ("v", "b g t f")),
        kernel("scores", [("q", "b g t f"), ("k", "b g s f")], ("a", "b g t s")),
        kernel("context", [("a", "b g t s"), ("v", "b g s f")], ("c", "b g t f")),
        kernel("out", [("c", "b g t f"), ("wo", "g f h")], ("o", "b t h")),
        kernel("add", [("x", "b t h"), ("o", "b t h")], ("y", "b t h"), "sum", "vector", linear=True),
    ],
    [
        tensor("x", "b t h"),
        *(tensor(w, "h g f", "weight") for w in ("wq", "wk", "wv")),
        tensor("wo", "g f h", "weight"),
        *(tensor(a, "b g t f") for a in "qkvc"),
        tensor("a", "b g t s", own="b g t s"),
        tensor("o", "b t h"),
        tensor("y", "b t h"),
    ],
    ["y"],
)

# a tensor read twice by one kernel, a weight read by two, an inner tensor that is also an output, a broadcast
AWKWARD = block(
    [
        kernel("first", [("x", "b t h"), ("w", "h f")], ("u", "b t f")),
        kernel("second", [("z", "b t h"), ("w", "h f")], ("v", "b t f")),
        kernel("square", [("u", "b t f"), ("u", "b t f")], ("p", "b t f"), "multiply", "vector"),
        kernel("gram", [("p", "b t f"), ("p", "b s f")], ("r", "b t s")),
        kernel("reduce", [("r", "b t s")], ("m", "b t"), "sum", "vector", linear=True),
        kernel("spread", [("v", "b t f"), ("m", "b t")], ("y", "b t f"), "sum", "vector", linear=True),
    ],
    [
        tensor("x", "b t h"),
        tensor("z", "b t h"),
        tensor("w", "h f", "weight"),
        *(tensor(a, "b t f") for a in "uvpy"),
        tensor("r", "b t s"),
        tensor("m", "b t"),
    ],
    ["y", "p"],
)


@pytest.mark.parametrize(
    "forward", [CHAIN, GATED_RESIDUAL, ATTENTION, AWKWARD], ids=["chain", "gated", "attn", "awkward"]
)
def test_gradients_are_those_of_finite_differences(forward):
    """Every gradient of a random linear functional of the outputs equals its central difference."""
    done = differentiate(forward)
    rng = np.random.default_rng(0)

    def random(t):
        return rng.standard_normal(tuple(forward.tensors[t].dims.values()))

    values = {t: random(t) for t in (*forward.inputs, *forward.weights)}
    seeds = {t: random(t) for t in forward.outputs}
    result = run(done.block, {**values, **{f"d_{t}": g for t, g in seeds.items()}})

    def functional(at):
        found = run(forward, at)
        return sum(float((found[t] * g).sum()) for t, g in seeds.items())

    checked = [t for t in values if t not in {b for k in forward.kernels for b in k.added}]
    assert set(checked) <= done.gradients.keys()
    step = 1e-6
    for t in checked:
        direction = random(t)
        up = functional({**values, t: values[t] + step * direction})
        down = functional({**values, t: values[t] - step * direction})
        exact = float((result[done.gradients[t]] * direction).sum())
        assert exact == pytest.approx((up - down) / (2 * step), rel=1e-6, abs=1e-6), t


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["einsum", "sum", "multiply"])),
        min_size=1,
        max_size=6,
    )
)
def test_gradients_of_random_graphs(steps):
    """Random DAGs of GEMMs, sums and products with shared operands: gradients equal finite differences."""
    tensors = [tensor("t0", "b h")]
    kernels = []
    for i, (a, b, op) in enumerate(steps):
        left, right = tensors[a % len(tensors)].name, tensors[b % len(tensors)].name
        out = tensor(f"t{i + 1}", "b h")
        if op == "einsum":
            # h to h through a square weight: the contracted dimension needs a name of its own
            own = Kernel(
                f"k{i}", {"b": 2, "h": 4, "c": 4},
                (Operand(left, ("b", "c")), Operand(f"w{i}", ("c", "h"))), (Operand(out.name, ("b", "h")),),
                "matrix", 2.0,
            )  # fmt: skip
            kernels.append((own, Tensor(f"w{i}", {"c": 4, "h": 4}, "fp32", "weight")))
        else:
            kernels.append((kernel(f"k{i}", [(left, "b h")], (out.name, "b h"), op, "vector"), None))
            made = kernels[-1][0]
            both = (Operand(left, ("b", "h")), Operand(right, ("b", "h")))
            kernels[-1] = (
                Kernel(made.name, made.dims, both, made.outputs, "vector", 1.0, op=op, linear=op == "sum"),
                None,
            )
        tensors.append(out)
    weights = [w for _, w in kernels if w is not None]
    forward = block([k for k, _ in kernels], [*tensors, *weights], [tensors[-1].name])
    done = differentiate(forward)
    rng = np.random.default_rng(1)
    values = {t: rng.uniform(0.3, 0.8, tuple(forward.tensors[t].dims.values())) for t in ("t0", *forward.weights)}
    seed = rng.standard_normal((2, 4))
    result = run(done.block, {**values, f"d_{tensors[-1].name}": seed})
    for t, gradient in done.gradients.items():
        if t not in values:
            continue
        direction = rng.standard_normal(values[t].shape)
        up, down = (
            float((run(forward, {**values, t: values[t] + s * direction})[tensors[-1].name] * seed).sum())
            for s in (1e-5, -1e-5)
        )
        exact = float((result[gradient] * direction).sum())
        assert exact == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-6)


def test_each_gemm_costs_three_times_its_forward_flop():
    """One dgrad and one wgrad (or two dgrads), each with the forward FLOP: the 3 x forward rule."""
    for forward in (CHAIN, ATTENTION):
        full = with_backward(forward)
        assert full.flops("matrix") == 3 * forward.flops("matrix")
        for k in forward.kernels:
            parts = [b for b in full.kernels if b.phase == "backward" and b.name.startswith(f"{k.name}_")]
            if k.op == "einsum":
                assert [b.flops for b in parts] == [k.flops, k.flops]


def test_shared_input_gradients_meet_in_one_linear_sum():
    """Q, K and V give one sum of three and the residual's share: one all-reduce can follow it."""
    full = with_backward(ATTENTION)
    total = full.by_name["sum_d_x"]
    assert total.linear and total.unit == "vector"
    assert {o.tensor for o in total.inputs} == {"d_y", "d_x.q", "d_x.k", "d_x.v"}
    assert "d_x" in full.outputs and "d_y" in full.inputs


def test_residual_add_has_no_backward_kernel():
    """The gradient of a sum is the sum's own gradient, handed on."""
    done = differentiate(GATED_RESIDUAL)
    assert done.gradients["d"] == "d_y"
    assert not [k for k in done.block.kernels if k.name.startswith("add_")]


def test_weight_gradients_have_their_role_and_leave_the_block():
    full = with_backward(CHAIN)
    assert full.tensors["d_w1"].role == "gradient" and full.tensors["d_w1"].dims == full.tensors["w1"].dims
    assert {"d_w1", "d_w2", "d_x"} <= set(full.outputs)
    assert full.parameters == CHAIN.parameters, "gradients are not parameters"


def test_one_vector_kernel_gives_both_gradients_of_a_product():
    full = with_backward(GATED_RESIDUAL)
    backward = full.by_name["product_backward"]
    assert [o.tensor for o in backward.outputs] == ["d_g", "d_u"]
    assert [o.tensor for o in backward.inputs] == ["d_p", "g", "u"]
    assert backward.flops_per_point == 4.0, "default: twice the forward cost"


def test_what_is_saved_depends_on_the_declaration():
    """`saves` decides which tensor memory holds between forward and backward."""

    def saved(saves):
        f = block(
            [
                kernel(
                    "act",
                    [("x", "b t")],
                    ("y", "b t"),
                    "softmax",
                    "vector",
                    saves=saves,
                    unsplittable=frozenset("t"),
                )
            ],
            [tensor("x", "b t"), tensor("y", "b t")],
            ["y"],
        )
        full = with_backward(f)
        assert full.by_name["act_backward"].unsplittable == {"t"}
        return saved_for_backward(full)

    assert saved("input") == ("x",)
    assert saved("output") == ("y",)
    assert saved("nothing") == ()


def test_integers_and_excluded_tensors_get_no_gradient():
    ids = block(
        [
            Kernel(
                "lookup", {"b": 2, "h": 4, "v": 7}, (Operand("ids", ("b",)), Operand("table", ("v", "h"))),
                (Operand("y", ("b", "h")),), "vector", 0.0, op="gather", gathered=frozenset("v"),
            )
        ],
        [
            tensor("ids", "b", dtype="int32"),
            Tensor("table", {"v": 7, "h": 4}, "fp32", "table"),
            tensor("y", "b h"),
        ],
        ["y"],
    )  # fmt: skip
    full = with_backward(ids)
    assert "d_ids" not in full.tensors
    assert full.tensors["d_table"].role == "gradient"
    assert full.by_name["lookup_backward"].gathered == {"v"}
    assert "d_x" not in with_backward(CHAIN, without_gradient=["x"]).tensors
    assert with_backward(CHAIN, without_gradient=["x"]).flops("matrix") == 2.5 * CHAIN.flops("matrix")


def test_blocks_that_no_rule_fits_are_refused():
    fixed = Kernel(
        "k", {"b": 2}, (Operand("x", ("b",)),), (Operand("y", ("b",)),), "vector", 1.0,
        strategies=(Strategy("none", None, ("replicated",), ("replicated",)),),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"kernel 'k' has explicit strategies"):
        with_backward(block([fixed], [tensor("x", "b"), tensor("y", "b")], ["y"]))
    with pytest.raises(InputError, match="only forward blocks"):
        with_backward(with_backward(CHAIN))

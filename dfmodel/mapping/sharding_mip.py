"""The sharding level as a mixed-integer program (Pyomo), one function per constraint.

| variable | meaning | domain |
|---|---|---|
| x[n, o] | node n takes option o | binary |
| y[f, c, a, b] | flow f reaches consumer c in layout b from layout a | [0, 1], continuous |
| z[f, a, b] | flow f is converted from a to b (shared by its consumers) | [0, 1], continuous |

Costs are scaled so that the largest is 1,000.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyomo.core as pyo

from dfmodel.errors import LimitError
from dfmodel.mapping import reuse
from dfmodel.mapping.sharding import NoShardingError, Sharding, ShardingProblem, sharding_cost
from dfmodel.mapping.solver import SolveResult, solve


def add_choice(m: pyo.ConcreteModel, p: ShardingProblem) -> None:
    """sum_o x[n, o] = 1 for every node n."""
    m.x = pyo.Var([(n, o) for n, options in p.options.items() for o in range(len(options))], domain=pyo.Binary)

    def rule(m: pyo.ConcreteModel, n: str) -> pyo.Expression:
        return sum(m.x[n, o] for o in range(len(p.options[n]))) == 1

    m.choice = pyo.Constraint(list(p.options), rule=rule)


def add_pins(m: pyo.ConcreteModel, p: ShardingProblem) -> None:
    """x[n, o] = 1 for every pinned node n, o being the option of the pinned name."""
    for node, name in p.pinned.items():
        for o, option in enumerate(p.options[node]):
            m.x[node, o].fix(1 if option.strategy.name == name else 0)


def add_flow_marginals(m: pyo.ConcreteModel, p: ShardingProblem) -> None:
    """sum_b y[f,c,a,b] = sum of x[producer, o] over options giving a, and
    sum_a y[f,c,a,b] = sum of x[c, o] over options needing b, for every flow f and consumer c.
    """
    m.y = pyo.Var(pyo.Any, domain=pyo.NonNegativeReals, bounds=(0, 1), dense=False)
    m.from_producer = pyo.ConstraintList()
    m.to_consumer = pyo.ConstraintList()
    for f, flow in enumerate(p.flows):
        gives: dict[str, list[int]] = defaultdict(list)
        for o, option in enumerate(p.options[flow.producer]):
            gives[option.gives[flow.tensor]].append(o)
        for consumer in flow.consumers:
            needs: dict[str, list[int]] = defaultdict(list)
            for o, option in enumerate(p.options[consumer]):
                needs[option.needs[flow.tensor]].append(o)
            pairs = [(a, b) for a in gives for b in needs if (flow.tensor, a, b) in p.conversion]
            for a in gives:
                arriving = sum(m.y[f, consumer, a, b] for a2, b in pairs if a2 == a)
                m.from_producer.add(arriving == sum(m.x[flow.producer, o] for o in gives[a]))
            for b in needs:
                arriving = sum(m.y[f, consumer, a, b] for a, b2 in pairs if b2 == b)
                m.to_consumer.add(arriving == sum(m.x[consumer, o] for o in needs[b]))


def add_shared_conversions(m: pyo.ConcreteModel, p: ShardingProblem) -> None:
    """z[f, a, b] >= y[f, c, a, b] for every consumer c of flow f, where converting a to b costs something."""
    m.z = pyo.Var(pyo.Any, domain=pyo.NonNegativeReals, bounds=(0, 1), dense=False)
    m.shared = pyo.ConstraintList()
    for f, c, a, b in list(m.y):
        if len(p.flows[f].consumers) > 1 and p.conversion[(p.flows[f].tensor, a, b)] > 0:
            m.shared.add(m.z[f, a, b] >= m.y[f, c, a, b])


def add_columns(m: pyo.ConcreteModel, p: ShardingProblem) -> None:
    """Where kernels may fuse: x[k, o] = sum of use[c] over the columns c that hold kernel k under option o.

    With add_choice every kernel is in exactly one column.
    """
    if not p.columns:
        return
    m.use = pyo.Var(range(len(p.columns)), domain=pyo.NonNegativeReals, bounds=(0, 1))
    holding: dict[tuple[str, int], list[int]] = defaultdict(list)
    for c, column in enumerate(p.columns):
        m.use[c].domain = pyo.Binary if len(column.kernels) > 1 else pyo.NonNegativeReals
        for name, o in zip(column.kernels, column.options, strict=True):
            holding[name, o].append(c)
    pairs = [(k.name, o) for k in p.block.kernels for o in range(len(p.options[k.name]))]
    m.held = pyo.Constraint(
        range(len(pairs)), rule=lambda m, i: m.x[pairs[i]] == sum(m.use[c] for c in holding[pairs[i]])
    )


def add_objective(m: pyo.ConcreteModel, p: ShardingProblem, scale: float) -> None:
    """Minimise the nodes' (or the columns') own costs plus conversions, paid once per flow and layout, or per consumer
    where they are not shared."""
    if p.columns:
        own = sum(column.seconds * scale * m.use[c] for c, column in enumerate(p.columns))
    else:
        own = sum(
            option.cost * scale * m.x[n, o] for n, options in p.options.items() for o, option in enumerate(options)
        )
    moved = 0.0
    for f, c, a, b in m.y:
        cost = p.conversion[(p.flows[f].tensor, a, b)] * scale
        if cost > 0 and not (p.shared_conversions and len(p.flows[f].consumers) > 1):
            moved += cost * m.y[f, c, a, b]
    if p.shared_conversions:
        for f, a, b in m.z:
            moved += p.conversion[(p.flows[f].tensor, a, b)] * scale * m.z[f, a, b]
    m.objective = pyo.Objective(expr=own + moved)


#: Constraint functions of this model, for the list of golden LP texts.
CONSTRAINTS = (add_choice, add_pins, add_flow_marginals, add_shared_conversions, add_columns)


def sharding_model(p: ShardingProblem) -> tuple[pyo.ConcreteModel, float]:
    """The MIP of `p` and the scale its objective carries (model objective = scale * cost)."""
    largest = max(
        [o.cost for options in p.options.values() for o in options] + list(p.conversion.values()), default=0.0
    )
    scale = 1000.0 / largest if largest > 0 else 1.0
    m = pyo.ConcreteModel(name="sharding")
    add_choice(m, p)
    add_pins(m, p)
    add_flow_marginals(m, p)
    if p.shared_conversions:
        add_shared_conversions(m, p)
    add_columns(m, p)
    add_objective(m, p, scale)
    return m, scale


def solve_sharding(
    p: ShardingProblem, *, time_limit_s: float | None = None, log: Path | None = None
) -> tuple[Sharding, SolveResult]:
    """The best sharding of `p`, proven, and the solve behind it. Raises NoShardingError where none is legal."""
    empty = [node for node, options in p.options.items() if not options]
    if empty:
        raise NoShardingError(f"no way to divide {', '.join(empty)} over {p.chips} chips")
    known = reuse.solved(p)
    if known is not None:
        return known
    m, scale = sharding_model(p)
    result = solve(m, time_limit_s=time_limit_s, log=log)
    if not result.has_solution and result.status != "infeasible":
        raise LimitError(
            f"sharding of block '{p.block.name}': no solution within the time limit ({result.status}); "
            "raise --time-limit"
        )
    if not result.has_solution:
        raise NoShardingError(f"no sharding of block '{p.block.name}' over {p.chips} chips ({result.status})")
    choice = {n: max(range(len(options)), key=lambda o: m.x[n, o].value) for n, options in p.options.items()}
    bound = None if result.bound is None else result.bound / scale
    sharding = Sharding(p, choice, sharding_cost(p, choice), bound, result.status)
    reuse.keep(sharding, result)
    return sharding, result

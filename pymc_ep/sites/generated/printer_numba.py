"""Conversion of a Composite of scalar Ops to one Numba function without loops, made of branch-free functions."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key
from pytensor.scalar.basic import Composite

from pymc_ep.sites.generated import functions_numba
from pymc_ep.sites.generated.expressions import constant, expression
from pymc_ep.sites.generated.functions_numba import FUNCTIONS, jit
from pymc_ep.sites.generated.unrolled import NoScalarGraphError

__all__ = ["Printed", "printed"]


class Printed(NamedTuple):
    """A compiled function, and a cache key that depends on the text of all that is compiled in it."""

    function: Callable[..., Any]
    key: str


def printed(composite: Composite | None, name: str, arguments: int) -> Printed:
    """Compile a Composite as ``name(*first, rest)``, which returns a tuple.

    Parameters
    ----------
    composite : Composite, optional
        None for a function that returns an empty tuple.
    name : str
    arguments : int
        Number of leading arguments; the other inputs are the entries of `rest`.

    Raises
    ------
    NoScalarGraphError
        If an Op has no function in Numba.
    """
    inputs = [] if composite is None else list(composite.fgraph.inputs)
    names = {v: f"x{k}" if k < arguments else f"rest[{k - arguments}]" for k, v in enumerate(inputs)}
    lines = [f"def {name}({', '.join(f'x{k}' for k in range(arguments))}, rest):"]
    env: dict[str, Any] = dict(FUNCTIONS)
    keys = [Path(functions_numba.__file__).read_text()]

    def of(v: Any) -> str:
        return names[v] if v in names else constant(v)

    nodes: Sequence[Apply] = [] if composite is None else composite.fgraph.toposort()
    for k, node in enumerate(nodes):
        outputs = [f"v{k}_{j}" for j in range(len(node.outputs))]
        names.update(zip(node.outputs, outputs))
        value = expression(node, of)
        if value is None:
            env[f"op{k}"], key = numba_funcify_and_cache_key(node.op, node=node)
            if key is None:
                raise NoScalarGraphError(type(node.op).__name__)
            keys.append(f"{key}{node.inputs}")
            value = f"op{k}({', '.join(map(of, node.inputs))})"
        lines.append(f"    {', '.join(outputs)} = {value}")
    results = [] if composite is None else composite.fgraph.outputs
    lines.append(f"    return ({''.join(f'{of(v)}, ' for v in results)})")
    source = "\n".join(lines)
    function = jit(compile_numba_function_src(source, name, env))
    return Printed(function, sha256("".join([source, *keys]).encode()).hexdigest())

"""C text of `TiltedMoments`: the functions of a site's density, put before the fixed text of a body."""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.utils import MethodNotDefined
from pytensor.scalar.basic import Composite

from pymc_ep.sites.generated import body, body_of_two
from pymc_ep.sites.generated.expressions import constant, expression

__all__ = ["header_dirs", "headers", "loop", "support_code"]

_FUNCTIONS = Path(__file__).with_name("functions.c")
_CONSTANTS = {
    body: (
        *("STEP", "SIDE", "MOST_BLOCKS", "LEVELS", "DROP", "NO_WEIGHT", "HIGHER", "SEARCHES", "FOUND", "NOISE"),
        *("JUMP", "LOST", "HIDDEN", "TESTED", "POLES", "BESIDE", "HALF_LOG_2_PI"),
    ),
    body_of_two: (
        *("STEP", "LANES", "MOST_PARTS", "MOST_ROWS", "LEVELS", "DROP", "HIGHER", "TOLERANCE", "STEPS", "HALVINGS"),
        *("FAR", "LEAST", "FOUND", "DIFFERENCE", "ALONG", "SEEN", "NARROW", "SUMS", "LOG_2_PI"),
    ),
}
_TYPES = {"float64": "double", "bool": "mask"}
_OWN = (
    *("exp", "expm1", "log", "log1p", "log1p_unit", "log1mexp", "log_gamma", "digamma"),
    *("select", "maximum", "minimum", "number", "truth"),
)
"""Functions of ``functions.c``, which hide C's of the same names."""


def headers(op: Any) -> list[str]:
    """Return the headers of the Ops in a density."""
    return list(dict.fromkeys(text for texts in _of_ops(op, "c_headers") for text in texts))


def header_dirs(op: Any) -> list[str]:
    """Return the folders of the headers of the Ops in a density."""
    return list(dict.fromkeys(text for texts in _of_ops(op, "c_header_dirs") for text in texts))


def support_code(op: Any) -> str:
    """Return the C text of a site's functions, in a namespace of their own, as several sites may be in one module."""
    shared = dict.fromkeys(_of_ops(op, "c_support_code"))
    lines = [f"#define {name} {value}" for name, value in _constants(op).items()]
    lines += [
        _functions(op),
        _text(op),
        *(f"#undef {name}" for name in _constants(op)),
    ]
    return "\n".join([_FUNCTIONS.read_text(), *shared, f"namespace {_name(op)} {{", *lines, "}"])


def loop(op: Any, arguments: str, out: str) -> str:
    """Return C statements that compute all sites, from the array at the pointer `arguments` to the one at `out`."""
    first = 1 + 3 * op.rule.predictors
    rows = () if op.fixed is None else (0, *range(first, first - 1 + op.fixed.nin))
    values = [f"{arguments}[{row} * n + i]" for row in rows]
    cavity = [f"{arguments}[{row} * n + i]" for row in range(1, first)]
    if op.rule.predictors == 1:
        cavity.append(f"{arguments} + {first + op.rule.parameters} * n + i")
    return f"""
    using namespace {_name(op)};
    double *result = {out};
    memset(result, 0, sizeof(double) * rows * n);
    for (npy_intp i = 0; i < n; i++) {{
      known values;
      fixed({", ".join([*values, "&values"])});
      site_moments(&values, {", ".join(cavity)}, result + i, n);
    }}"""


def _body(op: Any) -> ModuleType:
    return body if op.rule.predictors == 1 else body_of_two


def _text(op: Any) -> str:
    return Path(__file__).with_name(f"{_body(op).__name__.rpartition('.')[2]}.c").read_text()


def _name(op: Any) -> str:
    return f"pymc_ep_site_{zlib.crc32((_functions(op) + repr(op.rule)).encode()):x}"


def _constants(op: Any) -> dict[str, str]:
    values = {name: getattr(_body(op), name) for name in _CONSTANTS[_body(op)]} | op.rule.constants
    texts = {name: repr(int(value) if isinstance(value, bool) else value) for name, value in values.items()}
    highest = "INFINITY" if np.isinf(op.rule.highest) else repr(float(op.rule.highest))
    return texts | {"HIGHEST": highest, "GRID": f"{{{', '.join(map(repr, _body(op).GRID.tolist()))}}}"}


def _functions(op: Any) -> str:
    """Return the C structs of fixed values and of values at a point, and the functions that the bodies call."""
    taken, count = (0, 0) if op.fixed is None else (op.fixed.nin, op.fixed.nout)
    numbers, constants = [f"x{k}" for k in range(taken)], [f"a->k[{k}]" for k in range(count)]
    predictors = ("f", "g")[: op.rule.predictors]
    heads = (
        ", ".join([*(f"double {x}" for x in numbers), "known *out"]),
        ", ".join([*(f"double {x}" for x in predictors), "const known *a, int n, double *out"]),
    )
    return "\n".join(
        [
            *(f"using pymc_ep_branch_free::{name};" for name in ("mask", *_OWN)),
            f"struct known {{ double k[{max(count, 1)}]; }};",
            f"struct point {{ double value[{op.density.nout}]; }};",
            f"static void fixed({heads[0]})\n{{",
            *([] if op.fixed is None else _statements(op.fixed, numbers, "out->k[{}]")),
            f"}}\nINLINED void density({heads[1]})\n{{",
            *_statements(op.density, [*predictors, *constants], "out[{} * n]"),
            "}",
        ]
    )


def _statements(composite: Composite, inputs: Sequence[str], out: str) -> Iterator[str]:
    """Yield C statements that compute a Composite and assign its result k to ``out.format(k)``."""
    names = dict(zip(composite.fgraph.inputs, inputs))

    def of(v: Any) -> str:
        return names[v] if v in names else constant(v)

    for k, node in enumerate(composite.fgraph.toposort()):
        results = [f"v{k}_{j}" for j in range(len(node.outputs))]
        text = expression(node, of)
        if text is None:
            yield from _own_code(node, k, list(map(of, node.inputs)), results)
        else:
            yield f"const {_TYPES[node.outputs[0].dtype]} {results[0]} = {text};"
        names.update(zip(node.outputs, results))
    yield from (f"{out.format(k)} = {of(v)};" for k, v in enumerate(composite.fgraph.outputs))


def _own_code(node: Apply, k: int, inputs: Sequence[str], results: Sequence[str]) -> Iterator[str]:
    """Yield the statements of an Op's own C code, with conversions between the loop's types and the Op's."""
    names = [f"i{k}_{j}" for j in range(len(inputs))], [f"o{k}_{j}" for j in range(len(results))]
    for name, v, text in zip(names[0], node.inputs, inputs):
        yield f"const {_kind(v)} {name} = {f'{text} != 0' if v.dtype == 'bool' else text};"
    yield from (f"{_kind(v)} {name};" for name, v in zip(names[1], node.outputs))
    yield node.op.c_code(node, f"n{k}", *names, {"fail": "return;", "id": str(k)})
    for name, v, result in zip(names[1], node.outputs, results):
        text = f"truth({name} != 0)" if v.dtype == "bool" else name
        yield f"const {_TYPES.get(v.dtype, _kind(v))} {result} = {text};"


def _kind(v: Any) -> str:
    return v.type.dtype_specs()[1]


def _of_ops(op: Any, method: str) -> Iterator[Any]:
    """Yield the results of a method of the C interface for the Ops in a density."""
    for composite in (op.fixed, op.density):
        for node in [] if composite is None else composite.fgraph.toposort():
            for of_node in (False, True) if method == "c_support_code" else (False,):
                try:
                    output = node.op.c_support_code_apply(node, "unused") if of_node else getattr(node.op, method)()
                except (MethodNotDefined, NotImplementedError):
                    continue
                if output:
                    yield output

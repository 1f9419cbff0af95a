"""The table of Ops of docs/ops.md: what each has a body for, from the registries of PyTensor and of this package.

    python -m docs.contributing.ops

Writes the table anew between its marks. It needs JAX.
"""

import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.op import Op
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.link.numba.dispatch import basic as numba_dispatch
from pytensor.tensor.random.op import RandomVariable

from pymc_ep.distributions.log_determinant import LogDeterminant
from pymc_ep.evidence.op import EvidenceOp
from pymc_ep.forms import forms
from pymc_ep.kernels import array_kernels, kernels, load_backend
from pymc_ep.kernels.array_op import ArrayOp
from pymc_ep.kernels.scalar_kernel import ScalarKernel
from pymc_ep.operators.apply import ApplyLinearMap
from pymc_ep.sites.generated.op import TiltedMoments

PAGE = Path(__file__).parents[1] / "ops.md"
MARKS = "<!-- table of Ops -->\n", "<!-- end of the table -->\n"
HEAD = ("Op", "used by", "NumPy", "C", "Numba", "JAX", "gradient", "tested by")

_MATRICES, _SLOPES = "`vg`, `vbmf`: matrices", "`vg`: matrices"
_PAIRS = "`paired_vb`: pairs"
_PEOPLE = "`ep`, `laplace`, `jaakkola`: preferences"
_NETWORK = "log density of `CollaborativeRNN`"
USERS = {
    "TruncatedNormal": "probit, ordered and Laplace likelihoods",
    "RectifiedPoisson": "`ep`: counts, rectified link",
    "ProductMoments": _MATRICES,
    "ProductDerivatives": _SLOPES,
    "PairSums": _PAIRS,
    "RowStatistics": _PAIRS,
    "SolveRows": _PAIRS,
    "UpdateRows": _PAIRS,
    "UpdateInTurn": _PAIRS,
    "PriorFactors": _PEOPLE,
    "DifferenceMoments": _PEOPLE,
    "DifferenceMeans": _PEOPLE,
    "PrecisionLosses": _PEOPLE,
    "SequenceLogp": _NETWORK,
    "SequenceGradient": f"gradient of that {_NETWORK.partition(' of ')[0]}",
    "EvidenceOp": '`marginalize`, `hyper="sample"`',
    "ApplyLinearMap": "`apply_operator`, `SparseField`",
    "TiltedMoments": "`ep`: most likelihoods",
    "LogDeterminant": "log density of `GaussianMarkov`",
}
"""What calls each Op."""

_FIXED_POINT = "used inside a fixed point"
NOTES: dict[tuple[str, str], str] = {
    **{
        (name, "gradient"): _FIXED_POINT
        for name, used_by in USERS.items()
        if used_by in (_MATRICES, _SLOPES, _PAIRS, _PEOPLE)
    },
    ("SequenceLogp", "C"): "products are BLAS",
    ("SequenceGradient", "C"): "products are BLAS",
    ("SequenceGradient", "gradient"): "no second derivatives",
    ("LogDeterminant", "C"): "calls the sparse factor",
    ("LogDeterminant", "Numba"): "calls Python",
    ("LogDeterminant", "JAX"): "calls the host",
    ("EvidenceOp", "C"): "a fit is Python",
    ("EvidenceOp", "Numba"): "calls Python",
    ("EvidenceOp", "JAX"): "calls the host",
    ("ApplyLinearMap", "C"): "SciPy and FFT do it",
    ("TiltedMoments", "JAX"): "quadrature in one graph",
    ("TiltedMoments", "gradient"): _FIXED_POINT,
}
"""Why a body is missing, or what it does in place of the work itself; in five words at most."""
_TESTS = {
    EvidenceOp: "tests/evidence/test_evidence_op.py",
    LogDeterminant: "tests/distributions/test_gaussian_markov.py",
    ApplyLinearMap: "tests/contract/test_operators.py",
    TiltedMoments: "tests/contract/test_generated_moments.py",
}
"""Tests of Ops that are no kernels."""


class Row(NamedTuple):
    """An Op and what has a body, by column."""

    op: type[Op]
    bodies: dict[str, bool]
    tests: str

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        name = self.op.__name__
        marks = (NOTES.get((name, column), "yes" if has else "") for column, has in self.bodies.items())
        return [f"`{name}`", USERS.get(name, ""), *marks, f"`{self.tests}`"]


@cache
def rows() -> list[Row]:
    """Return a row for each Op of the package, kernels first; it does not depend on what was imported before."""
    forms()  # which imports the systems, and these register their kernels
    for backend in ("jax", "numba"):
        load_backend(backend)
    tests = {kernel.package: "tests/contract/test_kernels.py" for kernel in kernels().values()}
    packages = sorted(kernel.package for kernel in array_kernels().values())
    tests |= dict.fromkeys(packages, "tests/contract/test_array_kernels.py")
    found = []
    # Of two parents a class is found twice.
    for op in sorted(dict.fromkeys(_ops(Op)), key=_line):
        package = op.__module__.rpartition(".")[0]
        path = tests[package] if package in tests else _TESTS.get(op, "")
        bodies = {
            "NumPy": _is_own(op, "perform", "impl", "evaluate"),
            "C": _is_own(op, "c_code"),
            "Numba": _dispatched(numba_dispatch.numba_funcify_and_cache_key, op)
            or _dispatched(numba_dispatch.numba_funcify, op),
            "JAX": _dispatched(jax_funcify, op),
            "gradient": _is_own(op, "pullback"),
        }
        order = list(tests).index(package) if package in tests else len(tests)
        found.append((order, Row(op, bodies, path)))
    return [row for _, row in sorted(found, key=lambda pair: pair[0])]


def _line(op: type[Op]) -> tuple[str, int]:
    """Return where an Op is defined: file and line."""
    return op.__module__, inspect.getsourcelines(op)[1]


def _ops(base: type[Op]) -> Iterator[type[Op]]:
    """Yield Ops of this package that are no random variables, and of a class and its kinds the class alone."""
    for op in base.__subclasses__():
        if issubclass(op, RandomVariable | OpFromGraph):
            continue
        public = op.__module__.startswith("pymc_ep.") and not op.__name__.startswith("_")
        if public and op not in (ArrayOp, ScalarKernel):
            yield op
        elif op.__module__ != "pymc_ep.modes":
            yield from _ops(op)


def _is_own(op: type[Op], *names: str) -> bool:
    """Return whether a class of this package defines one of these methods."""
    own = [one for one in op.__mro__ if one.__module__.startswith("pymc_ep.")]
    return any(name in vars(one) for one in own for name in names)


def _dispatched(dispatch: Any, op: type[Op]) -> bool:
    return dispatch.dispatch(op).__module__.startswith("pymc_ep.")


def table() -> str:
    """Return the table in Markdown."""
    lines = [HEAD, ["---"] * len(HEAD), *(row.cells() for row in rows())]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def parts() -> tuple[str, str, str]:
    """Return the page up to the table, the table, and what follows."""
    begin, end = MARKS
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    written, _, after = rest.partition(end)
    return before + begin, written, end + after


def main() -> None:
    """Write the table."""
    before, _, after = parts()
    PAGE.write_text(before + table() + after, encoding="utf-8")


if __name__ == "__main__":
    main()

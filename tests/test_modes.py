"""Functions that NumPy runs, against PyTensor's own modes."""

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise

from pymc_ep.compat import c_mode
from pymc_ep.concurrency import compiled_function
from pymc_ep.modes import numpy_mode

X, Y, M = pt.vector("x"), pt.vector("y"), pt.matrix("m")
SINGLE, WHOLE, S = pt.vector("single", dtype="float32"), pt.vector("whole", dtype="int64"), pt.scalar("s")
GRAPHS = {
    "sum": ([X, Y], pt.exp(X) + Y / 3.0),
    "special functions": ([X], pt.gammaln(pt.abs(X)) + pt.erf(X) + pt.sigmoid(X)),
    "switch": ([X, Y], pt.switch(X > Y, X, pt.log(Y))),
    "rows": ([M, X], M * X + M.sum(axis=1, keepdims=True)),
    "scalars": ([S], pt.exp(S) - pt.log1p(S)),
    "single precision": ([SINGLE, X], SINGLE * 2 + pt.sqrt(SINGLE) + X.astype("float32")),
    "whole powers": ([Y], Y**-3 + Y**5 - 1.0 / Y**7),
    "integers": ([WHOLE, X], WHOLE // 2 + X**WHOLE + pt.sqrt(WHOLE)),
}
VALUES = {
    X: np.array([-1.0, 0.5, 2.0]),
    Y: np.array([0.5, -2.0, 1.0]),
    M: np.arange(6.0).reshape(2, 3),
    S: np.array(0.7),
    SINGLE: np.array([1.0, 2.0, 3.0], dtype="float32"),
    WHOLE: np.array([1, 2, 5]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_results_and_types_are_those_of_compiled_code(name):
    inputs, graph = GRAPHS[name]
    values = [VALUES[v] for v in inputs]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = compiled_function(inputs, graph, mode=numpy_mode())(*values)
    expected = pytensor.function(inputs, graph, mode=c_mode())(*values)
    assert found.dtype == expected.dtype and isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, expected, rtol=1e-6 if found.dtype == "float32" else 1e-14)


def test_lengths_of_one_are_not_stretched():
    """As in PyTensor: an array of one number, where the type does not say so, is a mistake."""
    function = compiled_function([X, Y], X + Y, mode=numpy_mode())
    with pytest.raises(ValueError, match="Runtime broadcasting not allowed"):
        function(np.ones(3), np.ones(1))
    with pytest.raises(ValueError):
        function(np.ones(3), np.ones(2))
    np.testing.assert_array_equal(function(np.ones(1), np.ones(1)), [2.0])
    stretched = compiled_function([M, X], M + X, mode=numpy_mode())
    np.testing.assert_array_equal(stretched(np.ones((2, 3)), np.ones(3)), np.full((2, 3), 2.0))
    with pytest.raises(ValueError, match="Runtime broadcasting not allowed"):
        stretched(np.ones((2, 3)), np.ones(1))


def test_numpy_mode_runs_whole_arrays_by_numpy():
    x, flags = pt.dmatrix("x"), pt.bvector("flags")
    outputs = [pt.softplus(x), flags.astype("float64"), pt.clip(x, -1, 1), pt.log1mexp(-abs(x) - 1e-3)]
    outputs.append(pt.clip(x, -99, 99).astype("int64"))
    outputs.append(pt.second(x, flags))
    outputs.append(x**5 + x**6)
    function = pytensor.function([x, flags], outputs, mode=numpy_mode())
    by_element = [n.op for n in function.maker.fgraph.apply_nodes if isinstance(n.op, Elemwise) and not n.op.nfunc_spec]
    assert by_element == []
    values = np.array([[-800.0, -1e-3, 0.0], [1e-3, 40.0, 800.0]])
    softplus, cast, clipped, complement, whole, filled, powers = function(values, np.array([0, 1, -3], dtype="int8"))
    np.testing.assert_allclose(softplus, np.logaddexp(0.0, values), rtol=1e-15)
    assert cast.dtype == "float64" and cast.tolist() == [0.0, 1.0, -3.0]
    np.testing.assert_array_equal(clipped, np.clip(values, -1, 1))
    np.testing.assert_allclose(powers, values**5 + values**6, rtol=1e-14)
    assert filled.dtype == "int8" and filled.tolist() == [[0, 1, -3], [0, 1, -3]] and filled.flags.writeable
    assert whole.dtype == "int64" and whole.tolist() == [[-99, 0, 0], [0, 40, 99]]
    # log(1 - exp(-u)) at u = |x| + 0.001, by mpmath.
    expected = [
        [0.0, -6.2156079317555306315, -6.9082552373154707326],
        [-6.2156079317555306315, -4.2441080245055260315e-18, 0.0],
    ]
    np.testing.assert_allclose(complement, expected, rtol=1e-12, atol=1e-300)


def test_an_index_of_all_rows_is_taken_once():
    index = pt.lvector("index")
    graph = vectorize_graph(X[index], {X: M, index: pt.constant([[2, 0, -1]])})
    function = compiled_function([M], graph, mode=numpy_mode())
    assert not any(isinstance(node.op, Blockwise) for node in function.graph.apply_nodes)
    np.testing.assert_array_equal(function(VALUES[M]), VALUES[M][:, [2, 0, -1]])
    with pytest.raises(IndexError):
        function(np.ones((2, 2)))

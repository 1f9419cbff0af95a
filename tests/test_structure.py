"""Functions that graphs of one structure share: equal results, and none between graphs that differ in anything."""

import gc
import warnings
from threading import Thread

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_ep as pmep
from pymc_ep import concurrency
from pymc_ep.compat import group
from pymc_ep.concurrency import compiled_function, compiling
from pymc_ep.modes import numpy_mode, quick_mode
from pymc_ep.structure import structure_of


@pytest.fixture
def compiled(monkeypatch):
    """Numbers of outputs of the functions that PyTensor compiles, of which none is known."""
    made, original = [], pytensor.function

    def counting(inputs, outputs, **options):
        made.append(len(outputs) if isinstance(outputs, list) else 1)
        return original(inputs, outputs, **options)

    monkeypatch.setattr(pytensor, "function", counting)
    monkeypatch.setattr(concurrency, "_SHARED", type(concurrency._SHARED)())
    return made


def counts(seed, *, groups=6, scale=1.0, prior=pm.HalfNormal, dtype="int64", rate=pm.math.exp):
    """Counts in groups; all but the seed changes what is computed, or of what type."""
    rng = np.random.default_rng(seed)
    of = rng.permutation(np.arange(30) % groups).astype(dtype)
    with pm.Model() as model:
        effect = pm.Normal("effect", 0, prior("spread", scale), shape=groups)
        eta = rng.normal(size=30) * pm.Normal("slope", 0, 1) + effect[of]
        pm.Poisson("y", rate(eta), observed=rng.poisson(3, size=30))
    return model


def fitted(model):
    return pmep.fit(model=model, hyper="optimize", draws=20, random_seed=1, progressbar=False)


def test_a_second_model_of_the_same_structure_has_the_results_of_its_own_data(compiled):
    fitted(counts(0))
    first = len(compiled)
    shared = fitted(counts(1))
    again = len(compiled) - first
    concurrency._SHARED.clear()
    alone = fitted(counts(1))
    assert len(compiled) - first - again >= first - 2
    assert again <= 1, "nothing but what PyMC compiles itself"
    assert group(shared, "fit")["log_evidence"] == group(alone, "fit")["log_evidence"]
    for name in ("effect", "slope", "spread"):
        np.testing.assert_array_equal(group(shared, "posterior")[name], group(alone, "posterior")[name])


@pytest.mark.parametrize(
    "other",
    [
        {"groups": 7},
        {"scale": 2.0},
        {"prior": pm.HalfCauchy},
        {"dtype": "int32"},
        {"rate": lambda eta: pm.math.exp(2 * eta)},
    ],
)
def test_models_that_differ_share_no_prior(other, compiled):
    fitted(counts(0))
    first = len(compiled)
    mixed = fitted(counts(1, **other))
    assert len(compiled) > first + 1
    concurrency._SHARED.clear()
    alone = fitted(counts(1, **other))
    np.testing.assert_array_equal(group(mixed, "posterior")["effect"], group(alone, "posterior")["effect"])


def test_shared_data_are_read_at_each_call(compiled):
    x = pt.vector("x")
    data = [pytensor.shared(np.arange(3.0) + k) for k in range(2)]
    one, two = (compiled_function([x], x * values, mode=numpy_mode()) for values in data)
    assert compiled == [1]
    np.testing.assert_array_equal(one(np.ones(3)), [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(two(np.ones(3)), [1.0, 2.0, 3.0])
    data[0].set_value(np.full(5, 7.0))
    np.testing.assert_array_equal(one(np.ones(5)), np.full(5, 7.0))
    np.testing.assert_array_equal(two(np.ones(3)), [1.0, 2.0, 3.0])


class OfUser(Op):
    """An operation that holds data, which its properties do not name."""

    __props__ = ()

    def __init__(self, shift):
        self.shift = shift

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] + self.shift


X, Y, THREE = pt.vector("x"), pt.vector("y"), pt.vector("x", shape=(3,))
M = pt.matrix("m")
A, B = pt.constant([1.0, 2.0]), pt.constant([3.0, 4.0])
PAIRS = {
    "constant": ([X], X * 2.0, X * 3.0),
    "sign of zero": ([X], X + 0.0, X + -0.0),
    "power": ([X], X**2.0, X**3.0),
    "short integers": ([X], X[np.array([0, 1])], X[np.array([1, 0])]),
    "dtype of data": ([X], X * np.arange(1.0, 4.0), X * np.arange(1.0, 4.0, dtype="float32")),
    "length of data": ([X], X * np.arange(1.0, 4.0), X * np.arange(1.0, 5.0)),
    "axis of data": ([M], M * np.ones((3, 1)), M * np.ones((1, 3))),
    "operation": ([X], pt.exp(X), pt.log(X)),
    "property": ([M], M.sum(axis=0), M.sum(axis=1)),
    "order of inputs": ([X, Y], X - Y, Y - X),
    "one input twice": ([X, Y], X * Y, X * X),
    "one array twice": ([X], X * A + A, X * A + B),
    "slice": ([X], X[1:], X[2:]),
    "shape": ([X], X.reshape((2, -1)), X.reshape((3, -1))),
    "type of an input": ([X, THREE], X + 1.0, THREE + 1.0),
    "outputs": ([X], [X + 1.0, X + 2.0], [X + 1.0, X + 1.0]),
    "offset of a diagonal": ([X], pt.diag(X), pt.diag(X, 1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_graphs_that_differ_have_other_structures(name):
    inputs, *graphs = PAIRS[name]
    first, second, again = (
        structure_of(inputs, graph if isinstance(graph, list) else [graph]) for graph in (*graphs, graphs[0])
    )
    assert first is not None and second is not None
    assert first.key != second.key
    assert first.key == again.key


def test_what_rewrites_are_told_of_an_input_is_part_of_a_structure():
    plain, told = pt.matrices("plain", "told")
    told.tag.psd = True
    assert structure_of([plain], [plain + 1.0]).key != structure_of([told], [told + 1.0]).key


def test_operations_of_users_and_random_ones_have_no_structure():
    assert structure_of([X], [OfUser(1.0)(X)]) is None
    assert structure_of([], [pm.Normal.dist()]) is None
    counter = pytensor.shared(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        counter.default_update = counter + 1.0
    assert structure_of([], [counter * 2.0]) is None
    inner = pytensor.compile.builders.OpFromGraph([X], [OfUser(1.0)(X)])
    assert structure_of([X], [inner(X)]) is None


def test_large_arrays_from_constants_alone_are_computed_once():
    large, small = pt.constant(np.ones((40, 40))), pt.constant(np.ones((4, 4)))
    assert structure_of([M], [M @ large.T]) is not None
    assert structure_of([M], [M @ small.dot(small)]) is not None
    assert structure_of([M], [M @ large.dot(large)]) is None


def test_a_result_is_no_view_of_the_data():
    values = pt.constant(np.ones((2, 3)))
    for graph in (values, values.T, values[1:]):
        found = compiled_function([], graph, mode=quick_mode())()
        found[:] = 5.0
    np.testing.assert_array_equal(values.data, np.ones((2, 3)))


def test_operations_of_users_compute_with_their_own_data():
    one, two = (compiled_function([X], OfUser(shift)(X) * np.ones(2), mode=quick_mode()) for shift in (1.0, 2.0))
    np.testing.assert_array_equal(one(np.zeros(2)), [1.0, 1.0])
    np.testing.assert_array_equal(two(np.zeros(2)), [2.0, 2.0])


def test_the_functions_that_were_used_last_are_kept(compiled, monkeypatch):
    monkeypatch.setattr(concurrency, "_MOST_SHARED", 2)
    for k in (1, 2, 1, 3, 1):
        compiled_function([X], X * float(k), mode=numpy_mode())
    assert len(compiled) == 3
    assert len(concurrency._SHARED) == 2


def raise_in_compilation():
    with compiling(), compiling():
        assert not gc.isenabled()
        raise RuntimeError


def test_garbage_is_collected_again_after_a_compilation_that_fails():
    assert gc.isenabled()
    with pytest.raises(RuntimeError):
        raise_in_compilation()
    assert gc.isenabled()
    gc.disable()
    try:
        with compiling():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_leave_garbage_collection_as_it_was():
    def build():
        for _ in range(200):
            with compiling():
                pass

    threads = [Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gc.isenabled()

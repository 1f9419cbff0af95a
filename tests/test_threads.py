"""Fits, predictions and sites in several threads at once are those of one thread, to the bit."""

import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier, Event, Thread

import cloudpickle
import joblib
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import threadpoolctl
from scipy import sparse

import pymc_ep as pmep
from docs.benchmarks.concurrent_fits import outcomes
from pymc_ep.compat import group, group_names
from pymc_ep.concurrency import compiled_function, compiled_property, compiling
from pymc_ep.modes import numpy_mode
from pymc_ep.numerics.backend.threads import limited_threads
from pymc_ep.sites import compile_site, get_site

THREADS = 8
X = np.linspace(0, 1, 12)
RNG = np.random.default_rng(0)
COUNTS, NUMBERS = RNG.poisson(3, 12), RNG.normal(size=12)
ROWS, COLS = (part.ravel() for part in np.indices((6, 4)))
CELLS = RNG.poisson(2, 24)
VIEWS = sparse.csr_array(RNG.poisson(1.0, (8, 6)))


@pytest.fixture(autouse=True)
def compiler_kept():
    """What compiles in threads below the public calls, which keep it, may leave PyTensor's C compiler switched off."""
    compiler = pytensor.config.cxx
    yield
    pytensor.config.cxx = compiler


@pytest.fixture(autouse=True)
def frequent_switches():
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(call, arguments):
    """Results of calls, eight at a time, the first eight begun together."""
    together = Barrier(min(THREADS, len(arguments)))

    def begun(k):
        if k < together.parties:
            together.wait(60)
        return call(*arguments[k])

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begun, range(len(arguments))))


def values(idata):
    """All numbers of a fit but its timings."""
    found = {f"{g}/{name}": array.to_numpy() for g in group_names(idata) for name, array in group(idata, g).items()}
    return {name: array for name, array in found.items() if array.dtype.kind in "biuf" and "time" not in name}


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def curve(likelihood):
    with pm.Model() as model:
        eta = pm.HalfNormal("eta", 1.0)
        gp = pm.gp.Latent(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, 0.3))
        likelihood(gp.prior("f", X[:, None]))
    return model


def counted():
    return curve(lambda f: pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=3.0, observed=COUNTS))


def measured():
    return curve(lambda f: pm.StudentT("y", nu=4.0, mu=f, sigma=0.5, observed=NUMBERS))


def columns():
    with pm.Model() as model:
        x, b = pm.Data("x", X[:, None] ** [0, 1]), pm.Normal("b", 0, 1, shape=2)
        pm.Poisson("y", pm.math.exp(pm.Deterministic("f", pm.math.dot(x, b))), observed=COUNTS)
    return model


def image():
    with pm.Model() as model:
        b = pm.HalfNormal("b", 2)
        u = pmep.SparseField(
            "u", operator=pmep.operators.Gradient2D((4, 3)), potential=pm.Laplace.dist(0, b), shape=(4, 3)
        )
        pm.Normal("y", u, 0.5, observed=NUMBERS.reshape(4, 3))
    return model


def bilinear():
    with pm.Model() as model:
        s = pm.HalfNormal("s", 1.0)
        V, U = pm.Normal("V", 0, s, shape=(6, 2)), pm.Normal("U", 0, 1, shape=(4, 2))
        pmep.BilinearPoisson("y", V, U, ROWS, COLS, link="softplus", observed=CELLS)
    return model


def paired():
    with pm.Model() as model:
        tau = pm.Gamma("tau", 2.0, 2.0)
        pmep.PairedSymbols(
            "y", pm.Normal("U", 0, tau=tau, shape=(8, 2)), pm.Normal("V", 0, 1, shape=(6, 2)), observed=VIEWS
        )
    return model


def preferences():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma", 1.0)
        f = pmep.PreferenceUtility("f", V=np.ones((4, 1)), b=np.zeros(4), kernel=np.eye(4), sigma=sigma, n_users=3)
        pmep.PairwiseProbit("y", f, users=[0, 0, 1, 1, 2], winners=[0, 1, 2, 3, 0], losers=[1, 2, 0, 1, 3])
    return model


METHODS = {
    "ep": (counted, {}),
    "ep, integrated": (columns, {}),
    "ep, searched": (measured, {}),
    "ep of a field": (image, {"hyper": "fixed"}),
    "ep of preferences": (preferences, {}),
    "dsb": (image, {"hyper": "fixed"}),
    "map": (image, {"hyper": "fixed"}),
    "vg": (bilinear, {}),
    "vbmf": (bilinear, {"hyper": "fixed"}),
    "paired_vb": (paired, {"max_iter": 20}),
}


def fitted(model, kind, seed):
    name, options = kind.partition(",")[0].partition(" of")[0], METHODS[kind][1]
    return pmep.fit(name, model=model, random_seed=seed, draws=5, progressbar=False, **options)


@pytest.mark.filterwarnings("ignore:The fit by")
@pytest.mark.parametrize("kind", METHODS)
def test_fits_of_one_model(kind):
    model = METHODS[kind][0]()
    expected = [values(fitted(model, kind, seed)) for seed in range(2)]
    for k, found in enumerate(in_threads(lambda seed: fitted(model, kind, seed), [(k % 2,) for k in range(THREADS)])):
        assert_same(values(found), expected[k % 2])


def test_none_of_the_counted_fits_raises():
    """Fewer of the fits that docs/reliability.md counts; PyTensor's C compiler is there afterwards."""
    compiler = pytensor.config.cxx
    assert outcomes(8) == {"the same": 8}
    assert pytensor.config.cxx == compiler


def test_first_fits_of_different_models():
    """All compile at once, functions of their own and those of the sites that they share."""
    kinds = ["ep", "ep, searched"] * 4
    found = in_threads(lambda kind: fitted(METHODS[kind][0](), kind, 0), [(kind,) for kind in kinds])
    expected = {kind: values(fitted(METHODS[kind][0](), kind, 0)) for kind in set(kinds)}
    for kind, one in zip(kinds, found):
        assert_same(values(one), expected[kind])


SITE_CALLS = {
    "closed form": ("probit", "moments", [1.0, 0.3, 1.0, 1.0]),
    "quadrature": ("student_t", "moments", [1.0, 0.3, 1.0, 1.0, 4.0, 0.7]),
    "gradient": ("student_t", "parameter_gradient", [1.0, 0.3, 1.0, 1.0, 4.0, 0.7]),
    "bound": ("student_t", "bounded", [1.0, 0.3, 1.0, 4.0, 0.7]),
    "derivatives": ("student_t", "log_density_derivatives", [1.0, 0.3, 4.0, 0.7]),
    "density": ("student_t", "log_density", [1.0, 0.3, 4.0, 0.7]),
}


@pytest.mark.parametrize("call", SITE_CALLS)
def test_functions_of_a_site(call):
    """A copy of the site, whose functions are compiled at the first call, which all threads make at once."""
    name, function, arguments = SITE_CALLS[call]
    site = compile_site(replace(get_site(name)))
    inputs = [[np.linspace(k, k + 1, 5 + k), *arguments[1:]] for k in range(THREADS)]

    def results(k):
        return [np.asarray(getattr(site, function)(*inputs[k])) for _ in range(20)]

    found = in_threads(results, [(k,) for k in range(THREADS)])
    for k, several in enumerate(found):
        expected = np.asarray(getattr(site, function)(*inputs[k]))
        for one in several:
            np.testing.assert_array_equal(one, expected)


def test_predictions_from_other_data_beside_fits():
    """For a moment a prediction gives the model the data of its fit back."""
    model = columns()
    earlier = fitted(model, "ep, integrated", 0)
    with model:
        pm.set_data({"x": X[:, None] ** [0, 2]})

    def predicted():
        return pmep.predict(earlier, model, var_names=["f"])

    def log_predicted():
        return pmep.log_predictive(earlier, model, {"y": COUNTS})

    def anew():
        return fitted(model, "ep, integrated", 1)

    calls = [predicted, log_predicted, anew]
    expected = [call() for call in calls]
    for k, found in enumerate(in_threads(lambda k: calls[k % 3](), [(k,) for k in range(12)])):
        if k % 3 == 2:
            assert_same(values(found), values(expected[2]))
        else:
            assert found.equals(expected[k % 3])


def test_fits_of_a_model_in_joblib():
    model = columns()
    pickled = cloudpickle.dumps(model)  # joblib itself cannot pickle models of PyMC
    options = {"random_seed": 0, "draws": 5, "progressbar": False}

    def of_a_copy():
        return pmep.fit(model=cloudpickle.loads(pickled), **options)

    expected = values(pmep.fit(model=model, **options))
    in_threads = [joblib.delayed(pmep.fit)(model=model, **options) for _ in range(4)]
    for backend, calls in {"threading": in_threads, "loky": [joblib.delayed(of_a_copy)()] * 4}.items():
        for found in joblib.Parallel(n_jobs=2, backend=backend)(calls):
            assert_same(values(found), expected)


def test_a_property_that_compiles_is_computed_once():
    class Holder:
        computed = 0

        @compiled_property
        def function(self):
            self.computed += 1
            x = pt.vector("x")
            return compiled_function([x], x + 1, mode=numpy_mode())

    holder = Holder()
    found = in_threads(lambda: holder.function, [()] * THREADS)
    assert holder.computed == 1 and len(set(map(id, found))) == 1


def test_flags_of_compilation_are_given_back():
    before = pytensor.config.cxx

    def flagged():
        for _ in range(50):
            with compiling(cxx=""):
                assert pytensor.config.cxx == ""

    in_threads(flagged, [()] * THREADS)
    assert pytensor.config.cxx == before


def test_threads_of_blas_are_given_back_by_the_last_of_overlapping_fits():
    def counts():
        return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}

    with threadpoolctl.threadpool_limits(3, user_api="blas"):
        first, second = limited_threads(0.0, 2), limited_threads(0.0, 1)
        first.__enter__()
        second.__enter__()
        assert counts() == {1}
        first.__exit__(None, None, None)
        assert counts() == {1}
        second.__exit__(None, None, None)
        assert counts() == {3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning", "ignore:.*fork:RuntimeWarning")
def test_a_process_forked_during_a_call_can_make_calls():
    """PyMC samples in forked processes: the lock of a call that ran in another thread is free in them."""
    begun, wanted, x = Event(), Event(), pt.vector("x")

    class Waiting(pt.Op):
        __props__ = ()

        def make_node(self, value):
            return pytensor.graph.basic.Apply(self, [value], [value.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = inputs[0] + 1
            if inputs[0].size > 1:
                begun.set()
                wanted.wait(60)

    function = compiled_function([x], Waiting()(x), mode=numpy_mode())
    thread = Thread(target=function, args=(np.zeros(2),))
    thread.start()
    begun.wait(60)
    process = multiprocessing.get_context("fork").Process(target=function, args=(np.zeros(1),))
    process.start()
    process.join(20)
    ended, code = not process.is_alive(), process.exitcode
    wanted.set()
    thread.join()
    process.kill()
    assert ended and code == 0

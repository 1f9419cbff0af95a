"""What the calls that fit share."""

import importlib
import io
import logging
import os
import subprocess
import sys
import time
from contextlib import redirect_stderr
from dataclasses import replace
from types import SimpleNamespace

import numba
import numpy as np
import pymc as pm
import pytensor
import pytest
import threadpoolctl

import pymc_ep as pmep
from pymc_ep import calls
from pymc_ep.engines import progress
from pymc_ep.forms import compiled_form, methods
from pymc_ep.modes import bodies_of
from pymc_ep.numerics.backend import threads as backend


def shown(tell, monkeypatch, seconds=-1.0, enabled=True, ended=False):
    """Return the last line of the bar that `tell` leaves, or of that of a fit that has ended."""
    monkeypatch.setattr(progress, "_SILENT_SECONDS", seconds)
    if not ended:
        monkeypatch.setattr(progress._ProgressBar, "finish", lambda _: None)
    with redirect_stderr(io.StringIO()) as out, progress.progress("ep", enabled) as report:
        tell(report)
    return out.getvalue().strip().split("\r")[-1]


def test_iterations_are_counted_where_the_end_is_unknown(monkeypatch):
    def tell(report):
        for _ in range(7):
            report(-12.5, 1e-3)

    line = shown(tell, monkeypatch)
    assert line.startswith("EP ")
    assert "7/?" in line and "objective -12.5" in line


def test_phases_of_known_length_count_what_is_done(monkeypatch):
    def tell(report):
        report(-20.0, 1.0)
        report.phase("integrating", total=120)
        for _ in range(3):
            report(-12.5, 1e-3)
            report(-12.0, 1e-9)
            report.advance()

    line = shown(tell, monkeypatch)
    assert line.startswith("EP, integrating")
    assert "3/120" in line and "objective -12" in line and "change 1e-09" in line


def test_a_bar_ends_full(monkeypatch):
    """A phase may need fewer steps than it may take."""

    def tell(report):
        report.phase("integrating", total=120)
        report.advance()

    assert "1/1" in shown(tell, monkeypatch, ended=True)


def test_a_minute_without_a_bar_is_told(monkeypatch, caplog):
    monkeypatch.setattr(progress, "LONG", 0.01)
    with caplog.at_level(logging.WARNING):
        shown(lambda report: time.sleep(0.3), monkeypatch, enabled=False)
        assert [record.getMessage()[:29] for record in caplog.records] == ["This fit has taken a minute. "]
        monkeypatch.setattr(progress, "LONG", 0.2)
        shown(lambda report: None, monkeypatch, enabled=False)
        time.sleep(0.4)
    assert len(caplog.records) == 1, "none of a fit that has ended before"


def test_a_phase_without_values_yet(monkeypatch):
    line = shown(lambda report: report.phase("searching"), monkeypatch)
    assert "EP, searching" in line and "objective" not in line


def test_nothing_is_shown_of_short_fits_nor_unasked(monkeypatch):
    def tell(report):
        report.phase("integrating", total=2)
        report(-1.0, 1.0)
        report.advance()

    assert shown(tell, monkeypatch, seconds=1e3) == ""
    assert shown(tell, monkeypatch, enabled=False) == ""


def threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize(
    ("rows", "cores", "expected"),
    [(50, "auto", {1}), (1999, "auto", {1}), (2000, "auto", {2}), (50, None, {2}), (50, 2, {2}), (5000, 1, {1})],
)
def test_blas_threads_by_size(rows, cores, expected, monkeypatch):
    monkeypatch.setattr(backend, "idle_processors", lambda: 2)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        with backend.limited_threads(rows**3, cores):
            assert threads() == expected
        assert threads() == {2}


@pytest.mark.parametrize(("cores", "expected"), [("auto", 1), (1, 1), (None, 2), (2, 2)])
def test_threads_of_kernels(cores, expected, monkeypatch):
    monkeypatch.setattr(backend, "idle_processors", lambda: 1)
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two processors")
    before = numba.get_num_threads()
    numba.set_num_threads(2)
    with backend.limited_threads(1.0, cores):
        assert numba.get_num_threads() == expected
    assert numba.get_num_threads() == 2
    numba.set_num_threads(before)


def test_a_busy_machine_leaves_one():
    endless = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(endless) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.5)
        assert backend.idle_processors() == 1
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("cores", "expected"), [({}, {1}), ({"cores": None}, {2}), ({"cores": 2}, {2}), ({"blas_cores": None}, {2})]
)
def test_a_fit_has_that_many_and_gives_them_back(cores, expected, monkeypatch):
    seen = []
    monkeypatch.setattr(progress._ProgressBar, "__call__", lambda *_: seen.append(threads()))
    with threadpoolctl.threadpool_limits(2, user_api="blas"), pm.Model():
        pm.Poisson("y", pm.math.exp(pm.Normal("a") * pm.math.stack([1.0, 1.1, 1.2])), observed=[1, 0, 2])
        pmep.fit(draws=0, **cores)
        assert threads() == {2}
    assert seen and all(found == expected for found in seen)


@pytest.mark.parametrize("name", ["cores", "blas_cores"])
@pytest.mark.parametrize("cores", [0, -1, 1.5, True, "one"])
def test_numbers_of_threads_that_cannot_be(cores, name):
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("a")), observed=[1, 0, 2])
    with pytest.raises(ValueError, match=rf"^{name}=.*must be 'auto', None or a whole number"):
        pmep.fit(model=model, draws=0, **{name: cores})


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        pm.Poisson("y", pm.math.exp(pm.Normal("level") + scale * pm.Normal("effect", shape=3)), observed=[1, 0, 2])
    return model


def test_what_is_recognised_is_shown_in_lines_and_as_a_table(model):
    told = pmep.explain(model)
    assert repr(told) == str(told) == f"{told}"
    assert len(repr(told).splitlines()) == told._repr_html_().count("<tr>") > 5
    assert told.splitlines()[-1] == "methods          ep, laplace, vg"
    assert ">methods</td>" in told._repr_html_() and ">ep, laplace, vg</td>" in told._repr_html_()


def test_the_table_of_what_is_supported():
    told = pmep.supported()
    assert repr(told) == str(told)
    page = told._repr_html_()
    assert page.count("<th") == 6 and page.count("<tr>") == len(told.splitlines())
    # Regressions first, matrices and images below.
    assert told.rows[1][:4] == ("Poisson", "exp", "poisson", "ep")


def test_text_of_a_model_is_no_markup():
    assert "&lt;b&gt;" in calls.printed([["<b>", "x"]])._repr_html_()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pmep.fit("EP"), "Did you mean 'ep'"),
        (lambda: pmep.fit(dampin=0.5), "Did you mean 'damping'"),
        (lambda: pmep.fit(progress_bar=False), "Did you mean 'progressbar'"),
        (lambda: pmep.fit(hyper="optimise"), "Did you mean 'optimize'"),
        (lambda: pmep.fit(start={"scal": 1.0}), "Did you mean 'scale'"),
        (lambda: pmep.fit(latent=["levels"]), "Did you mean 'level'"),
        (lambda: pmep.predict(pmep.fit(draws=0), var_names=["Effect"]), "Did you mean 'effect'"),
    ],
)
def test_names_that_are_nearly_right(model, call, message):
    with model, pytest.raises(ValueError, match=message):
        call()


def test_names_like_no_other_are_not_guessed(model):
    with pytest.raises(ValueError, match=r"has no option 'xyz'; its options are .*[a-z]\.$"):
        pmep.fit(model=model, xyz=1)


def test_a_model_for_a_method(model):
    with pytest.raises(TypeError, match=r"by keyword: fit\(model=model\)"):
        pmep.fit(model)


def test_a_bambi_model_is_built_and_stands_for_its_own(model):
    class Model:
        built = False

        def build(self):
            self.built, self.backend = True, SimpleNamespace(model=model)

    Model.__module__, Model.backend = "bambi.models", None
    of_bambi = Model()
    assert pmep.explain(of_bambi) == pmep.explain(model)
    assert of_bambi.built
    idata = pmep.fit(model=of_bambi, draws=0, hyper="fixed")
    assert idata["fit"]["converged"]
    assert pmep.loo(idata, of_bambi).se == pmep.loo(idata, model).se


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: pmep.fit(), r"There is no model: call this within `with model:`"),
        (lambda model: pmep.explain(), r"There is no model"),
        (lambda model: pmep.fit(model="m"), r"of the type str; give the pm\.Model"),
        (
            lambda model: pmep.predict(pmep.fit(model=model, draws=0, hyper="fixed"), "m"),
            r"of the type str; give the pm\.Model",
        ),
    ],
)
def test_what_is_no_model(model, call, message):
    with pytest.raises(TypeError, match=message):
        call(model)


@pytest.mark.parametrize("name", ["chain", "draw"])
def test_names_of_axes_of_draws(name):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal(name, 0.0, 1.0), 1.0, observed=0.5)
    with pytest.raises(pmep.UnsupportedModelError, match=f"'{name}' is the name of an axis"):
        pmep.fit(model=model)


def test_jax_is_refused_where_it_is_not_used():
    method = next(method for method in methods() if method.name == "vg")
    method = replace(method, jax=False)
    with pytest.raises(ValueError, match="asks for JAX, and method='vg' runs on NumPy alone"):
        calls.check_mode(method, {"mode": "JAX"})
    calls.check_mode(method, {"mode": "NUMBA"})


def counts_of_three():
    with pm.Model() as model:
        pm.Poisson("y", pm.math.exp(pm.Normal("b", 0, 1, shape=3)), observed=[1, 0, 2])
    return model


def test_a_device_of_jax():
    pytest.importorskip("jax")
    here, there = (pmep.fit(model=counts_of_three(), draws=0, device=device) for device in (None, "cpu"))
    np.testing.assert_allclose(there["fit"]["log_evidence"], here["fit"]["log_evidence"], rtol=1e-9)


def test_a_device_that_is_not_there():
    jax, model = pytest.importorskip("jax"), counts_of_three()
    missing = "gpu" if jax.default_backend() == "cpu" else "tpu"
    with pytest.raises(
        pmep.InvalidDataError, match=f"device='{missing}' is not there, as JAX sees .*leave device= out"
    ):
        pmep.fit(model=model, device=missing)
    with pytest.raises(ValueError, match="is one of JAX, and compile_kwargs= asks for the mode 'NUMBA'"):
        pmep.fit(model=model, device="cpu", compile_kwargs={"mode": "NUMBA"})


@pytest.mark.parametrize("device", ["GPU", "cuda", "", 0, True, ["cpu"]])
def test_a_device_of_another_name(device):
    with pytest.raises(ValueError, match=r"device=.* must be one of 'cpu', 'gpu', 'tpu'\."):
        pmep.fit(model=counts_of_three(), device=device)


def test_a_device_takes_the_mode_jax():
    pytest.importorskip("jax")
    for given in (None, {}, {"mode": None}, {"mode": "JAX"}):
        kwargs, placed = calls.on_device("cpu", given)
        assert kwargs == {"mode": "JAX"}
        with placed:
            assert backend_jax().current_device().platform == "cpu"


def test_a_device_named_in_the_configuration_of_jax():
    jax = pytest.importorskip("jax")
    with jax.default_device("cpu"):
        assert backend_jax().current_device() == jax.devices("cpu")[0]
        assert backend_jax().free_bytes() is None


def backend_jax():
    return importlib.import_module("pymc_ep.numerics.backend.device_jax")


@pytest.mark.parametrize("call", [pmep.fit, pmep.marginalize])
def test_keywords_of_compilation_that_are_no_dict(call):
    with pytest.raises(
        TypeError, match=r"compile_kwargs= is 'JAX', which is no dict; for a mode give \{'mode': 'JAX'\}"
    ):
        call(model=counts_of_three(), compile_kwargs="JAX")


def test_jax_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("pymc_ep.numerics.backend.namespace.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"device='cpu' asks for JAX, which is not installed: pip install"):
        pmep.fit(model=counts_of_three(), device="cpu")
    with pytest.raises(ImportError, match=r"compile_kwargs= asks for JAX, which is not installed: pip install"):
        pmep.marginalize(counts_of_three(), compile_kwargs={"mode": "JAX"})


def test_jax_in_single_precision():
    jax = pytest.importorskip("jax")
    backend_jax()
    jax.config.update("jax_enable_x64", False)
    try:
        for how in ({"device": "cpu"}, {"compile_kwargs": {"mode": "JAX"}}):
            with pytest.raises(RuntimeError, match="is set to single precision, and fits need double precision"):
                pmep.fit(model=counts_of_three(), **how)
    finally:
        jax.config.update("jax_enable_x64", True)


@pytest.mark.parametrize("call", [pmep.fit, pmep.marginalize])
@pytest.mark.parametrize("mode", ["CUDA", "", 3, ["JAX"]])
def test_modes_that_pytensor_does_not_have(call, mode):
    with pytest.raises(ValueError, match=r"which is no mode of PyTensor; give 'NUMBA', 'JAX', or 'CVM' for C\."):
        call(model=counts_of_three(), compile_kwargs={"mode": mode})


@pytest.mark.parametrize("mode", ["C", "PYTORCH"])
def test_modes_without_bodies(mode):
    with pytest.raises(ValueError, match=f"asks for the mode '{mode}', in which fits have no bodies; give 'NUMBA'"):
        pmep.fit(model=counts_of_three(), compile_kwargs={"mode": mode})


def test_c_without_a_compiler_is_numba():
    model = counts_of_three()
    with pytensor.config.change_flags(cxx=""):
        with pytest.warns(UserWarning, match="PyTensor has no C compiler: Numba compiles instead"):
            assert bodies_of(compiled_form(model, None, {"mode": "CVM"}).sites[0].mode) == "numba"
        assert bodies_of(compiled_form(model, None, {"mode": "NUMBA"}).sites[0].mode) == "numba"


def test_more_memory_than_the_device_has(monkeypatch):
    pytest.importorskip("jax")
    monkeypatch.setattr(backend_jax(), "free_bytes", lambda: 100)
    with pytest.raises(pmep.InvalidDataError, match=r"GB, and 0\.0 GB of memory on the device are free"):
        pmep.fit(model=counts_of_three(), draws=0, device="cpu")

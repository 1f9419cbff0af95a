"""Files of checkpoints: when they are written, whose they are, and what is refused."""

import errno
import os
import pickle
import re
import shutil
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pymc as pm
import pytest

import pymc_ep as pmep
from pymc_ep.compat import group
from pymc_ep.engines.base import Report
from pymc_ep.engines.checkpoint import UNRECORDED, Checkpoint, checkpoint, digest, file_format
from pymc_ep.engines.checkpoint.file_format import Contents
from pymc_ep.engines.checkpoint.state_layout import Flat

QUIET = {"draws": 0, "progressbar": False}
X = np.array([[0.1, 1.2], [1.0, -0.3], [-0.4, 0.8], [2.0, 0.5]])


def model_of(x=X, y=(1, 0, 2, 4), *, scale=1.0, dist=pm.Poisson, extra=False):
    with pm.Model() as model:
        s = pm.HalfNormal("s", scale)
        b = pm.Normal("b", 0, s, shape=2)
        if extra:
            pm.Normal("unused", 0, 1)
        if dist is pm.Poisson:
            pm.Poisson("y", pm.math.exp(pm.Data("x", x) @ b), observed=list(y))
        else:
            pm.NegativeBinomial("y", mu=pm.math.exp(pm.Data("x", x) @ b), alpha=3.0, observed=list(y))
    return model


shared_model = cache(model_of)
"""The model of nearly all fits of this file, compiled once."""


def fitted(path=None, method="ep", model=None, **options):
    model = shared_model() if model is None else model
    return pmep.fit(method, model=model, checkpoint=path, **{"hyper": "optimize"} | QUIET | options)


def interrupted(path, monkeypatch, at=3, **options):
    """A fit that Ctrl-C ended at a report, which leaves its file."""
    calls = []

    def report(*_):
        calls.append(1)
        if len(calls) == at:
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(Report, "__call__", report)
        with pytest.warns(pmep.ConvergenceWarning, match="interrupted"):
            fitted(path, **options)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The file of a fit that was interrupted."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        interrupted(path := tmp_path_factory.mktemp("interrupted") / "fit.npz", monkeypatch)
    return path


@pytest.fixture
def left(original, tmp_path):
    """A copy of it, which a test may spoil."""
    return Path(shutil.copy(original, tmp_path))


def test_it_is_written_at_the_start_and_removed_at_the_end(tmp_path, monkeypatch):
    path, seen = tmp_path / "fit.npz", []
    monkeypatch.setattr(Report, "__call__", lambda *_: seen.append(path.exists()))
    fitted(path)
    assert seen and all(seen)
    assert list(tmp_path.iterdir()) == []
    fitted(path, keep_checkpoint=True)
    assert [one.name for one in tmp_path.iterdir()] == ["fit.npz"]


def test_a_write_follows_each_iteration_that_took_longer(tmp_path, monkeypatch):
    now, writes = [0.0], []

    def write(path, contents):
        writes.append(now[0])
        now[0] += 2.0

    monkeypatch.setattr(checkpoint, "_now", lambda: now[0])
    monkeypatch.setattr(checkpoint, "write", write)
    with Checkpoint(tmp_path / "fit.npz") as saved:
        record = saved.record("loop")
        for seconds in (1.0, 1.0, 3.0, 1.0):
            now[0] += seconds
            record.keep(lambda: 1.0)
    # The third of two seconds' writes falls within the two after the fourth state; the last is that of the end.
    assert writes == [0.0, 4.0, 9.0, 12.0]


def test_errors_leave_the_state_before_them(tmp_path, monkeypatch):
    path, expected, calls = tmp_path / "fit.npz", fitted(), []

    def failing(*_):
        calls.append(1)
        if len(calls) == 4:
            raise MemoryError

    with monkeypatch.context() as context:
        context.setattr(Report, "__call__", failing)
        with pytest.raises(MemoryError):
            fitted(path)
    resumed = fitted(path)
    np.testing.assert_allclose(resumed["fit"]["hyper_objective"], expected["fit"]["hyper_objective"], rtol=1e-12)
    with pytest.raises(ValueError, match="power=3 must be 'auto' or lie"):
        fitted(path, power=3)
    assert list(tmp_path.iterdir()) == []


CHANGES = {
    "a covariate": ({"model": {"x": X + 1e-9}}, "another set of data of 'x'"),
    "an observation": ({"model": {"y": (1, 0, 2, 5)}}, "another set of data of 'y'"),
    "a prior": ({"model": {"scale": 2.0}}, "another definition of 's', another start"),
    "the likelihood": ({"model": {"dist": pm.NegativeBinomial}}, "another definition of 'y'"),
    "a variable": ({"model": {"extra": True}}, "another definition of 'unused'"),
    "an option": ({"power": 0.9}, "another power="),
    "two options": ({"tol": 1e-6, "schedule": "sequential"}, "another tol=, another schedule="),
    "hyper": ({"hyper": "integrate"}, "another hyper="),
    "start": ({"start": {"s": 0.3}}, "another start"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_fit_is_refused_by_the_name_of_what_differs(change, left):
    options, what = CHANGES[change]
    before = left.read_bytes()
    options = dict(options)
    model = model_of(**options.pop("model", {}))
    with pytest.raises(ValueError, match=f"is of a fit with {what}, which it would go on with; name another file"):
        fitted(left, model=model, **options)
    assert left.read_bytes() == before
    assert float(fitted(left)["fit"]["converged"])


def test_constants_within_a_graph_are_part_of_a_definition():
    from pymc_ep.graphs.identity import definitions

    def built(x, interval):
        with pm.Model() as model:
            b = pm.Normal("b", 0, 1, shape=2)
            s = pm.Uniform("s", *interval)
            u = pmep.SparseField("u", operator=x, potential=pm.Laplace.dist(0, 1.0))
            pm.Normal("y", X @ b, s, observed=np.zeros(4))
            pm.Potential("p", -((u.sum() - b[0]) ** 2))
        return definitions(model)

    first = built(np.eye(3), (0, 1))
    assert built(np.eye(3), (0, 1)) == first
    for other, name in ((built(2 * np.eye(3), (0, 1)), "u"), (built(np.eye(3), (0, 2)), "s")):
        assert {key for key in first if first[key] != other[key]} == {name}


def test_arrays_of_the_same_bytes_have_digests_of_their_own():
    zeros = [np.zeros(4), np.zeros((2, 2)), np.zeros((4, 1)), np.zeros(4, dtype=int), np.zeros(8, dtype=np.float32)]
    parts = [*((one,) for one in zeros), (np.zeros(2), np.zeros(2)), ("ab", "c"), ("a", "bc"), ("abc",)]
    assert len({digest(*one).tobytes() for one in parts}) == len(parts)
    assert np.array_equal(digest(np.arange(6.0).reshape(2, 3).T), digest(np.array([[0.0, 3], [1, 4], [2, 5]])))


IDENTITY = """
import sys
sys.path.insert(0, {here!r})
from test_checkpoint import model_of
from pymc_ep.graphs.identity import definitions, observations
print(definitions(model_of()), observations(model_of()))
"""


def test_definitions_are_the_same_in_every_process():
    script = IDENTITY.format(here=os.path.dirname(__file__))  # noqa: PTH120
    printed = [
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1] and "'b'" in printed[0]


def test_a_limit_of_iterations_may_be_another(tmp_path):
    path, expected = tmp_path / "fit.npz", fitted(hyper="fixed")
    with pytest.warns(pmep.ConvergenceWarning, match="stopped after 2 iterations"):
        fitted(path, hyper="fixed", max_iter=2)
    resumed = fitted(path, hyper="fixed")
    np.testing.assert_allclose(resumed["fit"]["objective"], expected["fit"]["objective"], rtol=1e-12)
    np.testing.assert_allclose(resumed["posterior_mean"]["b"], expected["posterior_mean"]["b"], rtol=1e-12)


def forged(path, change):
    """Rewrite a file with other arrays and a digest that is right for them."""
    found = file_format.read(path)
    records = {key: Flat(flat.layout, [change(array) for array in flat.arrays]) for key, flat in found.records.items()}
    file_format.write(path, Contents(found.identity, found.added, records))


class Trap:
    """An object whose unpickling makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (f"{self.path}.unpickled",)


FILES = {
    "empty": (lambda path: path.write_bytes(b""), "is a file that no fit has written, or a damaged one"),
    "text": (lambda path: path.write_bytes(b"something else"), "is a file that no fit has written"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size // 2), "or a damaged one"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps(Trap(path))), "is a file that no fit has written"),
    "objects": (
        lambda path: np.savez(path.open("wb"), x=np.array([Trap(path)], dtype=object)),
        "is a file that no fit has written",
    ),
    "array": (lambda path: np.save(path.open("wb"), np.zeros(3)), "is a file that no fit has written"),
    "other arrays": (lambda path: np.savez(path.open("wb"), theta=np.zeros(3)), "is a file that no fit has written"),
    "shape": (lambda path: forged(path, lambda x: np.append(x.ravel(), 0.0)), "is not of type float64 and shape"),
    "type": (lambda path: forged(path, lambda x: x.astype(np.float32)), "is not of type float64 and shape"),
    "words": (lambda path: forged(path, lambda x: x.astype(str)), "holds an array of type <U"),
    "nan": (lambda path: forged(path, lambda x: np.full_like(x, np.nan)), "holds an array with NaN"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", FILES)
def test_what_is_no_checkpoint_is_refused_and_stays(name, left):
    make, what = FILES[name]
    make(left)
    with pytest.raises(
        (ValueError, OSError), match=rf"checkpoint='.*fit.npz' .*{what}.*name another file, or remove it"
    ):
        fitted(left)
    assert list(left.parent.iterdir()) == [left]


def test_no_changed_byte_goes_unnoticed(left):
    """A byte either says nothing, as dates in the archive do, or is missed."""
    whole, contents, unnoticed = left.read_bytes(), file_format.read(left), []
    for place in range(0, len(whole), 7):
        left.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            unnoticed.append(file_format.read(left))
        except ValueError as error:
            message = str(error)
            assert re.search("damaged|another version", message)
    assert len(unnoticed) < 0.2 * len(whole) / 7
    for found in unnoticed:
        assert found.identity == contents.identity
        for key, flat in contents.records.items():
            assert found.records[key].layout == flat.layout
            assert all(map(np.array_equal, found.records[key].arrays, flat.arrays))


def test_a_record_whose_class_is_unknown_is_refused(left):
    found = file_format.read(left)
    records = {key: Flat(["Popen", *flat.layout[1:]], flat.arrays) for key, flat in found.records.items()}
    file_format.write(left, Contents(found.identity, found.added, records))
    with pytest.raises(ValueError, match="does not fit to this call, as it holds parts that are none of a _Recorded"):
        fitted(left)


def test_a_path_that_cannot_be_written_is_refused_before_the_fit(tmp_path, monkeypatch):
    def no_space(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    def forbidden(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Report, "__call__", lambda *_: pytest.fail("the fit has begun"))
    with pytest.raises(FileNotFoundError, match="lies in a folder that does not exist; create it"):
        fitted(tmp_path / "nowhere" / "fit.npz")
    with pytest.raises(IsADirectoryError, match="is a folder; name a file in it"):
        fitted(tmp_path)
    for where, function in ((np, "savez"), (file_format.os, "fsync"), (file_format.tempfile, "mkstemp")):
        with monkeypatch.context() as context:
            context.setattr(where, function, no_space)
            with pytest.raises(
                OSError, match=r"cannot be written \(No space left on device\); name a file in a folder"
            ):
                fitted(tmp_path / "fit.npz")
        assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as context:
        context.setattr(file_format.os, "open", forbidden)
        with pytest.raises(PermissionError, match=r"cannot be written \(Permission denied\)"):
            fitted(tmp_path / "fit.npz")


def test_a_write_that_fails_later_warns_once_and_the_fit_goes_on(tmp_path, monkeypatch):
    expected, path, calls, savez = fitted(), tmp_path / "fit.npz", [], np.savez

    def full(part, **arrays):
        calls.append(1)
        if len(calls) > 2:
            part.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        savez(part, **arrays)

    monkeypatch.setattr(np, "savez", full)
    monkeypatch.setattr(checkpoint, "_now", lambda: 0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = fitted(path)
    assert len(calls) > 3
    assert [str(one.message) for one in caught if "could not be written: No space" in str(one.message)]
    assert len([one for one in caught if one.category is RuntimeWarning]) == 1
    np.testing.assert_allclose(found["posterior_mean"]["b"], expected["posterior_mean"]["b"], rtol=1e-12)
    assert "could not be written" in group(found, "fit").attrs["status"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="links need privileges")
def test_no_link_is_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "fit.npz"
    victim.write_text("precious")
    for name in ("fit.npz.part", ".fit.npz.part", ".fit.npz.x.part"):
        (tmp_path / name).symlink_to(victim)
    fitted(path, keep_checkpoint=True)
    assert victim.read_text() == "precious"
    (tmp_path / ".fit.npz.lock").symlink_to(victim)
    with pytest.raises(OSError, match="cannot be written"):
        fitted(path)
    assert victim.read_text() == "precious"


def test_parts_of_killed_processes_are_removed(tmp_path):
    (tmp_path / ".fit.npz.abc.part").write_bytes(b"PK half")
    (tmp_path / ".fit.npz.lock").write_bytes(b"")
    fitted(tmp_path / "fit.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["fit", "*"])
def test_parts_of_other_files_are_left(name, tmp_path):
    other = tmp_path / ".fit.npz.abc.part"
    other.write_bytes(b"half")
    fitted(tmp_path / name)
    assert list(tmp_path.iterdir()) == [other]


def test_names_that_no_file_has(tmp_path):
    with pytest.raises(OSError, match="cannot be written"):
        fitted(tmp_path / ("x" * 300))
    with pytest.raises(ValueError, match="holds a null character"):
        fitted(f"{tmp_path}/a\0b")


def test_one_fit_at_a_time(tmp_path):
    path = tmp_path / "fit.npz"
    with Checkpoint(path) as first:
        with pytest.raises(BlockingIOError, match="is that of a fit that is under way; wait for its end, or name"):
            fitted(path)
        first.done = True
    fitted(path)


def test_without_a_path_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Checkpoint() as nowhere:
        assert nowhere.record(np.zeros(1)) is UNRECORDED
        nowhere.identify("set of data", "1")
    assert UNRECORDED.state(0.0) is None
    assert not list(tmp_path.iterdir())

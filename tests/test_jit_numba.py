"""Numba functions run where their cache can be neither written nor read."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from numba.core.caching import CacheImpl, IndexDataCacheFile

from pymc_ep import jit_numba

DOUBLED = np.array([2.0, 4.0])
TOGETHER = """
import multiprocessing
import numpy as np
from pymc_ep.jit_numba import jit

@jit(nogil=True)
def double(x):
    return 2.0 * x

def run(barrier, hits):
    barrier.wait()
    np.testing.assert_array_equal(double(np.array([1.0, 2.0])), [2.0, 4.0])
    hits.put(sum(double.stats.cache_hits.values()))

fork = multiprocessing.get_context("fork")
for count in (3, 1):
    barrier, hits = fork.Barrier(count), fork.SimpleQueue()
    running = [fork.Process(target=run, args=(barrier, hits)) for _ in range(count)]
    for process in running:
        process.start()
    for process in running:
        process.join(100)
    assert all(process.exitcode == 0 for process in running)
print(hits.get())
"""


def double(x):
    return 2.0 * x


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Numba's folder of caches, in this process and those it starts."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_function_is_read_from_the_cache(folder):
    for hits in (0, 1):
        compiled = jit_numba.jit(fastmath={"contract"})(double)
        np.testing.assert_array_equal(compiled(np.array([1.0, 2.0])), DOUBLED)
        assert sum(compiled.stats.cache_hits.values()) == hits
        assert compiled.targetoptions["fastmath"] == {"contract"}


def test_no_folder_takes_the_cache(monkeypatch):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(double)
    np.testing.assert_array_equal(jit_numba.jit()(double)(np.array([1.0, 2.0])), DOUBLED)


@pytest.mark.parametrize("when", ["_save_index", "_save_data"])
def test_a_full_disk_costs_the_cache_alone(folder, monkeypatch, when):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(IndexDataCacheFile, when, full)
        np.testing.assert_array_equal(jit_numba.jit()(double)(np.array([1.0, 2.0])), DOUBLED)
    np.testing.assert_array_equal(jit_numba.jit()(double)(np.array([1.0, 2.0])), DOUBLED)


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [b"", b"no cache", None], ids=["empty", "foreign", "cut"])
def test_a_damaged_file_is_written_anew(folder, kind, damage):
    jit_numba.jit()(double)(np.array([1.0, 2.0]))
    (path,) = folder.rglob(f"*.{kind}")
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    for hits in (0, 1):
        compiled = jit_numba.jit()(double)
        np.testing.assert_array_equal(compiled(np.array([1.0, 2.0])), DOUBLED)
        assert sum(compiled.stats.cache_hits.values()) == hits


def test_a_change_of_what_a_function_calls_is_seen(folder, monkeypatch):
    jit_numba.jit()(double)(np.array([1.0, 2.0]))
    monkeypatch.setattr(jit_numba, "_digest_of_sources", lambda: "of another version")
    compiled = jit_numba.jit()(double)
    np.testing.assert_array_equal(compiled(np.array([1.0, 2.0])), DOUBLED)
    assert sum(compiled.stats.cache_hits.values()) == 0


def printed_by(source, script):
    """What a script prints: a file, as Numba keeps nothing of functions without one."""
    script.write_text(source)
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_processes_that_compile_at_once_agree(folder, tmp_path):
    assert printed_by(TOGETHER, tmp_path / "doubling.py") == "1"


FORK = """
import multiprocessing
import numba
import numpy as np
from pymc_ep.jit_numba import jit

@jit(parallel=True)
def doubled(x):
    out = np.empty_like(x)
    for i in numba.prange(len(x)):
        out[i] = 2.0 * x[i]
    return out

def run(x):
    # The function itself would be pickled, and be another in the pool.
    return doubled(x)

x = np.arange(1000.0)
np.testing.assert_array_equal(doubled(x), 2.0 * x)
assert numba.threading_layer()
with multiprocessing.get_context("fork").Pool(2) as pool:
    for found in pool.map_async(run, [x, x + 1.0]).get(timeout=100):
        assert found.shape == x.shape
    np.testing.assert_array_equal(found, 2.0 * x + 2.0)
np.testing.assert_array_equal(doubled(x), 2.0 * x)
print("agreed")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_parallel_functions_run_in_forks(folder, tmp_path):
    """OpenMP ends a fork of a process with threads that starts some itself, and a pool waits for ever."""
    assert printed_by(FORK, tmp_path / "forking.py") == "agreed"


def test_the_digest_covers_every_module_of_numba_functions():
    package = Path(jit_numba.__file__).parent
    users = {path for path in package.rglob("*.py") if "jit_numba import" in path.read_text(encoding="utf-8")}
    assert users
    assert all(path.name.endswith("numba.py") for path in users)
    text = [path.read_text(encoding="utf-8") for path in package.rglob("*.py") if path.name != "jit_numba.py"]
    assert not any("cache=True" in one for one in text)

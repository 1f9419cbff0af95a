"""What all tests share: no windows, which are slow, and the folder with data that the package does not bring."""

import gc
import os
import signal
import time
import zlib
from pathlib import Path

import pytest

# Set before anything imports matplotlib or NumPy, and inherited by the processes that tests start or run in: several
# of these share the processors, and each would otherwise start as many threads as there are of them.
os.environ["MPLBACKEND"] = "Agg"
for library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# Imports and collection make no garbage to speak of.
gc.disable()
# What PyTensor compiles to C runs for milliseconds here: optimising it was half of what gcc took of the tests' time.
# Where each variable of a graph was made, which PyTensor says beside its own errors, took a 30th of it.
flags = os.environ.get("PYTENSOR_FLAGS", "")
for flag in ("gcc__cxxflags=-O1", "traceback__limit=0"):
    if flag.partition("=")[0] not in flags:
        flags = f"{flags},{flag}".lstrip(",")
os.environ["PYTENSOR_FLAGS"] = flags
# As of JAX: half of what its programs take here is their compilation.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option by which runs share slow tests."""
    told = "of the slow tests run one part of so many, such as 0/4, and leave the others to other runs"
    parser.addoption("--part", type=_part, metavar="K/N", help=told)


def _part(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 0 <= part < parts:
        raise ValueError(text)
    return part, parts


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is listed as slow, and where on one stack alone, before pytest selects by marks."""
    both, _, one = Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").partition("# On PyMC 6 alone")
    on_both, on_one = set(both.splitlines()), set(one.splitlines())
    for item in items:
        names = {item.nodeid, item.nodeid.partition("[")[0], item.nodeid.partition("::")[0]}
        if names & on_one:
            item.add_marker("one_stack")
        if names & (on_one | on_both):
            item.add_marker("slow")
    if (chosen := config.getoption("part")) is not None:
        part, parts = chosen
        slow = [item for item in items if item.get_closest_marker("slow") is not None]
        left = {item for item in slow if zlib.crc32(item.nodeid.encode()) % parts != part}
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave out of later collections of garbage what tests and their imports hold, and make full ones seldom."""
    keep_objects()
    gc.enable()
    gc.set_threshold(*gc.get_threshold()[:2], 100)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave out of later collections what a file of tests leaves in the caches of PyTensor, Numba and JAX."""
    if nextitem is None or nextitem.path != item.path:
        keep_objects()


def keep_objects() -> None:
    """Keep for good the objects that there are, which every collection of garbage would look at: seconds at the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder that PYMC_EP_DATA names; tests that need real data beyond the bundled are skipped without it."""
    folder = os.environ.get("PYMC_EP_DATA")
    if not folder:
        pytest.skip("PYMC_EP_DATA is not set; it names the folder with the public data sets.")
    path = Path(folder)
    assert path.is_dir(), f"PYMC_EP_DATA names {folder!r}, which is no folder."
    return path


@pytest.fixture(scope="module")
def dask_client():
    """Client of two worker processes of one thread each, with nannies that start them again."""
    distributed = pytest.importorskip("distributed", reason="needs distributed")
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0", "memory_limit": 0}
    with (
        # A cluster looks 15 s after a loss whether the worker is back, and ends its nanny where it is not, though it
        # may have come back and been killed again: tests kill that often.
        pytest.importorskip("dask").config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        distributed.LocalCluster(n_workers=2, silence_logs=50, **options) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        yield client


@pytest.fixture
def kill_worker(dask_client):
    """Function that kills a worker: that of a process, the older one, or, once `both` are there, that of a given place.

    It waits until the worker's nanny says that it runs: a nanny never starts a worker again that dies before that,
    though the scheduler knows such a worker already, and a test would wait for it for ever.
    """
    killed: set[int] = set()

    def kill(place: int = 0, *, both: bool = False, process: int | None = None) -> int:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            nannies = [nanny for nanny in dask_client.cluster.workers.values() if nanny.process is not None]
            running = {nanny.pid for nanny in nannies if nanny.process.status.name == "running"} - killed - {None}
            if process in running or (process is None and len(running) >= 1 + both):
                pid = sorted(running)[place] if process is None else process
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
                return pid
            time.sleep(0.02)
        pytest.fail("no nanny has a running worker after 120 s")

    return kill

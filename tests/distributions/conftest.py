"""What tests of distributions share: graphs that run once or twice run in Python."""

import pytensor
import pytest


@pytest.fixture(autouse=True)
def python_mode(request):
    """Run graphs in Python, but for tests over modes: to compile one takes seconds, to run it milliseconds."""
    if "mode" in request.node.fixturenames:
        yield
        return
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        yield

"""What all tests need before the first of them imports Numba; fixtures of several files."""
from __future__ import annotations

import gc
import os
import signal
import zlib
from collections.abc import Iterator

import numpy as np
import places
import pytest
from selection import pytest_addoption, pytest_collection_modifyitems, pytest_configure, pytest_generate_tests  # noqa: F401  (pytest finds its hooks here)

places.add_to_path()
os.environ.setdefault("NUMBA_NUM_THREADS", str(max(2, os.cpu_count() or 1)))      # two threads are told from one on one core too
os.environ.pop("TILEFLOW_DEFAULT_OPTIONS", None)                                  # options of whoever runs the tests are no part of them
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:                             # `make test &` ignores Ctrl-C, and so would what tests start
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Warnings are errors, but for what a run says of how it read data and model: tests that are about it look for the sentence."""
    session.config.addinivalue_line("filterwarnings", "ignore::tileflow.TileflowWarning")


@pytest.fixture(autouse=True, scope="session")
def _lowered_graphs_are_verified() -> None:
    """After every pass of the host lowering, as graphs are before the fork of the street. For users that would cost time."""
    from tileflow.lower import passes
    passes.VERIFIED = True


@pytest.fixture(autouse=True, scope="session")
def _images_are_made_anew() -> None:
    """So that every test lowers what it compiles, with what it has changed of that; tests of what is kept ask for
    it."""
    from tileflow.executable import store
    store.enabled = False


@pytest.fixture(autouse=True)
def _draws_of_its_own(request: pytest.FixtureRequest) -> None:
    """A file's generators and layers' weights begin anew for every test, by its name: what a test draws depends neither on those before it nor on
    its process."""
    from tileflow import nn
    seed = zlib.crc32(request.node.nodeid.encode())
    nn.manual_seed(seed)
    for generator in vars(request.module).values():
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Python's search for circles leaves alone what is there from now on, all tests and modules, and looks at young objects seldom: compilations
    start it often, and it took a tenth of the time of tests that compile. Old ones are looked at as often as ever: models and their memory."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 2)


@pytest.fixture(scope="session")
def turn(request: pytest.FixtureRequest) -> int | None:
    """Whose turn it is among the cases of exhaustive tests (None: all of theirs), for runs of such within a test."""
    found: int | None = request.config.getoption("--turn")
    return found


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """PyTorch computes on one thread while a file's tests run: its sums, and so its errors, do not depend on the machine."""
    from peers import needs
    torch = needs("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

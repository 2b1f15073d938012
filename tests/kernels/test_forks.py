"""A process forked after calls over several threads: its helpers are not there, so it starts its own."""
from __future__ import annotations

import os
import subprocess
import sys

import paths
import pytest
from places import PATH, ROOT

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork: a POSIX system makes it run")
SCRIPT = """
import sys, warnings
import numpy as np
warnings.simplefilter("ignore", DeprecationWarning)                   # newer Pythons warn of forks where there are threads
import tileflow
from tileflow import optim
from tileflow.kernels.machine import pool, table
from forked import child
from test_threads import Net, XS

table.FORK_NS = float(sys.argv[1])                                # 0: every row is split over the workers
rows = np.concatenate(XS)

def models():
    net = Net()
    lanes = tileflow.inference_model(net, threads=2, device_iterations=4)
    alone = tileflow.inference_model(net, threads=2)
    train = tileflow.training_model(net, optimizer=optim.AdamW(lr=0.05), threads=2, gradient_accumulation=4)
    return lambda: b"".join(np.asarray(a).tobytes() for a in (lanes(rows), alone(rows), train(rows, np.arange(64) % 4)[1], alone(rows)))

wanted = models()()
used, fresh = models(), models()
first = used()
assert first == wanted
second = used()
used = models()
used()                                                                # as far as the others, and the next call is in a child

print(child(lambda: used() == second), child(lambda: fresh() == wanted), child(lambda: child(lambda: used() == second) == 0 and pool.helpers() == 0),
      child(lambda: models()() == wanted and pool.helpers() == 1), pool.helpers(), used() == second)
"""


@pytest.mark.parametrize("cost", ["0", paths.rare("20000")])
def test_a_forked_child_computes_the_same_bits_with_helpers_of_its_own(cost: str):
    """In models that were called before, that were not, that are made there, and in a child's child; the parent keeps its threads."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, cost], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "NUMBA_NUM_THREADS": "2", "PYTHONPATH": PATH})
    assert done.stdout.strip() == "0 0 0 0 1 True", done.stderr


FIRST = """
import os
import numpy as np
import tileflow
from tileflow.kernels.machine import pool
from test_threads import Net, XS
pid = os.fork()
if pid == 0:
    tileflow.inference_model(Net(), threads=2, device_iterations=4)(XS[0])
    os._exit(pool.helpers())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_child_forked_before_any_call_has_all_workers():
    done = subprocess.run([sys.executable, "-c", FIRST], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "NUMBA_NUM_THREADS": "2", "PYTHONPATH": PATH})
    assert done.stdout.strip() == "1", done.stderr

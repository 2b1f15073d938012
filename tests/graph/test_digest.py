"""The digest of a graph: the same for the same computation, another for every other one."""
from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from onnx import ModelProto
from onnx_models import imported, model_of, node, port
from places import PATH, ROOT

from tileflow.graph.digest import digest


def made(**changes: object) -> ModelProto:
    """A small network; `changes` name what is otherwise."""
    get = changes.get
    names = {"x": get("input", "x"), "w": get("weight", "w"), "y": get("output", "y")}
    nodes = [node("Gemm", [str(names["x"]), str(names["w"])], ["h"], "fc", alpha=get("alpha", 1.0)),
             node("Clip", ["h", "low", "high"], ["c"], "clip"), node("Mul", ["c", "k"], ["m"], "scale"),
             node(str(get("last", "Relu")), ["m"], [str(names["y"])], str(get("node", "last")))]
    weights = {str(names["w"]): np.full((3, int(str(get("columns", 2)))), get("fill", 0.5), np.float32), "k": np.float32(get("factor", 0.25)),
               "low": np.float32(-1), "high": np.float32(get("high", 1.0))}
    return model_of(nodes, [port(str(names["x"]), ["N", 3])], [str(names["y"])], weights)


def of(proto: ModelProto, **options: object) -> str:
    return digest(imported(proto, **{"batch": 4, "training": True, **options}).graph)          # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"input": "z"}, {"weight": "v"}, {"output": "z"}, {"alpha": 2.0}, {"last": "Tanh"}, {"columns": 5},
                                     {"factor": 0.5}, {"high": 2.0}], ids=str)
def test_another_graph_has_another_digest(changes: dict[str, object]):
    assert of(made(**changes)) != of(made())


def test_weights_and_names_of_nodes_do_not_count():
    assert of(made(fill=0.75, node="other")) == of(made())


def test_what_is_trained_and_the_batch_count():
    assert of(made(), freeze=["w"]) != of(made())
    assert of(made(), batch=5) != of(made())


def test_it_is_the_same_in_every_process():
    script = (f"import sys; sys.path[:0] = {PATH.split(os.pathsep)!r}; "
              "from test_digest import made, of; print(of(made()))")
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"                # this process has another one
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=ROOT,
                           env={"PYTHONHASHSEED": seed, "PATH": "", "NUMBA_NUM_THREADS": "1"}).stdout
    assert found == of(made()) + "\n"

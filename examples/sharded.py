"""An ONNX file over several IPUs, one stage after the other: the same weights to the bit, and less memory on each IPU.

    python examples/sharded.py
    python examples/sharded.py --ipus 4 --epochs 10
    python examples/sharded.py --splits conv2 fc1            # stages that begin at these nodes, in place of automatic ones
"""
from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tileflow

MODEL = "digits_cnn.onnx"          # comes with tileflow, as the digits do


def main() -> None:
    parser = argparse.ArgumentParser(description="Sharded training of an ONNX file")
    parser.add_argument("--ipus", type=int, default=2, help="stages, each on an IPU of its own, cut so that the longest is as short as can be (2)")
    parser.add_argument("--splits", nargs="+", metavar="PATTERN", help="nodes at which a new stage begins, by name pattern")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the training data (3)")
    args = parser.parse_args()

    batching: dict[str, Any] = dict(micro_batch_size=16, gradient_accumulation=4)
    cut: dict[str, Any] = {"pipeline_splits": args.splits} if args.splits else {"auto_pipeline": args.ipus}
    sharded = dict(strategy="sharded", auto_round_num_ipus=True, **cut)

    runs = {}
    for name, strategy in {"one IPU": {}, "sharded": sharded}.items():
        run = runs[name] = tileflow.train(MODEL, data="digits", loss="cross_entropy", epochs=args.epochs, device_iterations=2,
                                          learning_rate=3e-3, **batching, **strategy)
        priced: Any = tileflow.compile(MODEL, training=True, machine="gc200", **batching, **strategy)
        memory, totals = priced.report["memory"], priced.report["totals"]
        print(f"{name}: accuracy {run.history['test_accuracy'][-1]:.1%}; an update takes {totals['cycles']:,} cycles of a GC200, "
              f"and {memory['worst']:,} bytes of the fullest tile")

    same = all(np.array_equal(array, runs["sharded"].weights[name]) for name, array in runs["one IPU"].weights.items())
    print(f"The weights are {'the same to the bit' if same else 'NOT the same'}.")


if __name__ == "__main__":
    main()

"""Products of 8-bit integers, chip by chip: at the rate that it states, widened to float16, or refused with a
sentence."""
from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tileflow
from tileflow.system.errors import OptionError
from tileflow.tiles.hardware.chip import CHIPS, Chip, MatrixUnit

M, K, N = 256, 512, 384
UNIT = {"int8.int32": MatrixUnit(128, 16, 32)}


def product(kind: int | None, folder: Path) -> str:
    """A model of one product: of bytes with or without signs, or of float16 (None)."""
    dtype = TensorProto.FLOAT16 if kind is None else kind
    array = np.ones((K, N), helper.tensor_dtype_to_np_dtype(dtype))
    node = helper.make_node("MatMul" if kind is None else "MatMulInteger", ["a", "b"], ["y"])
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("a", dtype, [M, K])],
                              [helper.make_tensor_value_info("y", dtype if kind is None else TensorProto.INT32,
                                                             [M, N])],
                              [onnx.numpy_helper.from_array(array, "b")])
    path = str(folder / f"{dtype}.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def planned(kind: int | None, chip: Any, folder: Path) -> tuple[Any, Any]:
    """What was compiled, and the step of the product."""
    made: Any = tileflow.compile(product(kind, folder), machine=chip)
    return made, max(made.tiled.steps, key=lambda step: step.flops)


@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8])
@pytest.mark.parametrize("name", CHIPS)
def test_documented_chips_widen_bytes(name: str, kind: int, tmp_path: Path) -> None:
    """They multiply as float16 does, and not faster than its unit; what is cast is counted, and bytes stay bytes in
    memory."""
    chip = CHIPS[name]
    said = next(row for row in chip.constants() if row[0] == "eight_bit_products")
    assert said[1:3] == ("widened", "documented")
    assert "Supported types" in said[3]
    made, step = planned(kind, chip, tmp_path)
    _, half = planned(None, chip, tmp_path)
    assert step.plan.vertex == half.plan.vertex == "amp"
    assert step.plan.phases.compute == half.plan.phases.compute
    assert step.phases.transform > step.plan.phases.transform
    macs = chip.tiles * chip.unit("float16", "float32").macs_per_cycle       # type: ignore[union-attr]
    assert step.phases.total >= M * K * N / macs
    weights = [v for v in made.report["variables"] if v["shape"] == [K, N]]
    assert [v["bytes"] for v in weights] == [K * N]


def test_a_unit_for_bytes_is_used_at_its_rate(tmp_path: Path) -> None:
    chip = CHIPS["gc200"].variant(name="bytes", matrix={**CHIPS["gc200"].matrix, **UNIT})
    for kind in (TensorProto.INT8, TensorProto.UINT8):
        _, step = planned(kind, chip, tmp_path)
        _, widened = planned(kind, "gc200", tmp_path)
        assert (step.plan.vertex, step.plan.partials) == ("amp", "int32")
        assert step.phases.compute < widened.phases.compute
        assert step.phases.total >= M * K * N / (chip.tiles * 128)
        assert step.phases.transform == step.plan.phases.transform, "nothing is cast"
    assert chip.peak_flops("int8") == 2 * chip.peak_flops("float16")


def test_a_chip_may_refuse(tmp_path: Path) -> None:
    """And only products of bytes; from a file, as from Python."""
    file = tmp_path / "strict.toml"
    file.write_text('base = "gc200"\neight_bit_products = "refused"\n')
    with pytest.raises(OptionError, match="multiplies 8-bit integers, which the chip strict refuses") as caught:
        planned(TensorProto.INT8, str(file), tmp_path)
    assert "int8.int32" in str(caught.value)
    planned(None, str(file), tmp_path)
    units = "".join(f'[matrix."{types}"]\n' + "".join(f"{k} = {v}\n" for k, v in asdict(unit).items())
                    for types, unit in UNIT.items())
    file.write_text(f'base = "gc200"\neight_bit_products = "refused"\n{units}')
    assert planned(TensorProto.INT8, str(file), tmp_path)[1].plan.partials == "int32"
    file.write_text('base = "gc200"\neight_bit_products = "fast"\n')
    with pytest.raises(OptionError, match="eight_bit_products must be widened or refused, not 'fast'"):
        Chip.load(file)


@pytest.mark.parametrize("matrix", [{}, UNIT])
def test_tiles_compute_what_the_product_is(matrix: dict[str, MatrixUnit], tmp_path: Path) -> None:
    chip = CHIPS["gc200"].variant(name="few", tiles=24, matrix={**CHIPS["gc200"].matrix, **matrix})
    assert planned(TensorProto.UINT8, chip, tmp_path)[0].tile_exact().ok

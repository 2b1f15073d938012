"""The tile machine counts the types of the very program: mixed and pure 16 bits, accumulators and moments."""
from __future__ import annotations

from typing import Any

import pytest
from places import ROOT

import tileflow
from tileflow import nn
from tileflow.api.choices import PrecisionChoice, compare, to_text
from tileflow.cli import main
from tileflow.system.errors import OptionError


def compiled(precision: str, **options: Any) -> Any:
    return tileflow.compile("digits_cnn.onnx", training=True, machine="gc200", precision=precision, micro_batch_size=16, **options)


def category(result: Any, name: str) -> int:
    """Bytes of a category of memory on all tiles."""
    return sum(result.report["memory"]["categories"][name])


def test_weights_take_exactly_half_in_pure_16_bits() -> None:
    full, mixed, half, brain = (compiled(p) for p in ("32", "16-mixed", "16-true", "bf16-true"))
    assert category(full, "weights") == category(mixed, "weights") == 2 * category(half, "weights") == 2 * category(brain, "weights")
    assert category(full, "optimizer") == category(half, "optimizer"), "moments are float32 unless somebody says otherwise"


def test_products_are_planned_in_the_types_of_the_program() -> None:
    """The same as if somebody had asked what float16 would do, and the figures of whole programs fall."""
    def units(result: Any) -> dict[str, tuple[str, str]]:
        return {s.node.origin.sources[0]: (s.work.inputs[0].dtype, s.plan.partials) for s in result.tiled.steps
                if s.node.op.name in ("Conv", "Gemm") and s.node.origin.role == "forward"}
    full, mixed = compiled("32"), compiled("16-mixed")
    assert set(units(full).values()) == {("float32", "float32")}
    assert set(units(mixed).values()) == {("float16", "float32")}
    assert mixed.report["totals"]["peak_fraction"] == pytest.approx(
        mixed.tiled.tflops * 1e12 / mixed.tiled.chip.peak_flops("float16"))
    assert "precision 16-mixed" in mixed.to_text()
    assert "precision 32.32" in full.to_text()


def test_partial_sums_in_16_bits_where_they_are_asked_for() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.conv = nn.Conv2d(16, 16, 3)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            with nn.MultiConv(partials_types="float16"):
                return self.conv(x)
    for precision, partials in (("32", "float32"), ("16-mixed", "float16"), ("16-true", "float16")):
        result: Any = tileflow.compile(Net(), inputs=[(2, 16, 10, 10)], machine="gc200", precision=precision)
        assert [s.plan.partials for s in result.tiled.steps if s.node.op.name == "Conv"] == [partials]


def test_one_truth_about_types() -> None:
    with pytest.raises(OptionError, match=r"machine_precision 16.32 takes float16 for every float32 tensor of a program, and precision 16-mixed "
                                          "gives the program 16-bit types of its own, which are what counts; leave one of them out"):
        compiled("16-mixed", machine_precision="16.32")
    assert compiled("32", machine_precision="16.32").report["options"]["precision"] == "16.32"


@pytest.mark.exhaustive
def test_the_partition_of_a_mixed_program_computes_what_the_program_does() -> None:
    result = compiled("16-mixed")
    assert result.tile_exact().ok


def rows() -> list[PrecisionChoice]:
    return compare("digits_cnn.onnx", machine="gc200", gradient_accumulation=4, micro_batch_size=16)


def test_choices_are_compared() -> None:
    """Accumulators and moments save what arithmetic says, and so does the table in the docs."""
    found = rows()
    count = found[0].weights // 4
    by = {(c.precision, c.accumulators, c.moments): c for c in found}
    assert len(by) == 9
    for (precision, accumulators, moments), c in by.items():
        assert c.weights == count * (2 if precision == "16-true" else 4)
        states = count * ((2 if accumulators == "float16" else 4) + 2 * (2 if moments == "float16" else 4))
        assert 8 <= c.optimizer - states <= 64, "numbers: the step, the loss scale and what adapts it"
    text = to_text(found)
    assert text.count("\n") == 12
    assert "16-true    float16       float16" in text
    shown = (ROOT / "docs" / "precision.md").read_text(encoding="utf-8").partition("**digits_cnn.onnx, AdamW**")[2]
    for c in found:          # bytes of weights exactly, cycles and all bytes as they were when the table was made, about
        row = next(line for line in shown.splitlines() if line.startswith(f"| {c.precision} | {c.accumulators} | {c.moments} |"))
        worst, always, weights, cycles = (int(cell.split()[0].replace(",", "")) for cell in row.split("|")[4:8])
        assert weights == c.weights
        assert (always, worst, cycles) == pytest.approx((c.always_live, c.worst, c.cycles), rel=0.25), \
            "python -m bench tile-choices --write docs/precision.md"


def test_what_has_no_effect_is_not_compared() -> None:
    assert [(c.precision, c.accumulators, c.moments) for c in compare("digits_cnn.onnx", optimizer="sgd")] == \
        [("32", "-", "-"), ("16-mixed", "-", "-"), ("16-true", "-", "-")]
    assert [c.precision for c in compare("digits_cnn.onnx", training=False)] == ["32", "16-mixed", "16-true"]
    with pytest.raises(OptionError, match="The choices of precision are compared, so it cannot be given"):
        compare("digits_cnn.onnx", precision="16-true")


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compile", "digits_cnn.onnx", "--machine", "gc200", "--compare-precisions"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert said.startswith("What each choice takes")
    assert "16-mixed" in said
    assert main([*command, "--verbose"]) != 0
    assert "--compare-precisions prints a table of several programs, so --verbose has no effect" in capsys.readouterr().err
    assert main(["compile", "digits_cnn.onnx", "--compare-precisions"]) != 0
    assert "--compare-precisions is about the tile machine" in capsys.readouterr().err

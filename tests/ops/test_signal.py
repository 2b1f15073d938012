"""Fourier transforms of all kinds of lengths against NumPy's, in float64; frames against SciPy-free sums of our own."""
from __future__ import annotations

import numpy as np
import pytest
from evaluate import run_reference
from onnx import ModelProto
from onnx_models import model_of, node, port
from peers import needs

import tileflow
from tileflow.graph import TensorType
from tileflow.importers.onnx import wrap_model
from tileflow.ops.signal import DFT, DIRECT, PRIME, STFT, mel_weights
from tileflow.system.errors import ShapeError

LENGTHS = (1, 2, 17, 600, 1024, 1021, 2 * 2053, 2053)
"""Direct, in two steps, a prime that is direct, a prime that is a convolution, and twice one."""


def interleaved(z: np.ndarray) -> np.ndarray:
    return np.stack([z.real, z.imag], -1)


def test_the_lengths_meet_every_way():
    assert DIRECT < 600
    assert PRIME < 2053


@pytest.mark.parametrize("windowed", [True, False])
def test_a_real_signal_needs_no_axis_of_parts(windowed: bool):
    """As ONNX Runtime takes it: in a file, with its gradient, and still with the axis."""
    names = ["x", "step", "window", "length"] if windowed else ["x", "step", "", "length"]
    weights = {"step": np.int64(3), "length": np.int64(8), "w": np.full((2, 1), 0.5, np.float32)} | ({"window": np.hanning(8).astype(np.float32)})
    nodes = [node("STFT", names, ["s"]), node("MatMul", ["s", "w"], ["y"])]
    if not windowed:
        del weights["window"]
    x = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    found = []
    for shape in (("N", 40), ("N", 40, 1)):
        proto = model_of(nodes, [port("x", shape)], [port("y", ["N", 11, 5, 1])], weights)
        given = x.reshape(3, *shape[1:])
        y = tileflow.inference_model(wrap_model(proto))(given)
        np.testing.assert_allclose(y, in_onnx_runtime(proto, given), rtol=1e-4, atol=1e-5)
        upstream = np.ones_like(y)
        gradient, = tileflow.gradient_model(wrap_model(proto), wrt="x", upstream=True)(given, upstream).values()
        found.append((y, gradient.reshape(3, 40)))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def in_onnx_runtime(proto: ModelProto, x: np.ndarray) -> np.ndarray:
    """The file's output for x in ONNX Runtime."""
    session = needs("onnxruntime").InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("n", LENGTHS)
def test_transforms_are_numpys(n: int):
    rng = np.random.default_rng(n)
    z = rng.standard_normal((2, n, 3)) + 1j * rng.standard_normal((2, n, 3))
    scale = np.sqrt(n)
    for op, x, want in ((DFT(axis=1), interleaved(z), interleaved(np.fft.fft(z, axis=1))),
                        (DFT(axis=1, inverse=1), interleaved(z), interleaved(np.fft.ifft(z, axis=1))),
                        (DFT(axis=1), z.real[..., None], interleaved(np.fft.fft(z.real, axis=1))),
                        (DFT(axis=1, onesided=1), z.real[..., None], interleaved(np.fft.rfft(z.real, axis=1))),
                        (DFT(axis=1, onesided=1, inverse=1, dft_length=n), interleaved(np.fft.rfft(z.real, axis=1)), z.real[..., None])):
        got, = run_reference(op, x)
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=2e-12 * scale, err_msg=str(op))


def test_float32_transforms_are_as_exact_as_numpys_in_float32():
    """Errors against float64 relative to the largest result; a fast transform of 4096 elements loses about 3e-7."""
    x = np.random.default_rng(0).standard_normal((4, 4096, 1)).astype(np.float32)
    got, = run_reference(DFT(axis=1), x)
    want = interleaved(np.fft.fft(x[..., 0].astype(np.float64), axis=1))
    assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()


def test_frames_are_transformed_one_by_one():
    rng = np.random.default_rng(1)
    x, window = rng.standard_normal((2, 50, 1)), rng.standard_normal(12)
    got, = run_reference(STFT(frame_step=8), x, window)
    frames = [np.fft.rfft(x[:, at:at + 12, 0] * window) for at in range(0, 50 - 11, 8)]
    np.testing.assert_allclose(got, interleaved(np.stack(frames, 1)), rtol=1e-12, atol=1e-12)


def test_what_cannot_be_transformed_is_a_sentence():
    with pytest.raises(ShapeError, match="only the transform of a real signal is onesided"):
        DFT(onesided=1).infer(TensorType("float32", (2, 8, 2)))
    with pytest.raises(ShapeError, match="holds the real and imaginary parts"):
        DFT(axis=-1).infer(TensorType("float32", (2, 8, 2)))
    with pytest.raises(ShapeError, match="cannot be taken from a signal of 8 elements"):
        STFT(frame_step=2, frame_length=9).infer(TensorType("float32", (2, 8, 1)))


def test_bands_of_the_mel_scale_peak_at_their_centres():
    weights = mel_weights(8, 256, 8000, 0.0, 4000.0)
    assert weights.shape == (129, 8)
    assert (weights.max(0) == 1).all()
    assert (np.diff(weights.argmax(0)) > 0).all()

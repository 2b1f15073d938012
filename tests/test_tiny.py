"""The whole product on one screen. Needs an installed tileflow and nothing of this folder: pytest path/to/test_tiny.py"""
from pathlib import Path

import numpy as np
import onnx
import pytest

import tileflow
from tileflow import nn

pytestmark = pytest.mark.filterwarnings("ignore::tileflow.TileflowWarning")          # what `train` says of its choices
MODEL = Path(tileflow.__file__).parent / "data" / "digits_cnn.onnx"
QUICK = dict(data="digits", micro_batch_size=16, gradient_accumulation=2, device_iterations=4, learning_rate=3e-3)


def test_train_a_file_save_it_and_run_it(tmp_path):
    result = tileflow.train(MODEL, out=str(tmp_path / "run"), epochs=4, **QUICK)
    assert result.history["test_accuracy"][-1] > 0.95
    assert (np.diff(result.history["loss"]) < 0).all()
    saved = result.save_onnx(tmp_path / "trained.onnx")
    assert saved.read_bytes() == (tmp_path / "run" / "model.onnx").read_bytes()
    before, after = onnx.load(MODEL).graph, onnx.load(saved).graph
    assert before.node == after.node
    assert [t.name for t in before.initializer] == [t.name for t in after.initializer]
    scores = tileflow.infer(saved, data="digits", micro_batch_size=16)["logits"]
    digits = np.load(MODEL.with_name("digits.npz"))
    assert (scores.argmax(1) == digits["y_test"]).mean() == pytest.approx(result.history["test_accuracy"][-1])
    model = tileflow.inference_model(saved)
    np.testing.assert_array_equal(model(np.float32(digits["x_test"][:16, None] / 16)), scores[:16])


def test_resume(tmp_path):
    tileflow.train(MODEL, out=str(tmp_path / "two"), epochs=2, **QUICK)
    tileflow.train(MODEL, out=str(tmp_path / "one"), epochs=1, **QUICK)
    tileflow.train(MODEL, out=str(tmp_path / "one"), epochs=2, resume=True, **QUICK)
    assert (tmp_path / "one" / "model.onnx").read_bytes() == (tmp_path / "two" / "model.onnx").read_bytes()


class Net(nn.Module):
    def __init__(self):
        nn.manual_seed(0)
        self.conv1, self.norm, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 3, padding=1)
        self.pool, self.drop, self.fc = nn.MaxPool2d(2), nn.Dropout(0.1), nn.Linear(128, 10)

    def forward(self, x):
        x = self.pool(self.norm(self.conv1(x)).relu())
        x = self.pool(self.conv2(x).relu())
        return self.fc(self.drop(x.flatten()))


def test_layers():
    digits = np.load(MODEL.with_name("digits.npz"))
    x, y = np.float32(digits["x_train"][:1408, None] / 16), digits["y_train"][:1408]
    net = Net()
    model = tileflow.training_model(net, optimizer=tileflow.optim.AdamW(lr=3e-3), gradient_accumulation=2, device_iterations=44)
    losses = [model(x, y)[1] and model.last_losses.mean() for _ in range(5)]
    assert losses[-1] < 0.1 * losses[0]
    scores = tileflow.inference_model(net)(np.float32(digits["x_test"][:, None] / 16))
    assert (scores.argmax(1) == digits["y_test"]).mean() > 0.95

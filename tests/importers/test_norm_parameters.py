"""Which tensors of a normalisation are parameters, in files as exporters and optimisers write them, and what is only nearly one of them."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_files import by_pytorch, called, f4, ones, written, zeros
from onnx import ModelProto, NodeProto, numpy_helper
from onnx_models import expected, imported, model_of, node, port, run
from peers import needs

from tileflow.passes.gather import gather

N, C, G = 2, 6, 3
CALL = "group_norm(%x, 3, %p_n_weight, %p_n_bias, 1e-05, False)"
NONE = "group_norm(%x, 3, None, None, 1e-05, False)"
HOW = ("dynamo", "torchscript", "nobody")
"""Who wrote the file: one whose nodes say from which call they are, one whose nodes say from which module, one that says nothing."""


def groups(how: str = "dynamo", *, scale: np.ndarray | None = None, shift: np.ndarray | None = None, unit: Sequence[np.ndarray] = (),
           module: str = "n", call: str = CALL, after: str = "", names: Sequence[str] = ("val_1", "val_2", "val_3", "val_4"), dtype: str = "float32",
           more: Sequence[NodeProto] = ()) -> ModelProto:
    """Group normalisation of x [2, 6, 2, 4]. names: of ones, zeros, scale and shift. after: the call (or module) of the product and the sum."""
    scale, shift = (v if v is not None else f4(C, 1, 1) for v in (scale, shift))
    one, zero = unit or (ones(G), zeros(G))
    last = "y" if not more else "h"
    nodes = [node("Reshape", ["x", "rows"], ["r"]), node("InstanceNormalization", ["r", names[0], names[1]], ["i"]),
             node("Reshape", ["i", "shape"], ["back"]),
             node("Mul", ["back", names[2]], ["m"]), node("Add", [names[3], "m"], [last])]
    for made in nodes:
        own = after if after and made.op_type in ("Mul", "Add") else ""
        if how == "dynamo":
            called(made, module, own or call)
        elif how == "torchscript":
            made.name = f"/{own or module}/{made.op_type}"
    arrays = [one, zero, scale, shift]
    stored = {name: a.astype(dtype) for name, a in zip(names, arrays, strict=True)} | {"rows": np.array([0, G, -1]), "shape": np.array([N, C, 2, 4])}
    return model_of([*nodes, *more], [port("x", [N, C, 2, 4], dtype)], [port("y", [N, None, None, None], dtype)], stored,
                    producer_name="somebody" if how == "nobody" else "pytorch")


def trained(proto: ModelProto, **options: Any) -> dict[str, tuple[int, ...]]:
    """What is trained, with its shape."""
    return {s.name: s.input.shape for s in imported(proto, training=True, **options).graph.parameters if s.trainable}


def kinds(proto: ModelProto) -> list[str]:
    return [n.op.name for n in gather(imported(proto, training=True).graph).nodes]


@pytest.mark.parametrize("wide", [(C, 1, 1), (1, C, 1, 1)])
@pytest.mark.parametrize("how", HOW)
def test_numbers_per_channel_are_trained_and_ones_and_zeros_are_not(how: str, wide: tuple[int, ...], tmp_path: Path) -> None:
    proto = groups(how, scale=f4(*wide), shift=f4(*wide))
    names = ["val_3", "val_4"] if how == "nobody" else ["n.weight", "n.bias"]
    assert trained(proto) == dict.fromkeys(names, wide if how == "nobody" else (C,))
    assert [k for k in kinds(proto) if k != "Reshape"] == ["GroupNormalization"]
    result, file = written(proto, tmp_path / "m.onnx", change=0.5, training=True)
    assert result.warnings == []
    stored = {t.name: numpy_helper.to_array(t) for t in file.graph.initializer}
    assert stored.keys() == {"val_1", "val_2", *names, "rows", "shape"}
    assert stored["val_1"].tolist() == [1] * G
    assert [stored[n].shape for n in names] == [wide, wide]
    x = f4(N, C, 2, 4)
    np.testing.assert_allclose(expected(file, {"x": x})[0], run(result, {"x": x})[0], rtol=1e-4, atol=1e-5)
    assert trained(file) == trained(proto), "the written file trains the same again"


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_in_any_float(dtype: str) -> None:
    assert trained(groups(dtype=dtype)) == {"n.weight": (C,), "n.bias": (C,)}


@pytest.mark.parametrize("how", HOW)
def test_zeros_of_groups_that_are_a_fresh_bias_too(how: str, tmp_path: Path) -> None:
    """Equal tensors stored once: as many groups as the convolution has channels. The bias is trained, the zeros stay."""
    conv = node("Conv", ["h", "c.weight", "c.bias"], ["y"], "/c/Conv")
    conv = called(conv, "c", "conv2d(%h, %p_c_weight, %p_c_bias)") if how == "dynamo" else conv
    proto = groups(how, names=("val_1", "c.bias", "val_3", "val_4"), more=[conv])
    proto.graph.initializer.append(numpy_helper.from_array(f4(G, C, 1, 1), "c.weight"))
    result, file = written(proto, tmp_path / "m.onnx", change=0.5, training=True)
    assert "c.bias" in result.weights
    assert result.verdicts["c.bias.constant"].kind == "constant"
    x = f4(N, C, 2, 4)
    np.testing.assert_allclose(expected(file, {"x": x})[0], run(result, {"x": x})[0], rtol=1e-4, atol=1e-5)
    assert trained(file).keys() == trained(proto).keys()
    assert "GroupNormalization" in kinds(file)


def test_two_norms_of_equal_first_values() -> None:
    """One tensor for both scales and for the ones of a norm without any."""
    proto = groups(scale=ones(C, 1, 1), shift=zeros(C, 1, 1))
    for i, call in enumerate([CALL.replace("p_n", "p_m"), NONE]):
        other = groups(module="m" if not i else "o", call=call)
        for made in other.graph.node:
            made.input[:] = [n if n.startswith("val") or n in ("rows", "shape") else {"x": ("y", "y1")[i]}.get(n, f"{n}{i + 1}") for n in made.input]
            made.output[:] = [f"{n}{i + 1}" for n in made.output]
        proto.graph.node.extend(other.graph.node)
    proto.graph.output[0].name = "y2"
    assert trained(proto) == {"n.weight": (C,), "n.bias": (C,), "m.weight": (C,), "m.bias": (C,)}
    assert kinds(proto).count("GroupNormalization") == 3


@pytest.mark.parametrize(("change", "wanted"), [
    ({"call": "group_norm(%x, 3, None, %p_n_bias, 1e-05, False)", "scale": ones(C, 1, 1)}, ["n.bias"]),
    ({"call": NONE}, []),
    ({"after": "addcmul(%b, %view, %p_g)", "call": NONE}, ["val_3"]),                              # an operator of the network's own, which has it
    ({"after": "mul(%view, %b_g)", "call": NONE}, []),                                            # a buffer
    ({"after": "mul(%view, %unsqueeze)", "call": NONE}, []),                                      # computed, perhaps from a parameter
    ({"names": ("n.weight", "n.bias", "g", "b"), "call": "instance_norm(%x, %p_n_weight, %p_n_bias)", "after": "mul(%view, %p_g, %p_b)"},
     ["n.weight", "n.bias", "g", "b"]),                                                           # instances of groups, with parameters of their own
])
def test_calls_say_whose_parameters_they_are(change: dict[str, Any], wanted: list[str]) -> None:
    assert sorted(trained(groups(**change))) == sorted(wanted)


@pytest.mark.parametrize(("change", "wanted"), [
    ({}, ["n.weight", "n.bias"]),
    ({"unit": (1.5 * ones(G), zeros(G))}, ["val_1", "n.weight", "n.bias"]),                       # scales of groups, as no exporter writes them
    ({"unit": (ones(G), 0.1 * ones(G))}, ["val_2", "n.weight", "n.bias"]),
    ({"after": "other"}, []),                                                                     # another module's product, computed by the exporter
    ({"after": "other", "names": ("n.weight", "n.bias", "other.g", "other.b")}, ["n.weight", "n.bias", "other.g", "other.b"]),
    ({"after": "other", "names": ("/n/Constant_1_output_0", "/n/Constant_2_output_0", "other.g", "other.b")}, ["other.g", "other.b"]),
    ({"scale": f4(2, 1), "shift": f4(2, 1)}, []),                                                 # numbers per row of the image
    ({"scale": f4(4), "shift": f4(4)}, []),                                                       # per column of it
    ({"scale": f4(C, 2, 4)}, []),                                                                 # per element
    ({"scale": np.float32(2).reshape(1), "shift": np.float32(2).reshape(1)}, []),
])
def test_modules_say_whose_parameters_they_are(change: dict[str, Any], wanted: list[str]) -> None:
    assert sorted(trained(groups("torchscript", **change))) == sorted(wanted)


def test_what_somebody_else_reads_is_no_part_of_a_norm() -> None:
    """The normalised rows are read twice: what follows them may be anything, but ones and zeros with made-up names say nothing all the same."""
    proto = groups("torchscript", more=[node("Add", ["h", "back"], ["y"])])
    assert trained(proto) == {}
    assert "Not trained, because the exporter computed them, perhaps from parameters: val_3, val_4." in imported(proto, training=True).warnings[0]


def test_the_user_overrules() -> None:
    assert trained(groups(), trainable=["val_1"]) == {"val_1": (G,)} | trained(groups())
    assert trained(groups(), freeze=["*.bias"]) == {"n.weight": (C,)}


def plain(op: str, call: str, name: str, names: tuple[str, str] = ("val_1", "val_2"), number: float = 1.0) -> ModelProto:
    """A normalisation by ones and zeros, in a file with calls, or with modules where there is none."""
    made = node(op, ["x", *names], ["y"], name)
    return by_pytorch([called(made, "n", call) if call else made], [port("x", [2, 4, 4])], {names[0]: number * ones(4), names[1]: zeros(4)})


@pytest.mark.parametrize(("proto", "count"), [
    (plain("LayerNormalization", "layer_norm(%x, [4], None, None, 1e-05, False)", "n"), 0),
    (plain("LayerNormalization", "layer_norm(%x, [4], %p_n_weight, %p_n_bias, 1e-05, False)", "n"), 2),
    (plain("LayerNormalization", "layer_norm(%x, [4], %add, %p_n_bias, 1e-05, False)", "n"), 2),       # computed from a parameter, perhaps
    (plain("InstanceNormalization", "instance_norm(%x, None, None, None, None, True)", "n"), 0),
    (plain("InstanceNormalization", "instance_norm(%x, None, None, None, None, True)", "n", number=2), 1),
    (plain("InstanceNormalization", "", "/n/I", ("/n/Constant_output_0", "/n/Constant_1_output_0")), 0),
    (plain("InstanceNormalization", "", "/m/I", ("/n/Constant_output_0", "/n/Constant_1_output_0")), 2),   # stored once for equal values
    (plain("InstanceNormalization", "", "/n/I", ("n.weight", "n.bias")), 2),
    (plain("InstanceNormalization", "", "", ("w", "b")), 2),
])
def test_ones_and_zeros_of_layers_without_parameters(proto: ModelProto, count: int) -> None:
    assert len(trained(proto)) == count


HOWS = ("torchscript training", "torchscript evaluation", "dynamo training", "dynamo evaluation")


@pytest.mark.parametrize("how", HOWS)
def test_trained_is_what_pytorch_trains(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name and shape, of a network of all normalisations, fresh, so that exporters store equal tensors once."""
    torch = needs("torch")
    import exported_networks as networks
    nn = torch.nn

    def make() -> Any:
        norms = [nn.GroupNorm(2, 8), nn.InstanceNorm2d(8, affine=True), nn.GroupNorm(4, 8, affine=False), nn.GroupNorm(2, 8), nn.InstanceNorm2d(8),
                 nn.GroupNorm(8, 8), nn.LayerNorm((7, 7)), nn.LayerNorm((7, 7), elementwise_affine=False), nn.GroupNorm(1, 8)]
        return nn.Sequential(nn.Conv2d(3, 8, 1, stride=5), *[part for norm in norms for part in (norm, nn.Conv2d(8, 8, 1))], nn.Flatten())
    monkeypatch.setitem(networks.NETWORKS, "norms", networks.Network(make))
    net = networks.network("norms", perturbed=False)
    assert trained(networks.export("norms", net, how)) == {n: tuple(p.shape) for n, p in net.named_parameters()}

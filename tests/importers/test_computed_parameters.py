"""Tensors that an exporter computed from parameters: what is trained of them, and that it is said; what else a file has lost."""
from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from exported_files import by_pytorch, called, f4, ones, signed, zeros
from onnx import ModelProto, load_from_string, numpy_helper
from onnx_models import imported, node, port
from peers import needs

from tileflow.importers.onnx import Imported

OPTIMIZE = "export with torch.onnx.export(..., dynamo=True, optimize=False), or with do_constant_folding=False."
AS_WEIGHTS = "Trained as weights of their own, although the exporter computed them from parameters: "
PERHAPS = "Trained as weights of their own, although the exporter computed them, perhaps from parameters: "
CONSTANTS = "Not trained, because the exporter computed them from parameters: "
UNREAD = "Nothing in the file reads these parameters of the network: "
IDLE = "Not trained, because no node of the file reads them, nor any like them: "
PADDING = "Trained with the row of padding, which PyTorch leaves as it is (padding_idx) and ONNX has no word for: "
INSTANCES = "Instance normalisation with running statistics, for which ONNX has no operator: "


def read(proto: ModelProto) -> Imported:
    return imported(proto, training=True)


def said(proto: ModelProto, beginning: str) -> list[str]:
    """The sentences that begin so, without their beginning."""
    return [text.removeprefix(beginning) for text in read(proto).warnings if text.startswith(beginning)]


def product(weight: str, call: str, sources: list[str] | None = None, bias: str = "fc.bias") -> ModelProto:
    """A product by a stored tensor, as torch.export's optimiser leaves it."""
    proto = by_pytorch([called(node("Gemm", ["x", weight, bias], ["y"], "node_linear", transB=1), "fc", call)], [port("x", [2, 4])],
                       {weight: f4(4, 4), bias: f4(4)})
    return signed(proto, ["fc.weight", "fc.scale", "fc.bias"], {} if sources is None else {weight: sources})


def test_a_weight_that_was_computed_is_trained_and_said() -> None:
    proto = product("mul", "linear(%x, %mul, %p_fc_bias)", ["fc.weight", "fc.scale", "val_0"])
    result = read(proto)
    assert {s.name: s.trainable for s in result.graph.parameters} == {"mul": True, "fc.bias": True}
    assert said(proto, AS_WEIGHTS) == [
        f"mul (fc.weight, fc.scale). What is trained is another network then. To keep the parameters, {OPTIMIZE}"]
    assert "PyTorch's parameter" not in result.verdicts["mul"].why
    assert not said(proto, UNREAD), "said already"


def test_a_computed_weight_beside_a_bias_of_another_name_is_no_parameter() -> None:
    """An exporter that stores equal biases once leaves the call's only parameter without its name: the weight is not it."""
    proto = product("mul", "linear(%x, %mul, %p_fc_bias)", ["fc.weight"], bias="other.bias")
    assert said(proto, AS_WEIGHTS)[0].startswith("mul (fc.weight).")
    assert read(proto).verdicts["other.bias"].why == "PyTorch's parameter fc.bias, in linear"


def test_calls_alone_show_it() -> None:
    assert said(product("mul", "linear(%x, %mul, %p_fc_bias)"), PERHAPS)[0].startswith("mul. ")


def test_a_weight_that_was_only_moved_is_a_parameter() -> None:
    """The nearest file in which nothing is lost."""
    proto = product("val_1", "linear(%x, %p_fc_weight, %p_fc_bias)", ["fc.weight"])
    result = read(proto)
    assert not [text for text in result.warnings if "computed" in text]
    assert result.verdicts["val_1"].why == "PyTorch's parameter fc.weight, in linear"


def test_what_was_computed_from_no_parameter_is_a_constant() -> None:
    proto = product("mul", "linear(%x, %mul, %p_fc_bias)", ["val_0", "fc.blur"])
    result = read(proto)
    assert [s.name for s in result.graph.parameters] == ["fc.bias"]
    assert result.verdicts["mul"].why == "computed from no parameter of the network"


@pytest.mark.parametrize(("sources", "sentences"), [
    (["w", "val_1"], [f"add_1 (w). To keep the parameters, {OPTIMIZE}"]), (["val_0", "val_1"], [])])
def test_one_plus_a_parameter(sources: list[str], sentences: list[str]) -> None:
    proto = by_pytorch([called(node("Mul", ["x", "add_1"], ["y"], "node_mul"), "norm", "mul(%x, %add_1)"),
                        called(node("Identity", ["fc.bias"], ["z"], "node_z"), "fc", "clone(%p_fc_bias)")],
                       [port("x", [2, 4])], {"add_1": f4(4), "fc.bias": f4(4)})
    proto = signed(proto, ["w", "fc.bias"], {"add_1": sources})
    assert said(proto, CONSTANTS) == sentences
    assert not read(proto).graph.parameters


def test_a_signature_that_is_not_the_names_own_says_nothing() -> None:
    """Other writers may put anything there."""
    proto = product("mul", "linear(%x, %mul, %p_fc_bias)", ["body"])
    proto.graph.metadata_props[0].value = "p_fc_weight: PARAMETER target='body'"
    assert not said(proto, AS_WEIGHTS)
    assert said(proto, PERHAPS)


def embeddings(tables: dict[str, str], norm: np.ndarray, *more: str) -> ModelProto:
    """Modules that read these tables, and a norm's scale, among `more` parameters in the signature."""
    nodes = [called(node("Gather", [table, f"ids{i}"], [f"e{i}"], f"node_{i}"), module,
                    f"embedding(%p_{table.replace('.', '_')}, %ids{i})") for i, (module, table) in enumerate(tables.items())]
    nodes += [node("Add", ["e0", "e1"], ["s"]), called(node("Mul", ["s", "input_norm.weight"], ["y"], "node_mul"), "input_norm",
                                                       "mul(%s, %p_input_norm_weight)")]
    weights = dict.fromkeys(tables.values(), f4(5, 4)) | {"input_norm.weight": norm}
    proto = by_pytorch(nodes, [port(f"ids{i}", [2, 3], "int64") for i in range(2)], weights)
    return signed(proto, [*more, *tables.values(), "input_norm.weight"], {})


@pytest.mark.parametrize(("norm", "more", "lost", "idle"), [
    (ones(4), ["output_norm.weight"], "output_norm.weight", ""), (f4(4), ["deep.norm.weight"], "", "deep.norm.weight"),
    (ones(4), ["output_norm.bias"], "", "output_norm.bias"), (ones(4), ["pooler.weight", "pooler.bias"], "", "pooler.weight, pooler.bias"),
    (f4(4), ["input_norm2.weight"], "input_norm2.weight", ""), (f4(4), [], "", ""),
    (ones(4), ["shared.weight", "decoder.tokens.weight"], "", ""), (ones(4), ["deep.shared.weight"], "", "deep.shared.weight")],
    ids=["equal", "of other values", "of another kind", "never used", "copied", "none", "tied", "elsewhere"])
def test_parameters_that_nothing_reads(norm: np.ndarray, more: list[str], lost: str, idle: str) -> None:
    """A merged layer's are lost. Not those of a module that reads another one's in its place and other names of that, which are ties; what the
    network may never have used is said apart."""
    proto = embeddings({"encoder.tokens": "head.weight", "head": "head.weight"}, norm, *more)
    assert [text.partition(". ")[0] for text in said(proto, UNREAD)] == [lost] * bool(lost)
    assert [text.partition(". ")[0] for text in said(proto, IDLE)] == [idle] * bool(idle)


def test_tables_of_equal_elements_are_no_tie() -> None:
    """Two modules that read one name, whose elements are all zero: as an exporter merges them."""
    proto = embeddings({"encoder.tokens": "head.weight", "head": "head.weight"}, f4(4), "shared.weight")
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(zeros(5, 4), "head.weight"))
    assert [text.partition(". ")[0] for text in said(proto, IDLE)] == ["shared.weight"]


def test_a_file_that_no_optimiser_saw_has_lost_nothing() -> None:
    proto = embeddings({"encoder.tokens": "head.weight", "head": "head.weight"}, ones(4), "output_norm.weight")
    proto.graph.node.append(node("Transpose", ["head.weight"], ["turned"], perm=[1, 0]))
    assert not said(proto, UNREAD)
    assert not said(proto, IDLE)


def test_a_zero_bias_beside_a_computed_weight_is_trained_again() -> None:
    """As that of wav2vec2's convolution of positions."""
    proto = by_pytorch([called(node("Conv", ["x", "mul"], ["y"], "node_conv"), "pos", "conv1d(%x, %mul, %p_pos_bias, [1], [1])")],
                       [port("x", [2, 4, 8])], {"mul": f4(6, 4, 1)})
    signed(proto, ["pos.weight", "pos.bias"], {"mul": ["pos.weight"]})
    result = read(proto)
    assert [s.name for s in result.graph.parameters] == ["mul", "pos.bias"]
    np.testing.assert_array_equal(result.weights["pos.bias"], zeros(6))


# ---- the older exporter ------------------------------------------------------------------------------------------------------

def older(op: str, weight: np.ndarray, name: str = "onnx::Gemm_5") -> ModelProto:
    arguments = {"transB": 1} if op == "Gemm" else {}
    return by_pytorch([node(op, ["x", name, *(["fc.bias"] if op == "Gemm" else [])], ["y"], f"/fc/{op}", **arguments)], [port("x", [2, 4])],
                      {name: weight} | ({"fc.bias": f4(6)} if op == "Gemm" else {}))


def unit(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize(("proto", "doubtful"), [
    (older("Gemm", f4(6, 4)), True), (older("Gemm", f4(6, 4), "fc.weight"), False), (older("MatMul", f4(4, 6)), False),
    (older("MatMul", unit(f4(6, 4)).T.copy()), True), (older("MatMul", np.eye(4, dtype=np.float32)[:, ::-1].copy()), False)],
    ids=["gemm", "named", "transposed", "normalised", "orthogonal"])
def test_where_only_names_and_elements_show_it(proto: ModelProto, doubtful: bool) -> None:
    """The older exporter keeps the name of a weight that it only reads; one that it transposes has none, and then rows of the length 1 show it."""
    assert bool(said(proto, PERHAPS)) == doubtful
    assert all(s.trainable for s in read(proto).graph.parameters)


def products(normed: Sequence[bool], opset: int, fold: bool = True, named: bool = False,
             fixed: bool = True) -> ModelProto:
    """Layers over three axes, which the older exporter writes as a MatMul by a transposed weight, some with weight
    normalisation; `named`: the output has a name, not a number. Not `fixed`: sizes are read from the input before the
    first layer."""
    torch = needs("torch")
    from exported_networks import quiet

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Linear(4, 4) for _ in normed]
            self.body = torch.nn.Sequential(*(part for layer, norm in zip(layers, normed, strict=True) for part in (
                torch.nn.utils.parametrizations.weight_norm(layer) if norm else layer, torch.nn.GELU())))

        def forward(self, x: Any) -> Any:
            return self.body(x if fixed else x.view(x.shape[0], x.shape[1], -1))
    file, names = io.BytesIO(), {"input_names": ["x"], "output_names": ["y"]} if named else {}
    with quiet():
        torch.onnx.export(Net(), (torch.zeros(2, 3, 4),), file, dynamo=False, opset_version=opset,
                          do_constant_folding=fold, **names,
                          dynamic_axes={"x" if named else "onnx::Shape_0": {0: "N"}} if not fixed else None)
    proto = load_from_string(file.getvalue())
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    return proto


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("normed", [(True,), (True, True), (True, False), (False, True, False), (False,),
                                    (False, False)], ids=str)
@pytest.mark.parametrize("opset", [13, 17])
def test_numbers_tell_a_computed_weight_from_a_transposed_one(normed: tuple[bool, ...], opset: int,
                                                              named: bool) -> None:
    """Below opset 18 the exporter folds weight normalisation and the transposition that any weight needs: what it
    computed took more steps. Before the first there is no other one, and a name of the output leaves the count of
    values, by which computed ones make the first doubtful."""
    proto = products(normed, opset, named=named)
    sentences = said(proto, PERHAPS)
    weights = [node.input[1] for node in proto.graph.node if node.op_type == "MatMul"]
    sure = [name for name, norm in zip(weights, normed, strict=True) if norm]
    doubtful = [weights[0], *sure] if named and any(normed) and not normed[0] else sure
    assert sentences == ([f"{', '.join(doubtful)}. What is trained is another network then. To keep the parameters, "
                          f"{OPTIMIZE}"] if sure else [])
    assert {*weights} < {s.name for s in read(proto).graph.parameters if s.trainable}


@pytest.mark.parametrize(("normed", "found"), [((True, True, True), [0, 1, 2]), ((False, True, False), [0, 1]),
                                               ((False, False), [])], ids=str)
def test_numbers_that_shapes_have_as_well(normed: tuple[bool, ...], found: list[int]) -> None:
    """The first weight stands behind sizes, whose folding takes numbers, too: alone it is no doubt, beside one that was
    computed it is."""
    proto = products(normed, 17, named=True, fixed=False)
    weights = [node.input[1] for node in proto.graph.node if node.op_type == "MatMul"]
    assert [text.partition(".")[0]
            for text in said(proto, PERHAPS)] == [", ".join(weights[i] for i in found)] * bool(found)


@pytest.mark.parametrize(("fold", "opset"), [(False, 17), (True, 18)])
def test_weight_normalisation_that_stays_in_the_file(fold: bool, opset: int) -> None:
    """As docs/exporting.md says: without the folding, or with an opset that it does not fold."""
    result = read(products((True,), opset, fold))
    assert [s.name.rpartition(".")[2] for s in result.graph.parameters] == ["bias", "original0", "original1"]
    assert not result.warnings


def test_vectors_of_spectral_normalisation_are_not_trained() -> None:
    nodes = [node("Identity", ["fc.weight_orig"], ["onnx::MatMul_9"], "Identity_0"),
             node("MatMul", ["onnx::MatMul_9", "fc.weight_v"], ["a"], "/MatMul"),
             node("MatMul", ["fc.weight_u", "a"], ["sigma"], "/MatMul_1"), node("Div", ["fc.weight_orig", "sigma"], ["w"], "/Div"),
             node("Gemm", ["x", "w"], ["y"], "/fc/Gemm", transB=1)]
    weights = {"fc.weight_orig": f4(6, 4), "fc.weight_u": f4(6), "fc.weight_v": f4(4)}
    proto = by_pytorch(nodes, [port("x", [2, 4])], weights)
    assert [s.name for s in read(proto).graph.parameters] == ["fc.weight_orig"]
    alone = by_pytorch([node("MatMul", ["x", "fc.weight_v"], ["y"], "/fc/MatMul")], [port("x", [2, 4])], {"fc.weight_v": f4(4, 6)})
    assert [s.name for s in read(alone).graph.parameters] == ["fc.weight_v"], "weight normalisation has a parameter of that name"


def frozen_norm(*absent: str, operator: bool = False) -> ModelProto:
    """A convolution and a batch normalisation by its running statistics, in arithmetic or as the operator, without some of its tensors."""
    weights = {f"bn.{name}": f4(3) ** 2 for name in ("weight", "bias", "running_mean", "running_var") if name not in absent}
    conv, *names = node("Conv", ["x", "conv.weight"], ["c"], "/conv/Conv"), *weights
    if operator:
        nodes = [node("BatchNormalization", ["c", *names], ["y"], "/bn/BatchNormalization")]
    else:
        ends = ["c", *(f"/bn/{i}" for i in range(len(names) - 1)), "y"]
        shape = node("Constant", [], ["shape"], "/bn/Constant", value=numpy_helper.from_array(np.array([1, -1, 1, 1])))
        nodes = [shape, *(made for i, name in enumerate(names) for made in (
            node("Reshape", [name, "shape"], [f"/bn/r{i}"], f"/bn/Reshape_{i}"),
            node("Mul" if i % 3 == 0 else "Add", [ends[i], f"/bn/r{i}"], [ends[i + 1]], f"/bn/{i}")))]
    return by_pytorch([conv, *nodes], [port("x", [2, 2, 4, 4])], {"conv.weight": f4(3, 2, 1, 1)} | weights)


FROZEN = "Not trained (of a batch normalisation that computes with its running statistics, as frozen ones do): "


def test_a_frozen_norms_buffers_are_not_trained() -> None:
    """Its weight and bias are called as parameters are; the older exporter says of no tensor which it is."""
    proto = frozen_norm()
    assert [s.name for s in read(proto).graph.parameters] == ["conv.weight"]
    assert said(proto, FROZEN) == ["bn.weight, bn.bias. To train them, use trainable."]
    assert [s.name for s in imported(proto, training=True, trainable=["bn.weight"]).graph.parameters] == ["conv.weight", "bn.weight"]


@pytest.mark.parametrize("proto", [frozen_norm("running_mean", "running_var"), frozen_norm("running_var"), frozen_norm(operator=True)],
                         ids=["scale and shift", "with a mean", "operator"])
def test_other_norms_are_trained(proto: ModelProto) -> None:
    assert [s.name for s in read(proto).graph.parameters] == ["conv.weight", "bn.weight", "bn.bias"]
    assert not said(proto, FROZEN)


@pytest.mark.parametrize("how", ["torchscript training", "dynamo training"])
@pytest.mark.parametrize("fresh", [True, False])
def test_frozen_norms_of_an_exporter(how: str, fresh: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers as torchvision writes them, whose buffers the older exporter merges where their first values are equal."""
    torch = needs("torch")
    from exported_networks import NETWORKS, Network, export, network

    class FrozenNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
                self.register_buffer(name, torch.full((4,), float(value)) if fresh else torch.rand(4) + 0.5)

        def forward(self, x: Any) -> Any:
            weight, bias, mean, variance = (b.reshape(1, -1, 1, 1) for b in (self.weight, self.bias, self.running_mean, self.running_var))
            scale = weight * (variance + 1e-5).rsqrt()
            return x * scale + (bias - mean * scale)

    def make() -> Any:
        layers = [(torch.nn.Conv2d(n, 4, 3, bias=False), FrozenNorm(), torch.nn.ReLU()) for n in (3, 4)]
        return torch.nn.Sequential(*(part for layer in layers for part in layer))
    monkeypatch.setitem(NETWORKS, "frozen", Network(make))
    proto = export("frozen", network("frozen", perturbed=False), how)
    assert [s.name for s in read(proto).graph.parameters if s.trainable] == ["0.weight", "3.weight"]
    assert len(said(proto, FROZEN)) == (how == "torchscript training")


# ---- layers in another form --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("call", "row"), [
    ("embedding(%p_e_weight, %ids, 2)", "row 2"), ("embedding(%p_e_weight, %ids)", ""), (None, "row 0, by its zeros")])
def test_rows_of_padding_are_said(call: str | None, row: str) -> None:
    gather, table = node("Gather", ["e.weight", "ids"], ["y"], "/e/Gather"), f4(5, 4)
    table[0] = 0
    proto = by_pytorch([called(gather, "e", call) if call else gather], [port("ids", [2, 3], "int64")], {"e.weight": table})
    assert said(proto, PADDING) == ([f"e.weight ({row}). If it must stay, set it again after training."] if row else [])


@pytest.mark.parametrize("statistics", [True, False])
def test_running_statistics_of_instances_are_said(statistics: bool) -> None:
    more = ", %b_n_running_mean, %b_n_running_var" if statistics else ", None, None"
    norm = node("InstanceNormalization", ["x", "n.weight", "n.bias"], ["y"], "node_norm")
    proto = by_pytorch([called(norm, "n", f"instance_norm(%x, %p_n_weight, %p_n_bias{more}, True)")], [port("x", [2, 4, 8])],
                       {"n.weight": f4(4), "n.bias": f4(4)})
    assert [text.partition(".")[0] for text in said(proto, INSTANCES)] == (["node_norm"] if statistics else [])


def test_groups_of_one_channel_each_have_no_reshape_behind() -> None:
    """As wav2vec2's first norm: in three axes an optimiser takes the Reshape away, and the numbers per channel are the parameters."""
    call = "group_norm(%x, 4, %p_n_weight, %p_n_bias, 1e-05, False)"
    nodes = [node("Reshape", ["x", "shape"], ["r"], "node_r"), node("InstanceNormalization", ["r", "val_1", "val_2"], ["i"], "node_i"),
             node("Mul", ["i", "val_3"], ["m"], "node_m"), node("Add", ["m", "val_4"], ["y"], "node_a")]
    weights = {"shape": np.array([0, 4, -1]), "val_1": np.ones(4, np.float32), "val_2": zeros(4), "val_3": f4(4, 1), "val_4": f4(4, 1)}
    proto = by_pytorch([called(made, "n", call) for made in nodes], [port("x", [2, 4, 8])], weights)
    sources = {"val_1": ["val_0"], "val_2": ["val_0"], "val_3": ["n.weight"], "val_4": ["n.bias"]}
    result = read(signed(proto, ["n.weight", "n.bias"], sources))
    assert {name: array.shape for name, array in result.weights.items()} == {"n.weight": (4,), "n.bias": (4,)}
    assert result.warnings == []

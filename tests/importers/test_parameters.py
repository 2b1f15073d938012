"""What a file's tensors are: parameters told apart that exporters stored as one, and constants that are not trained, in files as both of PyTorch's
exporters write them."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from exported_files import by_pytorch, called, f4, ones, scales, two_layers, written, zeros
from onnx import ModelProto, NodeProto, helper
from onnx_models import expected, imported, model_of, node, port, run, tensor

import tileflow
from tileflow.importers.onnx import export_model, import_graph, load_model, wrap_model
from tileflow.system.errors import OptionError


def trained(proto: ModelProto, **options: Any) -> dict[str, bool]:
    """The parameters by name, and whether they are trained."""
    return {s.name: s.trainable for s in imported(proto, training=True, **options).graph.parameters}


# ---- merged by the exporter ---------------------------------------------------------------------------------------------

def test_identities_of_a_merged_tensor_are_parameters(tmp_path: Path) -> None:
    proto = two_layers()
    assert trained(proto) == dict.fromkeys(["a.bias", "onnx::MatMul_7", "b.weight.T", "b.bias"], True)
    result, file = written(proto, tmp_path / "m.onnx", change=0.5)
    assert [t.name for t in file.graph.initializer] == ["a.bias", "onnx::MatMul_7", "b.bias", "b.weight.T"]
    assert [n.op_type for n in file.graph.node] == ["MatMul", "Add", "MatMul", "Add"]
    x = f4(2, 4)
    np.testing.assert_allclose(expected(file, {"x": x})[0], run(result, {"x": x})[0], rtol=1e-5)
    again = imported(file)
    assert set(again.weights) == set(result.weights)
    assert not again.model.ties.copies, "the written file has nothing left to tell apart"       # type: ignore[union-attr]


def test_said_in_one_line_with_the_names() -> None:
    notes = imported(two_layers(), training=True).warnings
    assert notes == ["2 parameters stored in one tensor with others, because their first values are equal, and trained on their own: "
                     "b.bias, b.weight.T."]
    assert imported(two_layers()).warnings == [], "inference does not train"


def cloned(scopes: Sequence[str], value: np.ndarray, producer: str = "pytorch", name: str = "onnx::MatMul_3") -> ModelProto:
    """One matrix read by products with these names."""
    nodes, last = [], "x"
    for i, scope in enumerate(scopes):
        result = "y" if i + 1 == len(scopes) else f"h{i}"
        nodes.append(node("MatMul", [last, name], [result], scope))
        last = result
    return model_of(nodes, [port("x", [2, 4])], ["y"], {name: value}, producer_name=producer)


@pytest.mark.parametrize(("scopes", "names"), [
    (["/layers.0/fc/MatMul", "/layers.1/fc/MatMul"], ["onnx::MatMul_3", "layers.1.fc.weight.T"]),          # copy.deepcopy of a layer
    (["/fc/MatMul", "/fc_1/MatMul", "/fc_2/MatMul"], ["onnx::MatMul_3"]),                                    # one module called three times
    (["/block/block.0/MatMul", "/block/block.0_1/MatMul"], ["onnx::MatMul_3"]),                               # in a container
    (["/groups.0/l.0/fc/MatMul", "/groups.0_1/l.0_1/fc_1/MatMul"], ["onnx::MatMul_3"]),                       # shared layers, as ALBERT's
    (["/w_1/MatMul", "/w_2/MatMul"], ["onnx::MatMul_3", "w_2.weight.T"]),                                     # modules that are called so
    (["/att/MatMul", "/att/MatMul_1"], ["onnx::MatMul_3"]),                                                   # twice in one module
])
def test_clones_are_told_from_calls(scopes: list[str], names: list[str]) -> None:
    assert list(trained(cloned(scopes, f4(4, 4)))) == names


def test_a_module_with_parameters_of_its_own_is_no_second_call() -> None:
    proto = cloned(["/fc/MatMul", "/fc_1/MatMul"], f4(4, 4))
    proto.graph.node[0].output[0] = "m"
    proto.graph.node.insert(1, node("Add", ["m", "fc_1.bias"], ["h0"], "/fc_1/Add"))
    proto.graph.initializer.append(tensor("fc_1.bias", f4(4)))
    assert sorted(trained(proto)) == ["fc_1.bias", "fc_1.weight.T", "onnx::MatMul_3"]


@pytest.mark.parametrize("producer", ["pytorch", "somebody"])
@pytest.mark.parametrize("scopes", [["/bn1/", "/bn2/"], ["", ""]])
def test_running_statistics_are_told_apart(producer: str, scopes: list[str]) -> None:
    """Means start as zeros and variances as ones, like biases and scales; ONNX Runtime's optimizer merges them, and takes the Identity nodes away."""
    def norm(scope: str, x: str, y: str) -> NodeProto:
        return node("BatchNormalization", [x, "bn1.weight", "bn1.bias", "bn1.bias", "bn1.weight"], [y], f"{scope}BatchNormalization")
    proto = model_of([norm(scopes[0], "x", "h"), norm(scopes[1], "h", "y")], [port("x", [2, 3, 4])], ["y"],
                     {"bn1.weight": ones(3), "bn1.bias": zeros(3)}, producer_name=producer)
    result = imported(proto, training=True)
    kinds = [s.kind for s in result.graph.states]
    assert (kinds.count("parameter"), kinds.count("buffer")) == ((4, 4) if scopes[0] else (2, 2))
    assert bool(scopes[0]) != any("does not say whether" in text for text in result.warnings)


# ---- genuine ties -------------------------------------------------------------------------------------------------------

def language_model(head: str) -> ModelProto:
    """An embedding and a head tied to it: 'transposed' in the graph, or 'folded' into a tensor of its own."""
    table = f4(6, 4)
    ids = [port("ids", [2, 3], "int64")]
    gather = node("Gather", ["wte.weight", "ids"], ["e"], "/wte/Gather")
    if head == "transposed":
        return by_pytorch([gather, node("Transpose", ["wte.weight"], ["t"], "/head/Transpose", perm=[1, 0]),
                           node("MatMul", ["e", "t"], ["y"], "/head/MatMul")], ids, {"wte.weight": table})
    return by_pytorch([gather, node("MatMul", ["e", "onnx::MatMul_5"], ["y"], "/head/MatMul")], ids,
                      {"wte.weight": table, "onnx::MatMul_5": np.ascontiguousarray(table.T)})


@pytest.mark.parametrize("head", ["transposed", "folded"])
def test_a_head_tied_to_an_embedding_stays_tied(head: str, tmp_path: Path) -> None:
    proto = language_model(head)
    assert list(trained(proto)) == ["wte.weight"]
    result, file = written(proto, tmp_path / "m.onnx", change=0.5)
    ids = np.array([[0, 1, 2], [3, 4, 5]])
    np.testing.assert_allclose(expected(file, {"ids": ids})[0], run(result, {"ids": ids})[0], rtol=1e-5)
    assert list(trained(file)) == ["wte.weight"]


def test_a_folded_tie_can_be_undone() -> None:
    proto = language_model("folded")
    assert imported(proto, training=True).warnings == [
        "One parameter in two tensors, trained as one: 'onnx::MatMul_5' is 'wte.weight' transposed."]
    assert list(trained(proto, untie=["onnx::MatMul_5"])) == ["wte.weight", "onnx::MatMul_5"]


# ---- what stays unknown -------------------------------------------------------------------------------------------------

def stripped() -> ModelProto:
    """Names without scopes."""
    return cloned(["MatMul_1", "MatMul_2"], f4(4, 4), name="w")


def test_unknown_ties_are_kept_and_said() -> None:
    result = imported(stripped(), training=True)
    assert [s.name for s in result.graph.parameters] == ["w"]
    assert result.warnings == ["The file does not say whether the readers of these share one parameter: w. Each is trained as one; "
                               "if it is several, use untie (--untie 'w')."]


def test_tie_and_untie_by_pattern(tmp_path: Path) -> None:
    assert list(trained(stripped(), untie=["w"])) == ["w", "w.MatMul_2"]
    assert sorted(trained(two_layers(), tie=["*.bias"])) == ["a.bias", "b.weight.T", "onnx::MatMul_7"]
    _, file = written(two_layers(), tmp_path / "m.onnx", change=0.5, tie=["*"])
    assert [t.name for t in file.graph.initializer] == ["a.bias", "onnx::MatMul_7"]


def test_tie_across_tensors(tmp_path: Path) -> None:
    value = f4(4, 4)
    proto = model_of([node("MatMul", ["x", "v"], ["h"], "MatMul_1"), node("MatMul", ["h", "w"], ["y"], "MatMul_2")], [port("x", [2, 4])], ["y"],
                     {"v": value, "w": value})
    assert list(trained(proto)) == ["v", "w"]
    result, file = written(proto, tmp_path / "m.onnx", change=0.5, tie=["?"])
    assert list(result.weights) == ["v"]
    for t in file.graph.initializer:
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(t), result.weights["v"])


@pytest.mark.parametrize(("options", "sentence"), [
    ({"untie": ["a.bias"]}, r"'a\.bias' of untie fits no weight that several nodes read"),
    ({"tie": ["a.*"]}, r"'a\.\*' of tie fits no weight that holds the same elements as another one it fits; the weights are a\.bias, "),
])
def test_patterns_that_change_nothing(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        imported(two_layers(), **options)


# ---- PyTorch's metadata -------------------------------------------------------------------------------------------------

def test_metadata_tell_parameters_from_buffers_and_constants() -> None:
    result = imported(scales(), training=True)
    assert [s.name for s in result.graph.states] == ["gamma1", "block.gamma2"]
    assert {n: v.kind for n, v in result.verdicts.items()} == {
        "gamma1": "parameter", "block.gamma2": "parameter", "block.shift": "constant", "gamma1.constant": "constant", "val_2": "constant"}


def test_names_as_the_network_writes_them() -> None:
    """torch.export flattens and lowers names; the module gives them back."""
    def norm(i: int, x: str, y: str) -> NodeProto:
        call = f"layer_norm(%x, [4], %p_enc_layer_{i}_layernorm_weight, %p_enc_layer_{i}_layernorm_bias, 1e-05, False)"
        return called(node("LayerNormalization", [x, "enc.layer.0.LayerNorm.weight", "enc.layer.0.LayerNorm.bias"], [y], f"n{i}"),
                      f"enc.layer.{i}.LayerNorm", call)
    proto = by_pytorch([norm(0, "x", "h"), norm(1, "h", "y")], [port("x", [2, 4])],
                       {"enc.layer.0.LayerNorm.weight": ones(4), "enc.layer.0.LayerNorm.bias": zeros(4)})
    assert list(trained(proto)) == [f"enc.layer.{i}.LayerNorm.{word}" for i, word in ((0, "weight"), (0, "bias"), (1, "weight"), (1, "bias"))]


def packed(merged: bool) -> ModelProto:
    """Two attentions add parts of a packed bias that was stored once; the optimizer left Split without metadata, and may have made one of two."""
    def adds(i: int, part: str, x: str, y: str) -> NodeProto:
        return called(node("Add", [x, part], [y], f"node_add_{i}"), f"layers.{i}.attn", f"add(%x, %split_{i})")
    splits = [node("Split", ["layers.0.attn.in_proj_bias", "sizes"], [f"s{i}", f"t{i}"], f"node_Split_{i}", axis=0)
              for i in range(1 if merged else 2)]
    return by_pytorch([*splits, adds(0, "s0", "x", "h"), adds(1, "t0" if merged else "s1", "h", "y")], [port("x", [2, 4])],
                      {"layers.0.attn.in_proj_bias": zeros(8), "sizes": np.array([4, 4])})


def test_a_node_without_scope_belongs_to_its_readers() -> None:
    assert list(trained(packed(False))) == ["layers.0.attn.in_proj_bias", "layers.1.attn.in_proj_bias"]


def test_a_node_that_reads_for_several_modules_is_said() -> None:
    result = imported(packed(True), training=True)
    assert [s.name for s in result.graph.parameters] == ["layers.0.attn.in_proj_bias"]
    assert result.warnings[0].startswith("Trained as one for several modules, because the exporter made one node of theirs: "
                                         "layers.0.attn.in_proj_bias. To tell them apart, export with torch.onnx.export(")


def test_a_folded_part_of_a_bias_is_a_bias() -> None:
    """In evaluation TorchScript cuts packed projections into numbered parts; what is added to scores is no bias of a product."""
    proto = by_pytorch([node("MatMul", ["x", "onnx::MatMul_1"], ["q"], "/attn/MatMul"), node("Add", ["onnx::Add_2", "q"], ["b"], "/attn/Add"),
                        node("Transpose", ["b"], ["k"], "/attn/Transpose", perm=[1, 0]), node("MatMul", ["b", "k"], ["s"], "/attn/MatMul_1"),
                        node("Add", ["s", "onnx::Add_3"], ["y"], "/attn/Add_1")], [port("x", [3, 4])],
                       {"onnx::MatMul_1": f4(4, 5), "onnx::Add_2": zeros(5), "onnx::Add_3": zeros(3)})
    assert list(trained(proto)) == ["onnx::MatMul_1", "onnx::Add_2"]


def test_tensorflow_numbers_layers_and_not_calls() -> None:
    """dense_1 is a layer of its own; tf2onnx merges equal constants, too."""
    def dense(i: str, x: str, y: str) -> list[NodeProto]:
        return [node("MatMul", [x, f"model/dense{i}/MatMul/ReadVariableOp:0"], [f"m{i}"], f"model/dense{i}/MatMul"),
                node("Add", [f"m{i}", "model/dense/BiasAdd/ReadVariableOp:0"], [y], f"model/dense{i}/BiasAdd")]
    proto = model_of([*dense("", "x", "h"), *dense("_1", "h", "y")], [port("x", [2, 4])], ["y"],
                     {"model/dense/MatMul/ReadVariableOp:0": f4(4, 4), "model/dense_1/MatMul/ReadVariableOp:0": f4(4, 4),
                      "model/dense/BiasAdd/ReadVariableOp:0": zeros(4)}, producer_name="tf2onnx")
    assert len(trained(proto)) == 4


def test_a_shared_weight_that_was_folded_twice_is_one() -> None:
    value = f4(4, 4)
    proto = by_pytorch([called(node("MatMul", ["x", "val_1"], ["h"], "m1"), "ffn", "linear(%x, %p_ffn_weight)"),
                        called(node("MatMul", ["h", "val_9"], ["y"], "m2"), "ffn", "linear(%h, %p_ffn_weight)")],
                       [port("x", [2, 4])], {"val_1": value, "val_9": value.copy()})
    assert list(trained(proto)) == ["val_1"]


def test_a_bias_that_was_dropped_as_zero_is_trained_again(tmp_path: Path) -> None:
    proto = by_pytorch([called(node("Gemm", ["x", "fc.weight"], ["y"], "g", transB=1), "fc", "linear(%x, %p_fc_weight, %p_fc_bias)")],
                       [port("x", [2, 4])], {"fc.weight": f4(3, 4)})
    result, file = written(proto, tmp_path / "m.onnx", change=0.5, training=True)
    assert {n: w.shape for n, w in result.weights.items()} == {"fc.weight": (3, 4), "fc.bias": (3,)}
    assert "1 parameter that the exporter dropped because it is zero, and trained again: fc.bias." in result.warnings
    x = f4(2, 4)
    np.testing.assert_allclose(expected(file, {"x": x})[0], x @ result.weights["fc.weight"].T + result.weights["fc.bias"], rtol=1e-5)


def test_parameters_that_the_exporter_lost_are_named() -> None:
    proto = by_pytorch([called(node("Add", ["x", "embedding_1"], ["h"], "a"), "emb", "add(%x, %embedding_1)"),
                        called(node("Mul", ["h", "exp"], ["y"], "m"), "", "mul_scaled(%h, %exp, %p_logit_scale)")],
                       [port("x", [2, 4])], {"embedding_1": f4(2, 4), "exp": np.float32(1.5)})
    notes = imported(proto, training=True).warnings
    assert len(notes) == 2
    assert notes[0].startswith("Not trained, because the exporter computed them, perhaps from parameters: embedding_1, exp. To keep ")
    assert notes[1].startswith("The exporter dropped 1 parameter, or folded it into constants, so it is not trained: logit_scale. ")


# ---- plain arithmetic ---------------------------------------------------------------------------------------------------

CAUSAL = np.triu(np.full((4, 4), -np.inf, np.float32), 1)


def test_a_parameter_that_is_cloned_is_one() -> None:
    """Dropout of a parameter in evaluation is a clone, whose readers know of a result only; DeBERTa's relative positions were not trained."""
    def proto(stored: str, argument: str = "p_enc_rel_weight") -> ModelProto:
        made = [called(node("Identity", [stored], ["c"], "node_clone"), "enc.drop", f"clone(%{argument},)"),
                called(node("Unsqueeze", ["c", "zero"], ["u"], "node_unsqueeze"), "enc", "unsqueeze(%clone, 0)"),
                called(node("Mul", ["x", "u"], ["y"], "node_mul"), "enc", "mul(%x, %unsqueeze)")]
        return by_pytorch(made, [port("x", [1, 2, 4])], {stored: f4(2, 4), "zero": np.array([0])})
    found = imported(proto("enc.rel.weight"), training=True)
    assert found.verdicts["enc.rel.weight"].kind == "parameter"
    assert found.warnings == []
    assert imported(proto("val_3"), training=True).verdicts["val_3"].kind == "constant", "nothing says that this is it"
    constant = imported(proto("enc.lifted_tensor_0", "c_enc_lifted_tensor_0"), training=True)
    assert constant.verdicts["enc.lifted_tensor_0"].kind == "constant"
    assert constant.warnings == []


@pytest.mark.parametrize("biases", [True, False])
def test_recurrent_layers_hold_their_parameters_stacked(biases: bool) -> None:
    """Two layers in two directions, folded: sixteen parameters in six tensors. Ten of them were said to be lost."""
    kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[:4 if biases else 2]
    listed = ", ".join(f"%p_rnn_{kind}_l{layer}{way}" for layer in (0, 1) for way in ("", "_reverse") for kind in kinds)
    call = f"lstm.input(%x, [%zeros, %zeros], [{listed}], {biases}, 2)"
    shapes = {"w": (2, 12, 3), "r": (2, 12, 3), "b": (2, 24)}
    weights = {f"{kind}{layer}": f4(*(shapes[kind] if (kind, layer) != ("w", 1) else (2, 12, 6)))
               for layer in (0, 1) for kind in ("wrb" if biases else "wr")}
    made = [called(node("LSTM", [x, *(f"{kind}{layer}" for kind in ("wrb" if biases else "wr"))], [y], f"l{layer}", hidden_size=3,
                        direction="bidirectional"), "rnn", call) for layer, x, y in ((0, "x", "h"), (1, "t", "g"))]
    turn = [node("Transpose", ["h"], ["p"], "turn", perm=[0, 2, 1, 3]), node("Reshape", ["p", "six"], ["t"], "join")]
    shown = node("ReduceSum", ["g", "one"], ["y"], "sum", keepdims=0)
    proto = by_pytorch([made[0], *turn, made[1], shown], [port("x", [4, 2, 3])], {**weights, "six": np.array([4, 2, 6]), "one": np.array([1])})
    found = imported(proto, training=True)
    assert not [w for w in found.warnings if "dropped" in w]
    assert found.verdicts["w1"].why.startswith("PyTorch's parameter rnn.weight_ih_l1,")
    assert found.verdicts["r0"].why.startswith("PyTorch's parameter rnn.weight_hh_l0,")
    lost = by_pytorch([made[0], node("ReduceSum", ["h", "one"], ["y"], "sum", keepdims=0)], [port("x", [4, 2, 3])],
                      {**{n: w for n, w in weights.items() if n.endswith("0")}, "one": np.array([1])})
    assert [w for w in imported(lost, training=True).warnings if "dropped" in w], "a layer that is not there"


@pytest.mark.parametrize(("op", "name", "value", "kind", "doubtful"), [
    ("Add", "w", f4(4), "parameter", False),                                      # a bias or a scale
    ("Mul", "scale", np.float32(0.5), "constant", False),                         # an attention's scale
    ("Add", "w", CAUSAL, "constant", False),                                      # what blocks, by -inf
    ("Add", "w", np.where(CAUSAL < 0, np.finfo(np.float32).min, 0), "constant", False),
    ("Mul", "w", (CAUSAL == 0).astype(np.float32), "constant", False),            # zeros and ones
    ("Add", "pos", f4(4, 4), "parameter", True),                                  # a position embedding, or a table
    ("Mul", "rotary.cos_cached", f4(4, 4), "constant", True),
    ("Sub", "mean", f4(1, 4), "constant", True),                                  # a normalisation of the inputs
    ("Add", "onnx::Add_12", f4(4, 4), "constant", True),                          # computed by the exporter, perhaps from a table of biases
    ("Add", "onnx::Add_12", zeros(4, 4), "constant", True),
    ("Mul", "onnx::Mul_12", np.float32(0.5), "constant", False),
    ("Add", "/att/Constant_3_output_0", f4(4, 4), "constant", True),
    ("Max", "const_fold_opt__287", f4(1, 1), "constant", False),                  # as TensorFlow's converters write one number
    ("Mul", "gelu/mul/y:0", f4(1), "constant", False),
    ("Mul", "alpha", f4(1), "constant", True),
    ("Min", "w", f4(4), "constant", True),
    ("Pow", "w", np.full(4, 2, np.float32), "constant", False),
    ("MatMul", "onnx::MatMul_12", f4(4, 4), "parameter", False),
    ("PRelu", "onnx::PRelu_12", f4(1), "parameter", False),
])
def test_arithmetic_is_decided_by_contents_and_names(op: str, name: str, value: np.ndarray, kind: str, doubtful: bool) -> None:
    result = imported(model_of([node(op, ["x", name], ["y"], "n")], [port("x", [4, 4])], ["y"], {name: value}), training=True)
    assert (result.verdicts[name].kind, bool(result.verdicts[name].doubt)) == (kind, doubtful)
    assert result.verdicts[name].why
    assert [s.name for s in result.graph.parameters] == [name] * (kind == "parameter")
    assert len(result.warnings) == doubtful


@pytest.mark.parametrize(("value", "op"), [(np.float32(2.5), "Exp"), (f4(1, 1, 4), "Expand"), (f4(1, 4, 4), "Add")])
def test_names_of_modules_count_in_torchscript(value: np.ndarray, op: str) -> None:
    """A learned temperature, a class token, a position embedding."""
    nodes = {"Exp": [node("Exp", ["p"], ["e"], "/Exp"), node("Mul", ["x", "e"], ["y"], "/Mul")],
             "Expand": [node("Expand", ["p", "shape"], ["e"], "/Expand"), node("Concat", ["e", "x"], ["y"], "/Concat", axis=1)],
             "Add": [node("Add", ["x", "p"], ["y"], "/Add")]}[op]
    proto = by_pytorch(nodes, [port("x", [2, 4, 4])], {"p": value, "shape": np.array([2, 1, 4])})
    assert list(trained(proto)) == ["p"]


def test_a_bias_behind_a_product_is_none_of_the_doubtful() -> None:
    """TensorFlow's convolutions add their bias behind a transpose."""
    proto = model_of([node("Conv", ["x", "k"], ["c"], "conv"), node("Transpose", ["c"], ["t"], "back", perm=[0, 2, 3, 1]),
                      node("Add", ["t", "b"], ["y"], "add")], [port("x", [1, 2, 4, 4])], ["y"], {"k": f4(3, 2, 1, 1), "b": f4(1, 1, 1, 3)})
    result = imported(proto, training=True)
    assert result.verdicts["b"].why == "the bias of Conv"
    assert result.warnings == []


def test_the_user_overrules() -> None:
    proto = model_of([node("Mul", ["x", "temperature"], ["h"]), node("MatMul", ["h", "w"], ["m"]), node("Add", ["m", "mask"], ["y"])],
                     [port("x", [4, 4])], ["y"], {"temperature": np.float32(2), "w": f4(4, 4), "mask": CAUSAL})
    assert trained(proto) == {"w": True}
    assert trained(proto, freeze=["*"], trainable=["temperature"]) == {"temperature": True, "w": False}
    assert trained(proto, trainable=["*"]) == {"w": True}, "a pattern that fits parameters is not about constants"


# ---- where renaming must not reach --------------------------------------------------------------------------------------

def test_branches_keep_what_they_read(tmp_path: Path) -> None:
    """A tensor read inside of a branch keeps its name there; the written file is valid."""
    then = helper.make_graph([node("Add", ["x", "b.bias"], ["t"], "/b/Add")], "then", [], [port("t", [2, 4])])
    other = helper.make_graph([node("Sub", ["x", "b.bias"], ["e"], "/b/Sub")], "else", [], [port("e", [2, 4])])
    proto = by_pytorch([node("Identity", ["a.bias"], ["b.bias"]), node("If", ["yes"], ["h"], then_branch=then, else_branch=other),
                        node("Add", ["h", "a.bias"], ["y"], "/a/Add")], [port("x", [2, 4])], {"a.bias": zeros(4), "yes": np.array(True)})
    result, file = written(proto, tmp_path / "m.onnx", change=0.5)
    x = f4(2, 4)
    np.testing.assert_allclose(expected(file, {"x": x})[0], run(result, {"x": x})[0], rtol=1e-5)


def test_weights_that_an_exporter_keeps_in_constant_nodes(tmp_path: Path) -> None:
    """Paddle's files have no initializers; where a file has weights among them, what is in nodes is a constant as before."""
    def proto(**weights: Any) -> ModelProto:
        nodes = [node("Constant", [], ["fc.w_0"], value=tensor("", f4(4, 4))), node("Constant", [], ["fc.b_0"], value=tensor("", zeros(4))),
                 node("Constant", [], ["three"], value=tensor("", np.float32(3))),
                 node("MatMul", ["x", "fc.w_0"], ["p"]), node("Add", ["p", "fc.b_0"], ["a"]),
                 node("Mul", ["a", "three"], ["m" if weights else "y"])]
        return model_of([*nodes, *[node("MatMul", ["m", "w"], ["y"])] * len(weights)], [port("x", [2, 4])], [port("y", [2, 4])], weights)
    assert trained(proto()) == {"fc.w_0": True, "fc.b_0": True}
    assert trained(proto(w=f4(4, 4))) == {"w": True}
    result, file = written(proto(), tmp_path / "m.onnx")
    x = f4(2, 4)
    np.testing.assert_allclose(expected(file, {"x": x})[0], run(result, {"x": x})[0], rtol=1e-5)


def test_old_files_list_new_initializers_as_inputs(tmp_path: Path) -> None:
    proto = two_layers()
    proto.ir_version = 3
    for name in ("a.bias", "onnx::MatMul_7"):
        proto.graph.input.append(port(name, [4] if name == "a.bias" else [4, 4]))
    proto.opset_import[0].version = 8
    _, file = written(proto, tmp_path / "m.onnx")
    assert [v.name for v in file.graph.input] == ["x", "a.bias", "onnx::MatMul_7", "b.bias", "b.weight.T"]


def test_external_weights_are_written_for_each_parameter(tmp_path: Path) -> None:
    proto = two_layers()
    onnx.save(proto, tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0)
    from tileflow.importers.onnx import import_graph
    result = import_graph(load_model(tmp_path / "in.onnx"))
    weights = {name: array + i for i, (name, array) in enumerate(result.weights.items())}
    export_model(result.model, weights, tmp_path / "out.onnx")
    again = load_model(tmp_path / "out.onnx")
    for name, array in weights.items():
        np.testing.assert_array_equal(again.array(name), array)


def test_files_without_merges_stay_as_they_are(tmp_path: Path) -> None:
    proto = model_of([node("Identity", ["b"], ["alias"]), node("Gemm", ["x", "w", "alias"], ["y"])], [port("x", [2, 4])], ["y"],
                     {"w": f4(4, 3), "b": f4(3)})
    _, file = written(proto, tmp_path / "m.onnx")
    assert file == proto
    assert wrap_model(proto).nodes == proto.graph.node


# ---- models of one file -------------------------------------------------------------------------------------------------

def test_all_models_of_a_file_have_the_same_parameters() -> None:
    """Inference runs the weights that training changed: ties undone by an option, and a constant that was made a parameter."""
    proto = model_of([node("Mul", ["x", "temperature"], ["h"]), node("MatMul", ["h", "w"], ["m"], "MatMul_1"),
                      node("MatMul", ["m", "w"], ["y"], "MatMul_2")],
                     [port("x", [2, 4])], [port("y", [2, 4])], {"temperature": np.float32(1), "w": f4(4, 4)})
    model, x = wrap_model(proto), f4(2, 4)
    trainer = tileflow.training_model(model, loss="mse", optimizer="sgd", learning_rate=0.01, untie="w", trainable=["temperature", "w*"],
                                      micro_batch_size=2)
    runner = tileflow.inference_model(model, micro_batch_size=2)
    np.testing.assert_allclose(runner(x), expected(proto, {"x": x})[0], rtol=1e-5)
    for _ in range(3):
        trainer(x, f4(2, 4))
    session = trainer.source.session
    assert session["temperature"] != 1
    assert not np.array_equal(session["w"], session["w.MatMul_2"])
    np.testing.assert_allclose(runner(x), x * session["temperature"] @ session["w"] @ session["w.MatMul_2"], rtol=1e-4)
    with pytest.raises(OptionError, match=r"in use with tie=.* and untie=.'w'.*load the file anew"):
        tileflow.training_model(model, loss="mse", tie="x")


def test_the_trained_file_is_that_of_the_parameters(tmp_path: Path) -> None:
    onnx.save(two_layers(), tmp_path / "m.onnx")
    result = tileflow.train(tmp_path / "m.onnx", data=(f4(8, 4), f4(8, 4)), loss="mse", micro_batch_size=2, out=str(tmp_path / "run"), untie=[])
    assert not np.array_equal(result.weights["a.bias"], result.weights["b.bias"])
    file = load_model(tmp_path / "run" / "model.onnx")
    for name, array in result.weights.items():
        np.testing.assert_array_equal(file.array(name), array)


def test_scales_of_quantised_weights_are_not_trained() -> None:
    """Bytes are constants, so a file of bytes alone has nothing to train, and says so; weights that are quantised on their way are trained."""
    nodes = [helper.make_node("DequantizeLinear", ["bytes", "scale"], ["w"], axis=1), helper.make_node("MatMul", ["x", "w"], ["h"]),
             helper.make_node("QuantizeLinear", ["float", "step"], ["q"]), helper.make_node("DequantizeLinear", ["q", "step"], ["d"]),
             helper.make_node("MatMul", ["h", "d"], ["y"])]
    arrays = {"bytes": np.ones((3, 4), np.int8), "scale": np.linspace(0.1, 0.2, 4, dtype=np.float32), "step": np.array(0.1, np.float32),
              "float": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)}
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3])],
                              [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 2])],
                              [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items()])
    model = wrap_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    found = import_graph(model, training=True)
    assert {name for name, verdict in found.verdicts.items() if verdict.kind == "parameter"} == {"float"}
    assert "a scale of quantised numbers" in found.verdicts["scale"].why

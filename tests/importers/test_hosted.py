"""Operators that Python runs: ONNX's own cases, and what they do not say."""
from __future__ import annotations

import random
import re
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from effort import at_most

from tileflow.importers.onnx.hosted import Attributes, hosted_form
from tileflow.importers.onnx.hosted.patterns import matcher
from tileflow.system.errors import (
    DataError,
    ModelError,
    OutOfMemoryError,
    ShapeError,
    TypeMismatchError,
    UnsupportedError,
)


def run(name: str, *data: Any, outputs: int = 1, **attributes: Any) -> Any:
    """An operator's outputs, or its one output."""
    schema = onnx.defs.get_schema(name)
    defaults = {k: onnx.helper.get_attribute_value(a.default_value) for k, a in schema.attributes.items() if a.default_value.name}
    given = {k: v.decode() if isinstance(v, bytes) else v for k, v in {**defaults, **attributes}.items()}
    form = hosted_form(name)
    assert form is not None
    found = form.function(Attributes(given, f"{name} node 'n'", onnx.defs.onnx_opset_version(), ["y"] * outputs), *data)
    return found[0] if len(found) == 1 else found


def of_texts(*words: Any) -> np.ndarray:
    return np.array(words, object)


def test_nonzero():
    x = np.array([[1, 0, 2], [0, 3, 0]], np.float32)
    assert run("NonZero", x).tolist() == [[0, 0, 1], [0, 2, 1]]
    assert run("NonZero", np.array(5)).tolist() == [[0]]
    assert run("NonZero", np.zeros((0, 3, 2))).shape == (3, 0)
    assert run("NonZero", np.array([np.nan, 0, -0.0])).tolist() == [[0]]


def test_compress():
    x = np.arange(6).reshape(3, 2)
    assert run("Compress", x, np.array([False, True]), axis=0).tolist() == [[2, 3]]
    assert run("Compress", x, np.array([True, False, True]), axis=-2).tolist() == [[0, 1], [4, 5]]
    assert run("Compress", x, np.array([False, True, False, False, True])).tolist() == [1, 4]
    with pytest.raises(IndexError):
        run("Compress", x, np.array([False, False, True]), axis=1)


@pytest.mark.parametrize("sort", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique_gives_back_what_it_was_given(axis: int | None, sort: int):
    x = np.random.default_rng(0).integers(0, 2, (5, 3))
    more = {} if axis is None else {"axis": axis}
    y, first, which, counts = run("Unique", x, outputs=4, sorted=sort, **more)
    flat = x.reshape(-1) if axis is None else x
    np.testing.assert_array_equal(np.take(y, which, axis=axis or 0), flat)
    np.testing.assert_array_equal(np.take(flat, first, axis=axis or 0), y)
    assert counts.sum() == flat.shape[axis or 0]
    assert (first.tolist() == sorted(first.tolist())) or sort
    assert run("Unique", of_texts("b", "a", "b"), sorted=sort)[0].tolist() == (["a", "b"] if sort else ["b", "a"])


def slow_suppression(boxes: np.ndarray, scores: np.ndarray, most: int, limit: float, least: float | None) -> list[list[int]]:
    """Pair by pair, in float32."""
    kept = []
    for batch in range(len(boxes)):
        for label in range(scores.shape[1]):
            chosen: list[int] = []
            order = sorted(range(boxes.shape[1]), key=lambda i: (-scores[batch, label, i], i))
            for i in order:
                if len(chosen) == most or (least is not None and not scores[batch, label, i] > np.float32(least)):
                    break
                if not any(_over(boxes[batch, i], boxes[batch, j]) > np.float32(limit) for j in chosen):
                    chosen.append(i)
            kept += [[batch, label, i] for i in chosen]
    return kept


def _over(a: np.ndarray, b: np.ndarray) -> float:
    a, b = (np.array([*np.minimum(c[:2], c[2:]), *np.maximum(c[:2], c[2:])]) for c in (a, b))
    sides = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0)
    shared, area = sides[0] * sides[1], [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    return shared / (area[1] + area[0] - shared) if shared > 0 else 0


@pytest.mark.parametrize("seed", range(6))
def test_non_max_suppression(seed: int):
    draw = np.random.default_rng(seed)
    boxes = draw.random((2, 40, 4), np.float32)
    scores = np.round(draw.random((2, 3, 40), np.float32), 1)                   # with ties
    least = [None, 0.35][seed % 2]
    found = run("NonMaxSuppression", boxes, scores, np.array([5 + seed]), np.array([0.1 * seed], np.float32),
                None if least is None else np.array([least], np.float32))
    assert found.dtype == np.int64
    assert found.tolist() == slow_suppression(boxes, scores, 5 + seed, 0.1 * seed, least)
    assert run("NonMaxSuppression", boxes, scores).shape == (0, 3)
    with pytest.raises(ShapeError, match="they must be"):
        run("NonMaxSuppression", boxes, scores[:, :, :3], np.array(4))


def test_sequences():
    a, b, c = (np.full(2, i, np.float32) for i in range(3))
    whole = run("SequenceConstruct", a, b)
    longer = run("SequenceInsert", whole, c, np.array(0))
    assert [x[0] for x in longer] == [2, 0, 1]
    assert len(whole) == 2, "sequences are values: what an operator got stays"
    assert [x[0] for x in run("SequenceInsert", whole, c, np.array([-1]))] == [0, 2, 1]
    assert [x[0] for x in run("SequenceInsert", whole, c, np.array(2))] == [0, 1, 2]
    assert [x[0] for x in run("SequenceErase", longer, np.array(1))] == [2, 1]
    assert [x[0] for x in run("SequenceErase", longer)] == [2, 0]
    assert run("SequenceAt", longer, np.array(-1)) is b
    assert run("SequenceLength", longer) == 3
    assert run("SequenceEmpty") == []
    with pytest.raises(ShapeError, match="takes place 3 of a sequence of 3"):
        run("SequenceAt", longer, np.array(3))
    assert run("ConcatFromSequence", longer, axis=0).shape == (6,)
    assert run("ConcatFromSequence", longer, axis=-1, new_axis=1).shape == (2, 3)
    with pytest.raises(DataError, match="empty"):
        run("ConcatFromSequence", [], axis=0)
    x = np.arange(10).reshape(2, 5)
    assert [p.shape for p in run("SplitToSequence", x, np.array(2), axis=1)] == [(2, 2), (2, 2), (2, 1)]
    assert [p.shape for p in run("SplitToSequence", x, np.array([4, 1]), axis=-1)] == [(2, 4), (2, 1)]
    assert [p.shape for p in run("SplitToSequence", x, axis=0, keepdims=0)] == [(5,), (5,)]
    for sizes in (np.array([1, 1]), np.array(0), np.array([6, -1])):
        with pytest.raises(ShapeError, match="splits 5 elements"):
            run("SplitToSequence", x, sizes, axis=1)


def test_optionals():
    x = np.ones(2)
    assert run("OptionalHasElement", run("Optional", x))
    assert not run("OptionalHasElement", run("Optional"))
    assert run("OptionalGetElement", run("Optional", [x])) == [x]
    with pytest.raises(DataError, match="empty"):
        run("OptionalGetElement", None)


def test_texts():
    assert run("StringConcat", of_texts("a", "b"), np.array("ß", object)).tolist() == ["aß", "bß"]
    parts, counts = run("StringSplit", of_texts("a  b", "", "c d e"), outputs=2)
    assert parts.tolist() == [["a", "b", ""], ["", "", ""], ["c", "d", "e"]]
    assert counts.tolist() == [2, 0, 3]
    assert run("StringSplit", of_texts("a,,b"), delimiter=",", maxsplit=1)[0].tolist() == [["a", ",b"]]
    assert run("StringSplit", np.empty((0, 2), object))[0].shape == (0, 2, 0)
    assert run("StringNormalizer", of_texts("The", "É"), stopwords=["the"], case_change_action="LOWER").tolist() == ["é"]
    assert run("StringNormalizer", of_texts("The", "the"), stopwords=["the"], is_case_sensitive=1).tolist() == ["The"]
    assert run("StringNormalizer", np.array([["x"]], object), stopwords=["X"]).tolist() == [[""]]
    with pytest.raises(UnsupportedError, match="the locale 'tr_TR'"):
        run("StringNormalizer", of_texts("I"), case_change_action="LOWER", locale="tr_TR")
    assert run("Equal", of_texts("a", "b"), of_texts("a")).tolist() == [True, False]
    assert run("Concat", of_texts("a"), of_texts("b", "c"), axis=0).tolist() == ["a", "b", "c"]
    assert run("Gather", of_texts("a", "b"), np.array([1, 0])).tolist() == ["b", "a"]
    assert run("Reshape", of_texts("a", "b"), np.array([1, -1])).shape == (1, 2)
    with pytest.raises(TypeMismatchError, match="texts are wanted"):
        run("StringConcat", np.ones(2), np.ones(2))
    with pytest.raises(OutOfMemoryError, match="Tile node"):
        run("Tile", of_texts("a"), np.array([1 << 50]))


def test_casts_of_texts():
    to = onnx.TensorProto
    x = np.array([0.1, 1e-30, np.nan, -np.inf, 3], np.float32)
    assert run("Cast", run("Cast", x, to=to.STRING), to=to.FLOAT).tobytes() == x.tobytes()
    assert run("Cast", np.array([[True]]), to=to.STRING).tolist() == [["True"]]
    assert run("Cast", of_texts("9223372036854775807", "-1"), to=to.INT64).tolist() == [2**63 - 1, -1]
    assert run("Cast", of_texts("INF", "1e2"), to=to.DOUBLE).tolist() == [np.inf, 100]
    assert run("CastLike", of_texts("3"), np.zeros((), np.int8)).dtype == np.int8
    with pytest.raises(DataError, match="reads 'word' as a number"):
        run("Cast", of_texts("word"), to=to.FLOAT)


PATTERNS = (r"a*b", r"(a|b)*c?", r"[^a]b{2,3}", r"\d+(\.\d*)?", r"(?i)aB[c-e]", r"\w+@\w+\.(com|org)", r"a.", r"(?s)a.*", r"^a\b.*$", r"",
            r"(ab|a)(bc|c)?", r"a{0}b", r"[\W\d]+x", r"\bf\B.\b", r"(?:a+)+b", r"\S*\D\s?", r"(?m)^a$\n^b$")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_match_what_pythons_do(pattern: str):
    """RE2's classes are ASCII's, and `$` is the end of the text."""
    rng = random.Random(pattern)
    matches, wanted = matcher(pattern, "t"), re.compile(pattern.replace("$", "$" if "(?m)" in pattern else r"\Z"), re.ASCII)
    found = 0
    for _ in range(1500):
        text = "".join(rng.choice("aaabbcdB1 .@\nofx") for _ in range(rng.randrange(7)))
        assert matches(text) == (wanted.fullmatch(text) is not None), text
        found += matches(text)
    assert found or len(pattern) > 10, "none of the texts fits"


def test_hostile_patterns():
    with at_most(4_000_000):
        assert not matcher("(a+)+b", "t")("a" * 20_000)
    for pattern in (r"(a)\1", r"(?=a)b", "[[:alpha:]]", r"\p{L}", "(", "(a{1000}){1000}", "(" * 5000):
        with pytest.raises(UnsupportedError, match="which is none that can be matched"):
            matcher(pattern, "t")


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("seed", range(4))
def test_tfidf_as_onnx_counts(seed: int, mode: str):
    from onnx.reference import ReferenceEvaluator
    rng = np.random.default_rng(seed)
    attributes = dict(mode=mode, min_gram_length=1 + seed % 2, max_gram_length=2 + seed % 2, max_skip_count=seed, 
                      ngram_counts=[0, 3, 9], ngram_indexes=[3, 1, 0, 2, 5, 4, 7, 6], pool_int64s=[1, 2, 3, 1, 2, 2, 1, 3, 3, 1, 2, 3, 3, 2, 1],
                      weights=rng.random(8).tolist())
    x = rng.integers(0, 4, (3, 9))
    node = onnx.helper.make_node("TfIdfVectorizer", ["x"], ["y"], **attributes)
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph([node], "g", [info("x", 7, None)], [info("y", 1, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 9)], ir_version=8)
    wanted, = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(run("TfIdfVectorizer", x, **attributes), wanted)
    assert wanted.any()
    with pytest.raises(ModelError, match="ngram_indexes for more n-grams"):
        run("TfIdfVectorizer", x, **{**attributes, "ngram_indexes": [0]})


def hosted_cases() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests
        cases = load_model_tests(kind="node")
    def serves(case: Any) -> bool:
        form = hosted_form(case.model.graph.node[0].op_type) if len(case.model.graph.node) == 1 else None
        return form is not None and not form.others and case.model.graph.node[0].op_type not in ("Constant", "Loop", "Scan", "SequenceMap")
    return {case.name: case for case in cases if serves(case)}


@pytest.mark.exhaustive
def test_onnx_cases():
    """Each operator over the data of its node tests. Images need Pillow."""
    from onnx.backend.test.runner import Runner, _normalize_tensor
    done = set()
    for case in hosted_cases().values():
        node, = case.model.graph.node
        if node.op_type == "ImageDecoder" and not has_pillow():
            continue
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        texts = {k: [w.decode() if isinstance(w, bytes) else w for w in v] if isinstance(v, list) else v.decode() if isinstance(v, bytes) else v
                 for k, v in attributes.items()}
        for inputs, wanted in case.data_sets:
            found = run(node.op_type, *map(_normalize_tensor, inputs), outputs=len(node.output), **texts)
            several = found if isinstance(found, list) and len(node.output) > 1 else [found]
            Runner.assert_similar_outputs(list(map(_normalize_tensor, wanted)), several[:len(node.output)], case.rtol, case.atol)
        done.add(node.op_type)
    assert done >= {"NonZero", "Unique", "Compress", "NonMaxSuppression", "StringSplit", "RegexFullMatch", "TfIdfVectorizer", "SequenceInsert"}


def has_pillow() -> bool:
    try:
        import PIL.Image
    except ImportError:
        return False
    return bool(PIL.Image)


def test_images_that_are_none():
    if has_pillow():
        with pytest.raises(DataError, match="no image"):
            run("ImageDecoder", np.arange(9, dtype=np.uint8))
    else:
        with pytest.raises(UnsupportedError, match="pip install pillow"):
            run("ImageDecoder", np.arange(9, dtype=np.uint8))

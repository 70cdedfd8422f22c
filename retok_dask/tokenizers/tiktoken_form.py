"""A tiktoken rank file as a `tokenizers` definition with the same ids.

tiktoken always joins the neighbouring pair whose joined bytes have the lowest
rank. `tokenizers` wants the pairs themselves. Running tiktoken's own rule on
the bytes of each token until two parts are left gives the one pair from which
that token is ever joined: what happens inside a token's bytes does not depend
on what surrounds them, as long as nothing joins across their ends. Tokens that
never come down to two parts are reached only where a whole pre-token equals
them, which is what ``ignore_merges`` says.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from retok_dask.errors import TokenizerError
from retok_dask.tokenizers.bytelevel import BYTE_TO_CHAR

if TYPE_CHECKING:
    from collections.abc import Mapping

Ranks = dict[bytes, int]


def parse_ranks(data: bytes, source: str) -> Ranks:
    """Read a rank file: one ``base64 rank`` pair a line.

    Raises:
        TokenizerError: a line is no such pair, or a rank or a token comes twice.
    """
    ranks: Ranks = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            shown = line[:60].decode("utf-8", "replace")
            msg = (
                f"{source!r} is no tiktoken rank file: line {number} is {shown!r}, not 'base64 rank'; "
                "name a tokenizer.json, a folder or a rank file"
            )
            raise TokenizerError(msg) from None
    if not ranks or len(set(ranks.values())) != len(ranks) or b"" in ranks:
        msg = f"{source!r} is no usable tiktoken rank file: it is empty, or holds an empty token or a rank twice"
        raise TokenizerError(msg)
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing:
        msg = f"{source!r} has no rank for the byte {missing[0]:#04x}, so some text has no ids; take the whole file"
        raise TokenizerError(msg)
    return ranks


def recover_merges(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """The pair that each token is joined from, in order of the tokens' ranks."""
    found: list[tuple[int, bytes, bytes]] = []
    for token, rank in ranks.items():
        if len(token) > 1:
            parts = _last_two_parts(token, ranks)
            if parts is not None:
                found.append((rank, *parts))
    found.sort()
    return [(left, right) for _, left, right in found]


def _last_two_parts(token: bytes, ranks: Ranks) -> tuple[bytes, bytes] | None:
    parts = [token[i : i + 1] for i in range(len(token))]
    get = ranks.get
    while len(parts) > 2:
        best = None
        place = -1
        for i in range(len(parts) - 1):
            rank = get(parts[i] + parts[i + 1])
            if rank is not None and (best is None or rank < best):
                best, place = rank, i
        if best is None:
            return None
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def definition_from_ranks(
    ranks: Ranks, *, pattern: str, special_tokens: Mapping[str, int], normalizer: str | None, source: str
) -> dict[str, Any]:
    """The ``tokenizer.json`` (as a dict) that gives the ids tiktoken gives.

    Args:
        ranks: bytes to id.
        pattern: tiktoken's pre-tokenizer pattern.
        special_tokens: text to id; ids between them that nobody names become
            ``<|reserved_token_N|>``, as in transformers' own conversion.
        normalizer: ``NFC`` or None.
        source: what to call the file in an error.

    Raises:
        TokenizerError: special tokens clash with ranks or with each other.
    """
    vocab = {_chars(token): rank for token, rank in ranks.items()}
    merges = [[_chars(left), _chars(right)] for left, right in recover_merges(ranks)]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(ranks, special_tokens, source),
        "normalizer": {"type": normalizer} if normalizer else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _added_tokens(ranks: Ranks, special_tokens: Mapping[str, int], source: str) -> list[dict[str, Any]]:
    names = {index: text for text, index in special_tokens.items()}
    taken = set(ranks.values()) & set(names)
    if len(names) != len(special_tokens) or taken:
        clash = sorted(taken)[:3] or "one id for two texts"
        msg = f"the special tokens given for {source!r} clash ({clash}); give each one an id that no rank has"
        raise TokenizerError(msg)
    top = max(names, default=-1)
    size = len(ranks)
    if max(ranks.values()) != size - 1 or any(index < size for index in names):
        msg = f"{source!r} has gaps in its ranks, which a special token would fall into; take the whole rank file"
        raise TokenizerError(msg)
    return [
        {
            "id": index,
            "content": names.get(index, f"<|reserved_token_{index}|>"),
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index in range(size, top + 1)
    ]


def _chars(token: bytes) -> str:
    return "".join(map(BYTE_TO_CHAR.__getitem__, token))

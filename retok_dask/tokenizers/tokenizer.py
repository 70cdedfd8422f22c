"""The tokenizer that the rest of the package uses."""

from __future__ import annotations

import zlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import orjson

from retok_dask.errors import TokenizerError
from retok_dask.tokenizers import align
from retok_dask.tokenizers.bytelevel import ByteTable, is_byte_level, uses_nfc
from retok_dask.tokenizers.definition import Definition
from retok_dask.tokenizers.engines import ReferenceEngine, flatten
from retok_dask.tokenizers.load import load_definition
from retok_dask.tokenizers.pieces import CannotEscape, PieceEncoder
from retok_dask.types import Encoded, Rendered

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from retok_dask.recipe import StorageSpec, TokenizerSpec

EngineChoice = Literal["auto", "reference"]

_LOADED: dict[str, Tokenizer] = {}


class Tokenizer:
    """Text to ids, exactly as the reference gives them, with the segments of a rendering.

    Made by :meth:`load` on the client and by :meth:`from_payload` in workers.

    Attributes:
        digest: sha256 over the files that define it.
        added_tokens: text to id of every added token, flagged special or not.
        special_tokens_map: what a chat template gets (``bos_token``, ...).
        chat_templates: its own template, its named ones, or None.
        adds_bos: it puts a BOS in front of plain text by its own rule
            (:meth:`encode` never does: what is encoded is what was rendered).
        byte_level: ids are cut from the text's UTF-8 bytes, so that
            :meth:`decode_bytes` is exact.
        engine: name of the engine that encodes.
    """

    def __init__(self, definition: Definition, *, engine: EngineChoice = "auto") -> None:
        self.definition = definition
        self.digest = definition.digest
        self.special_tokens_map: dict[str, Any] = definition.special_tokens_map
        self.chat_templates = definition.chat_templates
        self.adds_bos = definition.adds_bos
        self._reference = ReferenceEngine(definition.json)
        data = orjson.loads(definition.json)
        self.added_tokens: dict[str, int] = {token["content"]: token["id"] for token in data.get("added_tokens", ())}
        self.byte_level = is_byte_level(data)
        self._nfc = uses_nfc(data)
        self._table = ByteTable.of(data) if self.byte_level else None
        self._pieces = PieceEncoder(self._reference, self.added_tokens)
        self._choice: EngineChoice = engine

    @classmethod
    def load(cls, spec: TokenizerSpec, *, storage: StorageSpec | None = None, engine: EngineChoice = "auto") -> Self:
        """Load the tokenizer that a recipe names.

        Args:
            spec: where it is; see :class:`~retok_dask.recipe.TokenizerSpec`.
            storage: how to reach S3, for paths there.
            engine: ``auto`` uses the fast engine where a certificate holds;
                ``reference`` never does.

        Raises:
            TokenizerError: it is missing, unreadable or damaged.
        """
        return cls(load_definition(spec, storage), engine=engine)

    def payload(self) -> bytes:
        """All that another process needs to make this tokenizer: no files, no hub, no pickled code."""
        return self.definition.to_bytes()

    @classmethod
    def from_payload(cls, data: bytes) -> Tokenizer:
        """The tokenizer of :meth:`payload`; made once a process, however often it is asked for.

        Raises:
            TokenizerError: the bytes are no payload.
        """
        key = f"{zlib.crc32(data)}-{len(data)}"
        if key not in _LOADED:
            _LOADED[key] = cls(Definition.from_bytes(data))
        return _LOADED[key]

    # --- facts ---

    @property
    def engine(self) -> str:
        return self._reference.name

    @cached_property
    def vocab_size(self) -> int:
        """Ids in use, added tokens included."""
        return int(self._reference.backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def bos_id(self) -> int | None:
        return self.token_id(self.special_tokens_map.get("bos_token"))

    @cached_property
    def eos_id(self) -> int | None:
        return self.token_id(self.special_tokens_map.get("eos_token"))

    def token_id(self, text: str | None) -> int | None:
        """The id of one token by its text, None if there is no such token."""
        if text is None:
            return None
        found: int | None = self._reference.backend.token_to_id(text)
        return found

    # --- decoding ---

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The bytes that ids stand for: exact for byte-level tokenizers, else the decoded text's.

        Raises:
            TokenizerError: an id that the tokenizer does not have.
        """
        if self._table is None:
            return self.decode(ids).encode()
        try:
            return self._table.decode(ids)
        except IndexError:
            msg = f"id {int(np.max(np.asarray(ids)))} is not one of this tokenizer's; it has {self.vocab_size}"
            raise TokenizerError(msg) from None

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of ids, special tokens included, blanks left as they are."""
        if self._table is not None:
            return self.decode_bytes(ids).decode("utf-8", "replace")
        return str(self._reference.backend.decode(np.asarray(ids).tolist(), skip_special_tokens=False))

    # --- encoding ---

    def encode(self, rows: Sequence[Rendered]) -> Encoded:
        """Encode a batch, each row in one piece, and carry its spans over to tokens.

        A row that cannot be encoded or aligned comes back empty, with its
        reason in ``failed``; it never stops the others.
        """
        failed: dict[int, str] = {}
        cuts: list[npt.NDArray[np.int64]] = []
        shared: list[npt.NDArray[np.int64]] = []
        ids: list[npt.NDArray[np.int32]] = []
        spans: list[align.Spans] = []
        base = 0
        for number, row in enumerate(rows):
            found = np.zeros(0, np.int32)
            try:
                found, offsets = self._reference_row(row)
                own = _char_spans(number, row)
                placed = align.segments_by_offsets(own, offsets) if own.length.size else None
            except (CannotEscape, UnicodeError, TypeError) as error:
                failed[number] = f"encode_error: {error}"
                ids.append(found[:0])
                continue
            if placed is None and found.size:
                failed[number] = "alignment_failed: tokens do not lie in the order of the text"
                found = found[:0]
            elif placed is not None:
                spans.append(own)
                cuts.append(placed[0] + base)
                shared.append(placed[1] + base)
            ids.append(found)
            base += found.size
        flat, splits = flatten([])
        if rows:
            flat = np.concatenate(ids)
            splits = np.concatenate([[0], np.cumsum([part.size for part in ids])]).astype(np.int64)
        segments = align.segments_from_cuts(align.join_spans(spans), _joined(cuts), _joined(shared), splits)
        return Encoded(
            ids=flat,
            row_splits=splits,
            seg_splits=segments.splits,
            seg_start=segments.start,
            seg_end=segments.end,
            seg_kind=segments.kind,
            seg_message=segments.message,
            shared=segments.shared,
            failed=failed,
        )

    def _reference_row(self, row: Rendered) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        if row.escapes:
            return self._pieces.encode(row.text, row.escapes)
        return self._reference.encode_offsets(row.text)


def _char_spans(number: int, row: Rendered) -> align.Spans:
    lengths = np.diff(np.array([*row.starts, len(row.text)], np.int64))
    keep = lengths > 0
    return align.Spans(
        row=np.full(int(keep.sum()), number, np.int64),
        length=lengths[keep],
        kind=np.array(row.kinds, np.int8)[keep],
        message=np.array(row.messages, np.int32)[keep],
    )


def _joined(parts: list[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)

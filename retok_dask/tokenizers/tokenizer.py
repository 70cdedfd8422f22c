"""The tokenizer that the rest of the package uses."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import orjson
import zstandard

from retok_dask.doing import doing
from retok_dask.errors import TokenizerError
from retok_dask.recipe import TokenizerSpec
from retok_dask.tokenizers import certificate as certificates
from retok_dask.tokenizers.batch import BatchEncoder
from retok_dask.tokenizers.bytelevel import uses_nfc
from retok_dask.tokenizers.certificate import Certificate, Tier
from retok_dask.tokenizers.cuts import CutRule
from retok_dask.tokenizers.definition import Definition, any_of
from retok_dask.tokenizers.engines import FastEngine, ReferenceEngine, limit_native_threads, made_once
from retok_dask.tokenizers.fallback import Prefixes, PrefixingEngine, PrefixWriter, without_prefixes
from retok_dask.tokenizers.huge import normalize_long
from retok_dask.tokenizers.load import load_definition
from retok_dask.tokenizers.nfc import Composer, ComposingEngine, token_marks
from retok_dask.tokenizers.outline import Outline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from retok_dask.recipe import StorageSpec
    from retok_dask.tokenizers.engines import Engine
    from retok_dask.types import Encoded, Rendered

EngineChoice = Literal["auto", "reference"]

LITTLE = 8 * 2**20
"""Characters of text that the reference encodes in about the time in which a process loads the fast engine."""

_LOADED: dict[bytes, Tokenizer] = {}

_NFC_STEP = re.compile(r'"normalizer"\s*:\s*\{\s*"type"\s*:\s*"NFC"\s*\}')
"""Quotes inside a JSON string are escaped, so that no token's text looks like this."""


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
        outline: what its definition says beside vocabulary and merges.
        table: the bytes of its ids; None where it is not byte-level.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        engine: EngineChoice = "auto",
        certificate: Certificate | None = None,
        patience: int = 0,
        outline: Outline | None = None,
    ) -> None:
        self.definition = definition
        self.digest = definition.digest
        self.special_tokens_map: dict[str, Any] = definition.special_tokens_map
        self.chat_templates = definition.chat_templates
        self.adds_bos = definition.adds_bos
        self._choice: EngineChoice = engine
        self._given = certificate
        self._patience = patience
        self._reference = made_once(ReferenceEngine, definition.json)
        self.outline = outline or made_once(Outline.of, definition.json)
        steps, self.byte_level = self.outline.steps, self.outline.byte_level
        self.table = self.outline.table if self.byte_level else None
        self.added_tokens: dict[str, int] = {token["content"]: token["id"] for token in steps.get("added_tokens", ())}
        rule = CutRule(steps if self.byte_level else {})
        normalize: Callable[[str], str] | None = None
        if self.byte_level and uses_nfc(steps):
            normalize = partial(normalize_long, self._reference.backend.normalizer.normalize_str, rule)
        self._composer = Composer.of(steps, normalize) if normalize is not None else None
        self._writer = PrefixWriter.of(steps) if self.outline.table is not None else None
        self._bare = BatchEncoder(
            self._reference,
            self.outline.table,
            rule,
            normalize=normalize,
            added_tokens=self.added_tokens,
            byte_level=self.byte_level,
            prefixes=None if self.byte_level else Prefixes.of(steps, self.outline.size),
        )

    @classmethod
    def load(
        cls,
        spec: TokenizerSpec | str,
        *,
        storage: StorageSpec | None = None,
        engine: EngineChoice = "auto",
        patient: bool = False,
    ) -> Self:
        """Load the tokenizer that a recipe names.

        Args:
            spec: where it is, as a recipe says it: a path alone, or a
                :class:`~retok_dask.recipe.TokenizerSpec`.
            storage: how to reach S3, for paths there.
            engine: ``auto`` uses the fast engine where a certificate holds;
                ``reference`` never does.
            patient: leave the first :data:`LITTLE` of text to the reference,
                where nobody knows how much there will be.

        Raises:
            TokenizerError: it is missing, unreadable or damaged.
        """
        spec = TokenizerSpec(path=spec) if isinstance(spec, str) else spec
        doing(f"loading the tokenizer {spec.path}")
        return cls(load_definition(spec, storage), engine=engine, patience=LITTLE if patient else 0)

    def payload(self) -> bytes:
        """All that another process needs to make this tokenizer: no files, no hub, no pickled code.

        Holds the certificate, so that no worker has to make one.
        """
        certificate = self.certificate
        parts = {
            "definition": self.definition.to_dict(),
            "engine": self._choice,
            "certificate": certificate.to_dict() if certificate else None,
            "outline": self.outline.to_dict(),
        }
        return zstandard.compress(orjson.dumps(parts), level=3)

    @classmethod
    def from_payload(cls, data: bytes) -> Tokenizer:
        """The tokenizer of :meth:`payload`; made once a process, however often it is asked for.

        The native libraries use one thread in such a process: a run's
        parallelism is its processes.

        Raises:
            TokenizerError: the bytes are no payload.
        """
        key = hashlib.sha256(data).digest()
        if key not in _LOADED:
            limit_native_threads()
            _LOADED[key] = cls._unpack(data)
        return _LOADED[key]

    @classmethod
    def _unpack(cls, data: bytes) -> Self:
        try:
            parts = orjson.loads(zstandard.decompress(data))
            definition = Definition(**parts["definition"])
            certificate = Certificate.from_dict(parts["certificate"]) if parts["certificate"] else None
            outline = Outline.from_dict(parts["outline"])
        except (zstandard.ZstdError, orjson.JSONDecodeError, TypeError, KeyError) as error:
            msg = f"these bytes hold no tokenizer ({error}); send what Tokenizer.payload() gave, by the same version"
            raise TokenizerError(msg) from error
        return cls(definition, engine=parts["engine"], certificate=certificate, outline=outline)

    # --- the engine ---

    @cached_property
    def certificate(self) -> Certificate | None:
        """What the fast engine was proved by, or why it is not used; None where it was not asked for.

        Taken from the payload or the user's cache; made where there is none,
        which takes seconds, once for a tokenizer and set of library versions.
        """
        return self._find_certificate()[0]

    def _find_certificate(self) -> tuple[Certificate | None, Engine | None]:
        """The certificate, and the fast engine where one had to be loaded for it."""
        if self._choice == "reference" or self.outline.table is None:
            return None, None
        known = self._given or certificates.stored(self.definition.json_digest)
        return (known, None) if known is not None else self._certify((), "quick")

    def certify(self, sample: Iterable[str] = (), *, tier: Tier = "full") -> Certificate:
        """Compare the fast engine with the reference now, on text of the user's too, and keep the result.

        ``quick`` takes a few seconds, ``full`` about half a minute.
        """
        return self._certify(sample, tier)[0]

    def _certify(self, sample: Iterable[str], tier: Tier) -> tuple[Certificate, Engine | None]:
        doing("comparing the fast engine with the reference, once for this tokenizer and these versions")
        fast: Engine | None = None
        try:
            fast = self._make_fast()
        except Exception as error:  # noqa: BLE001  whatever it cannot load, the reference can
            made = certificates.refused(self.definition.json_digest, f"fastokens cannot load it: {str(error)[:200]}")
        else:
            made = self._compare_engines(fast, sample, tier)
        certificates.store(made)
        return made, fast

    def _compare_engines(self, fast: Engine, sample: Iterable[str], tier: Tier) -> Certificate:
        return certificates.certify(
            self.definition.json_digest,
            self._reference,
            fast if self._composer is None else ComposingEngine(fast, self._composer, self._reference),
            added_tokens=list(self.added_tokens),
            token_texts=self.outline.table.texts() if self.outline.table else [],
            sample=sample,
            tier=tier,
        )

    @cached_property
    def _encoder(self) -> BatchEncoder:
        """The batch encoder, with the fast engine where a certificate for these libraries allows it."""
        made: Engine | None = None
        if "certificate" not in vars(self):
            self.certificate, made = self._find_certificate()
        certificate = self._leave()
        if certificate is not None:
            doing("loading the fast engine")
            self._bare.fast = made or self._make_fast()
            self._bare.composer = self._composer
            if self._composer is not None and self.table is not None:
                self._bare.mark(token_marks(self.table.split()))
            self._bare.guards = tuple(certificate.guards)
        return self._bare

    def _leave(self) -> Certificate | None:
        """The certificate that allows the fast engine here, if one does."""
        found = self.certificate
        return found if found and found.passed and found.holds_for(self.definition.json_digest) else None

    def _make_fast(self) -> Engine:
        """The fast engine, made without what is done to its texts before it sees them."""
        if self._writer is not None:
            return PrefixingEngine(made_once(FastEngine, without_prefixes(self.definition.json)), self._writer)
        if self._composer is None:
            return made_once(FastEngine, self.definition.json)
        # in the text, because a parsed vocabulary takes many times its size, and worker memory never shrinks again
        return made_once(FastEngine, _NFC_STEP.sub('"normalizer":null', self.definition.json))

    @property
    def engine(self) -> str:
        """``fastokens`` or ``tokenizers``: the one that encodes. Asking for it loads none, which takes seconds."""
        if "_encoder" in vars(self):
            return (self._encoder.fast or self._reference).name
        return self._reference.name if self._leave() is None else FastEngine.name

    # --- facts ---

    @property
    def vocab_size(self) -> int:
        """All ids are below it, those of added tokens too; where the vocabulary has gaps it holds fewer tokens."""
        return self.outline.size

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

    def require_control(self, texts: Iterable[str]) -> None:
        """Check that each control string is exactly one id, as a template that writes it expects.

        A tokenizer loaded by the wrong class knows none of a model's control
        tokens, and spells them out as ordinary text.

        Raises:
            TokenizerError: some are not; they are named.
        """
        unknown = sorted({text for text in texts if text not in self.added_tokens and self.token_id(text) is None})
        if unknown:
            msg = (
                f"the tokenizer {self.definition.source!r} spells {', '.join(map(repr, unknown[:8]))} out as ordinary "
                "text; give its special_tokens with their ids, take the tokenizer that belongs to the template, "
                "or say template.plain_markers: true if that is meant"
            )
            raise TokenizerError(msg)

    # --- decoding ---

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The bytes that ids stand for: exact for byte-level tokenizers, else the decoded text's.

        Raises:
            TokenizerError: an id that the tokenizer does not have.
        """
        if self.table is None:
            return self.decode(ids).encode()
        try:
            return self.table.decode(ids)
        except IndexError:
            msg = f"id {int(np.max(np.asarray(ids)))} is not one of this tokenizer's; it has {self.vocab_size}"
            raise TokenizerError(msg) from None

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of ids, special tokens included, blanks left as they are."""
        if self.table is not None:
            return self.decode_bytes(ids).decode("utf-8", "replace")
        return str(self._reference.backend.decode(np.asarray(ids).tolist(), skip_special_tokens=False))

    # --- encoding ---

    def encode(self, rows: Sequence[Rendered]) -> Encoded:
        """Encode a batch, each row in one piece, and carry its spans over to tokens.

        A row that cannot be encoded or aligned comes back empty, with
        ``reason: detail`` in ``failed`` (the reason one of
        :class:`~retok_dask.types.RejectReason`); it never stops the others.
        """
        if self._patience > 0:
            self._patience -= sum(len(row.text) for row in rows)
            return self._bare.encode(rows)
        return self._encoder.encode(rows)

    def reference_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of texts by the reference, whichever engine encodes the rows."""
        ids, splits = self._reference.encode(texts)
        return [part.tolist() for part in np.split(ids, splits[1:-1])]

    def control_ranges(self, text: str) -> list[tuple[int, int]]:
        """Where the text of an added token stands in a text, for :attr:`Rendered.escapes`.

        The longest token wins where one holds another; ranges are ascending and disjoint.
        """
        return [match.span() for match in self._control.finditer(text)]

    @cached_property
    def _control(self) -> re.Pattern[str]:
        return any_of(token for token in self.added_tokens if not token.isspace())

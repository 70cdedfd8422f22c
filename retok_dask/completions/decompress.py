"""Decompressing files of several members or frames, a bounded amount at a time."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import TYPE_CHECKING, Any, Protocol

import zstandard

from retok_dask.types import RecordRejected, RejectReason

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

OUTPUT_BLOCK = 1024 * 1024
"""Most bytes that one step of a decompressor gives, so that a bomb cannot fill the memory."""

PUSHED = 256 * 1024
"""Most bytes pushed into a decompressor at once: what lies behind a member's end is copied each time."""

ZSTD_PIECE = 256

MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}


class _Member(Protocol):
    """One member or frame of a compressed file."""

    eof: bool
    unused_data: bytes


def _zlib_step(member: Any, data: bytes) -> tuple[bytes, bytes]:
    out = member.decompress(data, OUTPUT_BLOCK)
    return out, member.unconsumed_tail


def _buffered_step(member: Any, data: bytes) -> tuple[bytes, bytes]:
    # bz2 and lzma keep what they have not used; an empty push gives the rest.
    return member.decompress(data, OUTPUT_BLOCK), b""


def _zstd_step(member: Any, data: bytes) -> tuple[bytes, bytes]:
    """Push in small pieces: there is no limit on output here, and four bytes can stand for 128 KiB."""
    out: list[bytes] = []
    made = at = 0
    while at < len(data) and made < OUTPUT_BLOCK and not member.eof:
        out.append(member.decompress(data[at : at + ZSTD_PIECE]))
        made += len(out[-1])
        at += ZSTD_PIECE
    return b"".join(out), data[at:]


_MAKERS: dict[str, tuple[Any, Any]] = {
    "gzip": (lambda: zlib.decompressobj(wbits=31), _zlib_step),
    "zstd": (lambda: zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj(), _zstd_step),
    "bz2": (bz2.BZ2Decompressor, _buffered_step),
    "xz": (lzma.LZMADecompressor, _buffered_step),
}
_BROKEN = (zlib.error, zstandard.ZstdError, OSError, lzma.LZMAError, EOFError, ValueError)


def decompressed(blocks: Iterator[bytes], kind: str) -> Iterator[bytes]:
    """The text of all members or frames of a compressed file, in blocks.

    Raises:
        RecordRejected: ``bad_file`` if the bytes are not of this kind,
            ``cut_file`` if the file ends inside a member.
    """
    make, step = _MAKERS[kind]
    member: _Member | None = None
    held = b""
    first = True
    for piece in _pieces(blocks, PUSHED):
        held += piece
        while held:
            if member is None:
                # Tools pad archives with NUL bytes; what else follows a member is another one.
                held = held if first else held.lstrip(b"\0")
                if len(held) < len(MAGIC[kind]):
                    break
                _check_magic(held, kind, first=first)
                member, first = make(), False
            held = yield from _member_blocks(member, step, held, kind)
            member = None if member.eof else member
    if member is not None or held:
        raise RecordRejected(RejectReason.cut_file, f"the {kind} data ends inside a member; the file is cut")


def _pieces(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for block in blocks:
        for at in range(0, len(block), size):
            yield block[at : at + size]


def _check_magic(held: bytes, kind: str, *, first: bool) -> None:
    if held.startswith(MAGIC[kind]) or (kind == "zstd" and held[1:4] == b"\x2a\x4d\x18"):
        return
    where = "the file is no" if first else "what follows a member is no"
    raise RecordRejected(RejectReason.bad_file, f"{where} {kind} data, it starts with {held[:16]!r}")


def _member_blocks(member: Any, step: Any, data: bytes, kind: str) -> Generator[bytes, None, bytes]:
    """What one push of data into a member gives; returns the data that lies behind the member's end."""
    rest = data
    while not member.eof:
        try:
            out, rest = step(member, rest)
        except _BROKEN as error:
            raise RecordRejected(RejectReason.bad_file, f"broken {kind} data: {error}") from None
        if out:
            yield out
        if not rest and not member.eof and (not out or getattr(member, "needs_input", len(out) < OUTPUT_BLOCK)):
            return b""
    return bytes(member.unused_data) + rest

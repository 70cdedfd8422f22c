"""The things that pass between rooms: conversations, renderings, encodings, rejects.

Plain data without behaviour worth the name, so that each room can be tested
without the others. Offsets into text count characters (code points); offsets
into token arrays count tokens.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    import numpy as np
    import numpy.typing as npt


Counts = defaultdict[str, int]
"""How often something was changed or noticed, by name; quicker made than a Counter, which each row would need."""


class Kind(IntEnum):
    """What a run of tokens is. The order is the one stored in Parquet dictionaries.

    Template text that wraps a part which is there (``<tool_call>`` around a
    call, ``</think>`` after reasoning, ``<|channel|>final<|message|>`` before
    content) has the kind of that part, because the model samples it together
    with the part. ``scaffold`` is template text in the body that wraps
    nothing, such as an empty think block: nobody samples it.
    """

    bos = 0
    system = 1
    tools = 2
    user = 3
    tool = 4
    other = 5
    header = 6
    prefill = 7
    reasoning = 8
    content = 9
    tool_call = 10
    scaffold = 11
    stop = 12
    trailer = 13


KIND_NAMES: tuple[str, ...] = tuple(kind.name for kind in Kind)

SHARED_TOKEN_RANK: tuple[Kind, ...] = (
    Kind.content,
    Kind.tool_call,
    Kind.reasoning,
    Kind.stop,
    Kind.scaffold,
    Kind.user,
    Kind.tool,
    Kind.tools,
    Kind.other,
    Kind.trailer,
    Kind.prefill,
    Kind.header,
    Kind.bos,
    Kind.system,
)
"""Who owns a token that spans a boundary: the kind that comes first here.

Independent of the policy, so that a mask derived later from the stored
segments equals the one made by a fresh run; and for every preset policy the
same as "trained if any trained character is in it".
"""


class RejectReason(StrEnum):
    """Why an input record was not written. Names are part of the output contract."""

    # the bytes
    bad_json = "bad_json"
    not_an_object = "not_an_object"
    bad_utf8 = "bad_utf8"
    lone_surrogate = "lone_surrogate"
    control_character = "control_character"
    nul_run = "nul_run"
    duplicate_key = "duplicate_key"
    not_finite_number = "not_finite_number"
    too_large = "too_large"
    cut_file = "cut_file"
    bad_file = "bad_file"
    # the layout
    unknown_layout = "unknown_layout"
    bad_layout = "bad_layout"
    unknown_role = "unknown_role"
    empty_conversation = "empty_conversation"
    no_assistant = "no_assistant"
    no_prompt = "no_prompt"
    non_text_part = "non_text_part"
    bad_content = "bad_content"
    bad_tools = "bad_tools"
    bad_tool_call = "bad_tool_call"
    bad_tokens = "bad_tokens"
    flag_conflict = "flag_conflict"
    empty_text = "empty_text"
    # the template
    template_error = "template_error"
    system_not_supported = "system_not_supported"
    render_limit = "render_limit"
    message_not_rendered = "message_not_rendered"
    span_not_proved = "span_not_proved"
    control_markers_in_content = "control_markers_in_content"
    control_tokens_in_text = "control_tokens_in_text"
    # the encoding
    encode_error = "encode_error"
    alignment_failed = "alignment_failed"
    lossy_decode = "lossy_decode"
    unmapped_token = "unmapped_token"  # noqa: S105  a reason, no password
    not_recovered = "not_recovered"
    # the run
    too_slow = "too_slow"
    killed_worker = "killed_worker"
    user_function_failed = "user_function_failed"
    unexpected_error = "unexpected_error"


class FilterReason(StrEnum):
    """Why a good record was left out on purpose. Part of the output contract."""

    limit = "limit"
    sampled_out = "sampled_out"
    too_long = "too_long"
    too_short = "too_short"
    no_trained_tokens = "no_trained_tokens"
    no_trained_tokens_after_truncation = "no_trained_tokens_after_truncation"
    trained_share = "trained_share"
    roles = "roles"
    duplicate = "duplicate"
    user_filter = "user_filter"


class RecordRejected(Exception):
    """Raised by a layout, template or encoder for one record; the kernel makes a :class:`Reject` of it."""

    def __init__(self, reason: RejectReason, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class RecordFiltered(Exception):
    """Raised for one good record that is left out on purpose."""

    def __init__(self, reason: FilterReason, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(slots=True)
class Record:
    """One input record as it lies in its file.

    Attributes:
        file: the file's URL as listed.
        row: its 0-based number in the file; -1 if a byte-range unit cannot
            know it (then `offset` identifies it).
        offset: byte offset of its first byte in the (decompressed) file, or -1.
        raw: its bytes as read, for rejects and for `retok show`; None where
            the format has no bytes of its own (Parquet, Arrow).
        value: the parsed record, None if parsing failed.
        counts: what was mended while reading it, by name, or None; the
            layout hands it on in the counts of the record's first item.
        exact: parsing is known to have lost nothing: no second value of a key, no digit.
    """

    file: str
    row: int
    offset: int
    raw: bytes | None
    value: dict[str, Any] | None
    counts: dict[str, int] | None = None
    exact: bool = False


@dataclass(slots=True)
class Reject:
    """An input record that is not written, with the reason."""

    file: str
    row: int
    offset: int
    reason: RejectReason
    detail: str
    raw: bytes | None = None


@dataclass(slots=True)
class Filtered:
    """An input record left out on purpose, with the reason."""

    file: str
    row: int
    offset: int
    reason: FilterReason
    detail: str = ""


class SharedTools(list[dict[str, Any]]):
    """Function schemas that come with many records: one object for all of them, never changed.

    Attributes:
        read: what was made of them, by how; kept here so that it need not be looked up by all they say.
    """

    __slots__ = ("read",)

    def __init__(self, tools: Iterable[dict[str, Any]]) -> None:
        super().__init__(tools)
        self.read: dict[Hashable, Any] = {}


@dataclass(slots=True)
class Conversation:
    """Ordered messages, tools and an id, in OpenAI form.

    Attributes:
        messages: dicts with ``role`` and ``content`` (text), and where present
            ``reasoning_content`` (text), ``tool_calls`` (arguments as objects),
            ``tool_call_id``, ``name`` and further keys of the source.
        tools: function schemas, or None.
        id: the record's own id if it has one, else None.
        flags: one entry a message: True or False where the data says so
            (``train``, ``weight``, ``loss_weight``), else None. An empty list
            means that no message has a flag.
        template_args: extra variables for this conversation's template.
        kept: values of the columns that the recipe keeps, by name.
        counts: what was changed or noticed on the way, by name (for example
            ``arguments_parsed``); summed into the unit's statistics.
        output_markers: texts around tool output inside answers, as the data set
            names them; control tokens among them may stand there.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    id: str | None = None
    flags: list[bool | None] = field(default_factory=list)
    template_args: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    output_markers: tuple[str, ...] = ()


@dataclass(slots=True)
class Document:
    """A plain text to encode without a template."""

    text: str
    id: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class TokenRow:
    """A row that holds ids already, with its mask and segments if it has them.

    Attributes:
        input_ids: ids of the tokenizer that the recipe names as the row's own.
        loss_mask: one bool a token, or None.
        segments: (start, end, kind name, message) in order, or None.
        flags: see :class:`Conversation`, for a row written by a run.
        turn: the one message that such a row trains, -1 for others.
        part: such a row is only a part of its record: truncated, or a chunk.
    """

    input_ids: Sequence[int] | npt.NDArray[np.integer[Any]]
    loss_mask: Sequence[bool] | npt.NDArray[np.bool_] | None = None
    segments: Sequence[tuple[int, int, str, int]] | None = None
    id: str | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    flags: list[bool | None] = field(default_factory=list)
    turn: int = -1
    part: bool = False


Item = Conversation | Document | TokenRow
"""What a layout makes of a record."""


@dataclass(slots=True)
class Rendered:
    """A text with the kind and message of each of its characters.

    Spans cover the text without a gap: span ``i`` runs from ``starts[i]`` to
    ``starts[i + 1]`` (the last one to the end), and ``starts[0] == 0``.

    Attributes:
        text: the rendering, equal to the reference's.
        starts: ascending character offsets, one a span.
        kinds: :class:`Kind` of each span, as int.
        messages: index into the conversation's messages, -1 for none.
        escapes: character ranges, ascending and disjoint, of control-token
            text that must be encoded as ordinary text. Each range, and each
            stretch between two ranges, is encoded by itself, as transformers'
            ``sanitize_control_tokens`` does.
        flags: the conversation's flags (see :class:`Conversation`).
        turn: for history ``per_turn``, the message index of the one assistant
            message that is trained in this sample; -1 otherwise.
        counts: what was noticed while rendering, by name.
    """

    text: str
    starts: list[int]
    kinds: list[int]
    messages: list[int]
    escapes: list[tuple[int, int]] = field(default_factory=list)
    flags: list[bool | None] = field(default_factory=list)
    turn: int = -1
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Encoded:
    """A batch of texts as ids with their token segments, all arrays flat.

    Attributes:
        ids: int32, the ids of all rows one after the other.
        row_splits: int64, rows + 1; row ``r`` has ``ids[row_splits[r]:row_splits[r+1]]``.
        seg_splits: int64, rows + 1; likewise into the four arrays below.
        seg_start, seg_end: int32, token offsets within the row; segments cover
            every token of the row once, in order, none empty.
        seg_kind: int8, :class:`Kind`.
        seg_message: int32, -1 for none.
        shared: int32, rows; tokens that span a boundary between two spans.
        fallback: bool, rows; encoded by the reference engine because the fast
            one could not be trusted for them.
        text_bytes: int64, rows; UTF-8 bytes of their texts, whether they failed or not; 0 where there is no text.
        failed: rows that could not be encoded or aligned, as ``reason: detail``
            with a :class:`RejectReason`; such a row has no tokens and no segments here.
    """

    ids: npt.NDArray[np.int32]
    row_splits: npt.NDArray[np.int64]
    seg_splits: npt.NDArray[np.int64]
    seg_start: npt.NDArray[np.int32]
    seg_end: npt.NDArray[np.int32]
    seg_kind: npt.NDArray[np.int8]
    seg_message: npt.NDArray[np.int32]
    shared: npt.NDArray[np.int32]
    fallback: npt.NDArray[np.bool_]
    text_bytes: npt.NDArray[np.int64]
    failed: dict[int, str] = field(default_factory=dict)

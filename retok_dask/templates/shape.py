"""What the text around an assistant's parts looks like, learned from probe renders.

Nothing here knows the name of a model. The header is what a generation prompt
and every assistant message begin with; the prefill is what the generation
prompt adds; openings and closings are what stands between the parts of probe
messages whose every text is unique; the stop token is the last added token
after the last part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from retok_dask.templates.known import variants

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from retok_dask.templates.marks import Runs
    from retok_dask.templates.probes import Probe


@dataclass(slots=True)
class Trace:
    """A probe's rendering with the message of each run."""

    probe: Probe
    runs: Runs

    def texts(self, message: int) -> list[str]:
        """The texts of a message's runs, in order."""
        return [text for _, text in self.placed(message)]

    def placed(self, message: int) -> list[tuple[int, str]]:
        """The same, each with where it begins."""
        text, starts = self.runs.text, self.runs.starts
        ends = [*starts[1:], len(text)]
        return [
            (start, text[start:end])
            for start, end, owner in zip(starts, ends, self.runs.owners, strict=True)
            if owner == message
        ]


@dataclass(slots=True)
class Shape:
    """The fixed text of assistant messages.

    Attributes:
        header: the role header, which the model never samples.
        heads: what else the prompt of an answer ends with, longest first: text that
            the template prints with the answer, though it closes what came before.
        prefill: what the generation prompt adds after the header.
        generation_prompt: both, as rendered.
        openings: text between the header and the first part, by the part
            (``R`` reasoning, ``C`` content), each with the end of its scaffold.
        between: text between reasoning and content, each with the place where
            the content's own opening begins.
        reasoning_close: text that closes reasoning whatever follows.
        content_close: text that closes content before the stop token.
        tails: (stop token, trailer) pairs that end a message, longest first.
        marker_stops: whether the next role marker ends a turn that ends with content.
        empty: pattern of a block around nothing, or of the end of one whose beginning is
            left out, at the start of a body.
        order: the order of the parts in a message that has all of them.
    """

    header: str = ""
    heads: tuple[str, ...] = ()
    prefill: str = ""
    generation_prompt: str = ""
    openings: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    between: tuple[tuple[str, int], ...] = ()
    reasoning_close: str = ""
    content_close: tuple[str, ...] = ()
    tails: tuple[tuple[str, str], ...] = ()
    marker_stops: bool = False
    empty: str = ""
    order: str = "RCT"


@dataclass(slots=True)
class _Found:
    """One run of a probe's assistant message with its parts located: (part, start, end) in order.

    `place` is its trace, its message and where it begins there.
    """

    text: str
    parts: list[tuple[str, int, int]]
    place: tuple[Trace, int, int]

    @property
    def opens(self) -> bool:
        """Whether the message is the first: templates may print their default system text before it."""
        return self.place[1] == 0

    @property
    def lead(self) -> str:
        return self.text[: self.parts[0][1]]

    @property
    def tail(self) -> str:
        return self.text[self.parts[-1][2] :]


def _locate(message: dict[str, Any], text: str) -> list[tuple[str, int, int]]:
    parts = []
    for part, name in (("R", "reasoning_content"), ("C", "content")):
        for form in variants(message.get(name) or ""):  # a text's own white space is no text around it
            at = text.find(form)
            if at >= 0:
                parts.append((part, at, at + len(form)))
                break
    spots = []
    for call in message.get("tool_calls") or []:
        for value in (call["function"]["name"], *call["function"]["arguments"].values()):
            if not isinstance(value, str) or "\n" in value:
                continue
            at = text.find(value)
            spots += [at, at + len(value)] if at >= 0 else []
    if spots:
        parts.append(("T", min(spots), max(spots)))
    return sorted(parts, key=lambda part: part[1])


def _found(traces: Iterable[Trace]) -> list[_Found]:
    found = []
    for trace in traces:
        for index, message in enumerate(trace.probe.messages):
            if message["role"] == "assistant":
                for start, run in trace.placed(index):
                    parts = _locate(message, run)
                    found += [_Found(run, parts, (trace, index, start))] if parts else []
    return found


def learn(
    traces: Sequence[Trace],
    generation_prompt: str,
    added: Collection[str],
    bos: str,
    prompts: Callable[[Probe, int], Iterable[str]],
) -> Shape:
    """Learn the fixed text around assistant parts.

    Args:
        traces: probe renders with spans.
        generation_prompt: what ``add_generation_prompt`` adds, or an empty text.
        prompts: gives what a probe's first few messages render, with and without it.
        added: the tokenizer's added tokens, as texts.
        bos: its BOS token's text, which never ends a turn.
    """
    found = _found(traces)
    shape = Shape(generation_prompt=generation_prompt)
    tokens = _token_pattern(added)
    leads = [run.lead for run in found if not run.opens]
    shape.header = _header(leads, generation_prompt, traces, tokens)
    shape.prefill = generation_prompt[len(shape.header) :] if generation_prompt.startswith(shape.header) else ""
    shape.heads = _heads(found, shape.header, prompts)
    _learn_gaps(shape, found, tokens)
    _learn_tails(shape, found, tokens, bos)
    orders = ["".join(part for part, _, _ in run.parts) for run in found]
    shape.order = max(orders, key=len, default="RCT")
    return shape


def _common(texts: Sequence[str]) -> str:
    """The common beginning of texts."""
    if not texts:
        return ""
    first, last = min(texts), max(texts)
    size = next((n for n, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[: min(len(first), len(last))] if size is None else first[:size]


def _token_pattern(added: Collection[str]) -> re.Pattern[str]:
    ordered = sorted((token for token in added if token.strip()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


def _header(leads: list[str], generation_prompt: str, traces: Sequence[Trace], tokens: re.Pattern[str]) -> str:
    """The role header: what assistant messages and the generation prompt begin with alike."""
    if not generation_prompt:
        return _whole_tokens(_common(leads), leads, tokens)
    leads = [lead for lead in leads if lead and not _later(lead, generation_prompt)]
    shared = {lead if generation_prompt.endswith(lead) else _shared(lead, generation_prompt, tokens) for lead in leads}
    header = min((text for text in shared if text), key=len, default=generation_prompt)
    framed = _same_frame(_user_lead(traces), generation_prompt)
    return framed if framed and header.startswith(framed) else header


def _later(lead: str, generation_prompt: str) -> bool:
    """Whether a lead goes on as the generation prompt begins, after more than it begins with of it."""
    size = len(_common([lead, generation_prompt]))
    return lead.find(generation_prompt[: size + 1], 1) > 0 and size < len(generation_prompt)


def _shared(lead: str, generation_prompt: str, tokens: re.Pattern[str]) -> str:
    return _whole_tokens(_common([lead, generation_prompt]), [lead, generation_prompt], tokens)


def _heads(found: list[_Found], header: str, prompts: Callable[[Probe, int], Iterable[str]]) -> tuple[str, ...]:
    """What stands before an answer in its prompt already, of answers that do not begin with the header."""
    heads: dict[str, None] = {}
    for run in found:
        lead, (trace, message, start) = run.lead, run.place
        if run.opens or not lead or lead.startswith(header):
            continue
        given = max(
            (len(text) for text in prompts(trace.probe, message) if trace.runs.text.startswith(text)), default=0
        )
        size = min(given - start, len(lead))
        at = lead.find(header, max(size, 0))
        if at == size or (at >= 0 and size <= 0):
            size = at + len(header)
        if size > 0:
            heads[lead[:size]] = None
    return tuple(sorted(heads, key=len, reverse=True))


_WORD = re.compile(r"\w+|\W")


def _same_frame(user_lead: str, generation_prompt: str) -> str:
    """The part of the generation prompt that is a user's header but for words; empty if it has none."""
    theirs, mine = _WORD.findall(user_lead), _WORD.findall(generation_prompt)
    if not theirs or len(mine) < len(theirs):
        return ""
    for one, other in zip(theirs, mine, strict=False):
        if one != other and not (one[0].isalnum() and other[0].isalnum()):
            return ""
    return "".join(mine[: len(theirs)])


def _user_lead(traces: Sequence[Trace]) -> str:
    for trace in traces:
        for index, message in enumerate(trace.probe.messages):
            runs = trace.texts(index) if message["role"] == "user" and index else []
            if runs and message["content"] in runs[0]:
                return runs[0][: runs[0].index(message["content"])]
    return ""


def _whole_tokens(prefix: str, texts: list[str], tokens: re.Pattern[str]) -> str:
    """Shorten a common prefix so that it cuts no added token of the texts in two."""
    cut = len(prefix)
    for text in texts:
        for match in tokens.finditer(text):
            if match.start() < cut < match.end():
                cut = match.start()
    return prefix[:cut]


def _rest(shape: Shape, lead: str) -> str:
    head = next((text for text in (shape.header, *shape.heads) if text and lead.startswith(text)), "")
    return lead[len(head) :]


def _learn_gaps(shape: Shape, found: list[_Found], tokens: re.Pattern[str]) -> None:
    leads: dict[str, dict[str, None]] = {"R": {}, "C": {}, "T": {}}
    gaps: dict[str, dict[str, None]] = {"RC": {}, "RT": {}}
    for run in found:
        first = run.parts[0][0]
        if first in leads:
            leads[first][_rest(shape, run.lead)] = None
        for (left, _, end), (right, start, _) in zip(run.parts, run.parts[1:], strict=False):
            if left + right in gaps:
                gaps[left + right][run.text[end:start]] = None
        if run.parts[-1][0] == "R":
            gaps["RT"][run.tail] = None
    shape.openings["R"] = tuple((lead, 0) for lead in leads["R"])
    opened = next(iter(leads["R"]), "").strip()
    # a first guess of what closes reasoning, to know an empty block when it is seen
    closes = [gap.strip() for gap in gaps["RC"]] or [_before(gap, leads["T"]).strip() for gap in gaps["RT"]]
    closed = closes[0] if closes else ""
    shape.empty = _empty_pattern(shape, opened, closed, leads["C"], tokens)
    content = {lead: _scaffold_end(shape, lead, closed) for lead in leads["C"]}
    own = sorted({lead[end:] for lead, end in content.items()}, key=len, reverse=True)
    between = {}
    for gap in gaps["RC"]:
        ends = [text for open_ in own for text in (shape.header + open_, open_) if text and gap.endswith(text)]
        between[gap] = len(gap) - max(map(len, ends), default=0)
    closings = [gap[:cut] for gap, cut in between.items()]
    to_calls = [_before(gap, leads["T"]) for gap in gaps["RT"]]
    shape.reasoning_close = _common([*closings, *gaps["RT"]]) if closings else _common(to_calls)
    closed = shape.reasoning_close.strip()
    if opened and closed:
        shape.empty = _empty_pattern(shape, opened, closed, leads["C"], tokens)
        content = {lead: _scaffold_end(shape, lead, closed) for lead in leads["C"]}
    shape.openings["C"] = tuple(sorted(content.items(), key=lambda item: -len(item[0])))
    shape.between = tuple(between.items())


def _before(gap: str, leads: Iterable[str]) -> str:
    """A gap without the text that opens a call, where that is known."""
    return next((gap.removesuffix(lead) for lead in leads if lead.strip() and gap.endswith(lead)), gap)


def _empty_pattern(shape: Shape, opened: str, closed: str, leads: Iterable[str], tokens: re.Pattern[str]) -> str:
    """What stands for reasoning that is not there: a block around nothing, or the last token of one alone.

    An answer without reasoning may have that one where its prompt opened the block: ``</think>`` after a prompt that
    ends with ``<think>`` or ``<think></think>``. No model wrote it there.
    """
    block = [r"\s*" + re.escape(opened) + r"\s*" + re.escape(closed) + r"\s*"] if opened and closed else []
    ends = {lead.rstrip() for lead in leads if _ends_block(lead.strip(), shape.prefill, closed, tokens)}
    return "|".join([*block, *map(re.escape, sorted(ends, key=len, reverse=True))])


def _ends_block(lead: str, prefill: str, closed: str, tokens: re.Pattern[str]) -> bool:
    """Whether a content's lead is one token, not the prefill, that closes reasoning or that the prefill ends with."""
    return lead != prefill and tokens.fullmatch(lead) is not None and (lead == closed or prefill.endswith(lead))


def _scaffold_end(shape: Shape, lead: str, closed: str) -> int:
    """Where what a content's lead says of reasoning that is not there ends."""
    match = re.match(shape.empty, lead) if shape.empty else None
    given = shape.prefill if closed and shape.prefill.rstrip().endswith(closed) else ""
    return max(match.end() if match else 0, len(given) if lead.startswith(given) else 0)


def _learn_tails(shape: Shape, found: list[_Found], tokens: re.Pattern[str], bos: str) -> None:
    tails: dict[tuple[str, str], None] = {}
    closes: dict[str, None] = {}
    stopped = False
    inner = _inner_call_tokens(found, tokens)
    for run in found:
        if run.parts[-1][0] == "R":
            continue
        tail = run.tail
        ends = [match for match in tokens.finditer(tail) if match.group() != bos]
        if ends and not (run.parts[-1][0] == "T" and ends[-1].group() in inner):
            tails[(ends[-1].group(), tail[ends[-1].end() :])] = None
            if run.parts[-1][0] == "C":
                closes[tail[: ends[-1].start()]] = None
                stopped = True
        elif run.parts[-1][0] == "C":
            closes[tail] = None
    shape.tails = tuple(sorted(tails, key=lambda pair: -len(pair[0] + pair[1])))
    shape.content_close = tuple(sorted((close for close in closes if close), key=len, reverse=True))
    shape.marker_stops = bool(found) and not stopped


def _inner_call_tokens(found: list[_Found], tokens: re.Pattern[str]) -> set[str]:
    """Added tokens that stand between or within calls: they close a call, not a turn."""
    inner: set[str] = set()
    for run in found:
        for part, start, end in run.parts:
            if part == "T":
                inner |= {match.group() for match in tokens.finditer(run.text[start:end])}
    return inner

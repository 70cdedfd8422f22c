"""Every view as text, plain or with ANSI colours, drawn by rich."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich import box as rich_box
from rich.console import Console, Group
from rich.padding import Padding
from rich.style import Style
from rich.table import Table as RichTable
from rich.text import Text

from retok_dask.errors import count_of
from retok_dask.views.palette import shade
from retok_dask.views.text import harmless, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from retok_dask.views.conversation import ConversationView
    from retok_dask.views.summary import Summary, Table
    from retok_dask.views.tokens import Block, Box, TokenView

_INK = "#1c1c1c"
_LONG = 2000


def _draw(parts: Iterable[RenderableType], *, colour: bool, width: int) -> str:
    out = io.StringIO()
    # markup and highlight off: the text is data, and data must not be able to style or hide anything
    console = Console(
        file=out,
        width=width,
        force_terminal=colour,
        force_jupyter=False,  # in a kernel, rich would display every line by itself
        color_system="truecolor" if colour else None,
        no_color=not colour,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _box_text(box: Box, kind: str, *, colour: bool) -> Text:
    text = Text()
    colours = shade(kind)
    base = Style(color=_INK, bgcolor=colours.light if box.trained else None, underline=box.trained)
    if not box.trained:
        base = Style(color=colours.strong, dim=True)
    if box.control:
        base += Style(bold=True, reverse=not box.trained)
    for piece in box.pieces:
        text.append(piece.text, base + Style(dim=piece.mark, italic=piece.mark and colour))
    if not colour and box.trained:
        # without colours the mask must still be readable
        text = Text("[") + text + Text("]")
    return text


def _flow(boxes: list[Box], kind: str, *, colour: bool) -> Text:
    text = Text(overflow="fold")
    for number, box in enumerate(boxes):
        if number and not colour and not box.trained and not boxes[number - 1].line_end:
            text.append("|", Style(dim=True))
        text.append_text(_box_text(box, kind, colour=colour))
        if box.line_end and number + 1 < len(boxes):
            text.append("\n")
    return text


def _block_row(block: Block, *, new: bool, colour: bool) -> tuple[Text, Text]:
    label = Text(f"{block.message if new and block.message >= 0 else '':>3} {block.kind} ")
    label.append(f"{block.tokens:,}", Style(dim=True))
    label.stylize(Style(color=shade(block.kind).strong))
    flow = _flow(block.head, block.kind, colour=colour)
    hidden = block.folded_tokens + block.undrawn
    if hidden:
        flow.append(f" … {count_of(hidden, 'token')} … ", Style(italic=True, dim=True))
    flow.append_text(_flow(block.tail, block.kind, colour=colour))
    return label, flow


def _facts_line(title: str, facts: list[tuple[str, str]]) -> Text:
    line = Text(title, Style(bold=True))
    for label, value in facts:
        line.append(f"   {label} ", Style(dim=True))
        line.append(value)
    return line


def token_text(view: TokenView, *, colour: bool, width: int) -> str:
    """The token view; trained tokens stand on a colour, or in brackets where there is no colour."""
    grid = RichTable(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    grid.add_column(width=20, no_wrap=True)
    grid.add_column(overflow="fold")
    message = None
    for block in view.blocks:
        grid.add_row(*_block_row(block, new=block.message != message, colour=colour))
        message = block.message
    legend = "underlined = trained" if colour else "[brackets] = trained"
    kinds = [f"{kind} {trained:,}/{tokens:,}" for kind, (tokens, trained) in view.kinds.items()]
    parts: list[RenderableType] = [
        _facts_line(view.title, view.facts),
        Text(f"{legend}; trained/all: " + ", ".join(kinds)),
    ]
    parts.append(grid)
    if view.skipped:
        parts.append(
            Text(f"not drawn: {count_of(view.skipped, 'more segment')} with {count_of(view.skipped_tokens, 'token')}")
        )
    return _draw(parts, colour=colour, width=width)


def conversation_text(view: ConversationView, *, colour: bool, width: int) -> str:
    """A conversation, one paragraph a part."""
    parts: list[RenderableType] = [_facts_line(view.title, view.facts)]
    if view.tools:
        parts.append(Text("tools: " + ", ".join(tool.name for tool in view.tools)))
    for turn in view.turns:
        parts.append(Text(f"[{turn.index}] {turn.role}", Style(bold=True, color=shade(turn.kind).strong)))
        if not turn.parts:
            parts.append(Padding(Text("(empty)", Style(dim=True)), (0, 0, 0, 4)))
        for part in turn.parts:
            body = Text(overflow="fold")
            if part.kind != turn.kind:
                body.append(f"{part.label}: ", Style(color=shade(part.kind).strong))
            body.append(part.text)
            hidden = len(part.rest) + part.cut
            if hidden:
                body.append(f" … {count_of(hidden, 'more character')}", Style(dim=True, italic=True))
            parts.append(Padding(body, (0, 0, 0, 4)))
    if view.skipped:
        parts.append(Text(f"{count_of(view.skipped, 'more message')} not drawn"))
    return _draw(parts, colour=colour, width=width)


def _rich_table(data: Table) -> Group:
    drawn = RichTable(box=rich_box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, column in enumerate(data.columns):
        drawn.add_column(Text(column), justify="right" if index in data.numeric else "left", overflow="fold")
    for row in data.rows:
        drawn.add_row(*(Text(cell, _VERDICTS.get(cell, "")) for cell in row))
    parts: list[RenderableType] = [Text(one_line(data.title), Style(bold=True))] if data.title else []
    parts.append(drawn)
    if data.more:
        parts.append(Text(f"{count_of(data.more, 'more row')}"))
    return Group(*parts)


_VERDICTS = {"PASSED": "bold green", "FAILED": "bold red", "WARNING": "bold yellow"}


def summary_text(summary: Summary, *, colour: bool, width: int) -> str:
    """A summary; says the same as its HTML."""
    head = Text(one_line(summary.title), Style(bold=True))
    if summary.verdict:
        head.append("  ")
        head.append(one_line(summary.verdict), _VERDICTS.get(summary.verdict, "bold yellow"))
    parts: list[RenderableType] = [head, *(Text(harmless(line, _LONG)) for line in summary.lines)]
    if summary.facts:
        grid = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        grid.add_column(no_wrap=True, style="dim")
        grid.add_column(overflow="fold")
        for label, value in summary.facts:
            grid.add_row(Text(one_line(label)), Text(harmless(value, _LONG)))
        parts.append(grid)
    for data in summary.tables:
        parts += [Text(""), _rich_table(data)]
    return _draw(parts, colour=colour, width=width)

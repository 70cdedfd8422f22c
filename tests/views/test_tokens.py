"""The token view says what the tokens are, in HTML and text alike, whatever is in them."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from view_samples import chat, make_sample

from retok_dask.views import sample_page, show_text, token_view
from retok_dask.views.tokens import TokenView


class Reader(HTMLParser):
    """Collects tags, and the boxes with class and title."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.boxes: list[dict[str, Any]] = []
        self.attributes: list[str] = []
        self._open = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given_attrs = dict(attrs)
        self.attributes += [name for name, _ in attrs]
        if tag == "span" and "rt-t" in (given_attrs.get("class") or "").split():
            self.boxes.append({"class": given_attrs["class"].split(), "title": given_attrs["title"], "text": ""})
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.boxes[-1]["text"] += data


def read(view: TokenView) -> Reader:
    reader = Reader()
    reader.feed(view._repr_html_())
    return reader


def drawn_boxes(view: TokenView) -> list[Any]:
    return [box for block in view.blocks for box in (*block.head, *block.folded, *block.tail)]


def test_each_token_is_drawn_once_with_id_bytes_kind_and_mask(qwen: Any) -> None:
    sample = make_sample(qwen, chat("Hi there", "The answer is 12.", "7 + 5"))
    view = token_view(sample, qwen)
    boxes = drawn_boxes(view)
    assert [token for box in boxes for token in box.ids] == sample["input_ids"].tolist()
    assert b"".join(box.data for box in boxes) == qwen.decode_bytes(sample["input_ids"])
    assert [box.trained for box in boxes for _ in box.ids] == sample["loss_mask"]
    drawn = read(view).boxes
    assert len(drawn) == len(boxes)
    stop = next(box for box in drawn if box["text"] == "<|im_end|>" and "rt-m" in box["class"])
    assert "rt-c" in stop["class"]
    assert "id 248046" in stop["title"]
    assert "stop, message 1" in stop["title"]
    assert "trained" in stop["title"]
    assert "3c 7c" in stop["title"]
    user = next(box for box in drawn if box["text"] == "Hi")
    assert "rt-m" not in user["class"]
    assert "not trained" in user["title"]


@pytest.mark.parametrize("text", ["👩‍👩‍👧‍👦", "𓀀𓂀", "成都の天気", "q̃", "مرحبا", "Cafe\u0301", "🇯🇵🇧🇷", "\U000e0041"])
def test_characters_split_over_tokens_survive(qwen: Any, text: str) -> None:
    sample = make_sample(qwen, chat(text, text))
    view = token_view(sample, qwen)
    assert "\ufffd" not in view._repr_html_()
    assert "\\x" not in view._repr_html_()
    for box in drawn_boxes(view):
        box.data.decode("utf-8")


def test_white_space_and_hidden_characters_are_visible(qwen: Any) -> None:
    sample = make_sample(qwen, chat("a b\tc\nd\r\ne\u00a0f\u200bg\u202eh\u2066i", "x"))
    text = "".join(box["text"] for box in read(token_view(sample, qwen)).boxes)
    for shown in ("a·b", "→c", "↵", "␍", "⍽", "⟨U+200B⟩", "⟨U+202E⟩", "⟨U+2066⟩"):
        assert shown in text, shown
    assert "\u202e" not in text
    assert "\u200b" not in text


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</span></div></style><style>*{display:none}",
    "</pre><script>1</script>",
    "&lt;b&gt; &amp;",
    "{{ 7 * 7 }} {% for x in y %}",
    "\u202eevil\u202c \u2066x",
    "\x1b[31mred\x1b[0m \x07\x00\x9b31m",
    "[bold red]markup[/bold red] :smile:",
    "javascript:alert(1)",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(qwen: Any, text: str) -> None:
    sample = make_sample(qwen, chat(text, text), source_file=text, source_row=3) | {"sample_id": text}
    view = token_view(sample, qwen)
    reader = read(view)
    assert set(reader.tags) <= {"div", "style", "pre", "b", "span", "i", "br", "wbr", "small", "details", "summary"}
    assert reader.tags.count("style") == 1
    assert not [name for name in reader.attributes if name.startswith("on") or name in {"src", "href"}]
    for page in (view._repr_html_(), sample_page(sample, qwen), view.to_text(), view.to_text(colour=False)):
        assert not any(character in page for character in "\x00\x07\x9b\u202e\u2066")
    assert "\x1b" not in view.to_text()
    coloured = view.to_text(colour=True)
    assert "\x1b[31mred" not in coloured
    shown = "".join(box["text"] for box in reader.boxes)
    expected = text.replace(" ", "·").replace("\u202e", "⟨U+202E⟩").replace("\u202c", "⟨U+202C⟩")
    expected = expected.replace("\u2066", "⟨U+2066⟩")
    for control in "\x1b\x07\x00\x9b":
        expected = expected.replace(control, f"⟨U+{ord(control):04X}⟩")
    assert shown.count(expected) == 2


def test_long_segments_fold_and_huge_samples_stay_bounded(qwen: Any) -> None:
    sample = make_sample(qwen, chat("word " * 500, "word " * 60_000))
    view = token_view(sample, qwen)
    html = view._repr_html_()
    assert len(html) < 1_500_000
    assert "<details>" in html
    drawn = sum(len(box.ids) for box in drawn_boxes(view))
    undrawn = sum(block.undrawn for block in view.blocks) + view.skipped_tokens
    assert drawn + undrawn == len(sample["input_ids"])
    assert drawn <= 4100
    assert f"{undrawn - view.skipped_tokens:,} tokens not drawn" in html
    # the numbers are those of the whole sample, drawn or not
    assert view.kinds["content"][0] >= 60_000
    assert len(view.to_text()) < 60_000


def test_a_fold_never_cuts_a_character(qwen: Any) -> None:
    sample = make_sample(qwen, chat("x", "𓀀𓂀𓁀" * 300))
    for length in range(20, 40):
        view = token_view(sample, qwen, long_segment=length, max_tokens=200 + length)
        for box in drawn_boxes(view):
            box.data.decode("utf-8")


def test_text_and_html_say_the_same(qwen: Any) -> None:
    sample = make_sample(qwen, chat("Guten Tag", "Hallo!"), truncated=True, source_file="s3://b/f.jsonl", source_row=7)
    view = token_view(sample, qwen)
    html, text = view._repr_html_(), view.to_text(width=200)
    for fact in ("s-1", "f.jsonl, row 7", "user", "header", "prefill", "stop", "<|im_end|>"):
        assert fact in text
        assert fact.replace("<", "&lt;").replace(">", "&gt;") in html
    # what the terminal brackets is what HTML underlines
    underlined = [box["text"] for box in read(view).boxes if "rt-m" in box["class"]]
    for box in underlined:
        assert f"[{box}]" in text


def test_control_tokens_keep_their_direction_in_right_to_left_text(qwen: Any) -> None:
    page = sample_page(make_sample(qwen, chat("مرحبا", "مرحبا", "كيف")), qwen)
    rule = page[page.index(".rt-t.rt-c{") :].split("}", 1)[0]
    assert "unicode-bidi:isolate" in rule, "or </think> would read as <think/>"
    assert "direction:ltr" in rule


def test_colours_only_where_asked(qwen: Any) -> None:
    sample = make_sample(qwen, chat("a", "b"))
    assert "\x1b[" in show_text(sample, qwen, colour=True, width=100)
    assert "\x1b[" not in show_text(sample, qwen, colour=False, width=100)


def test_rows_as_a_data_set_gives_them(qwen: Any) -> None:
    sample = make_sample(qwen, chat("a", "b"))
    tuples = [tuple(segment.values()) for segment in sample["segments"]]
    row = sample | {"segments": tuples, "loss_mask": np.array(sample["loss_mask"])}
    assert token_view(row, qwen)._repr_html_() == token_view(sample, qwen)._repr_html_()


def test_no_sample_at_all(qwen: Any) -> None:
    empty = token_view({"input_ids": [], "loss_mask": [], "segments": []}, qwen)
    assert "no tokens" in str(empty)
    with pytest.raises(ValueError, match="2 ids but 1 mask"):
        token_view({"input_ids": [1, 2], "loss_mask": [True], "segments": []}, qwen)


def test_page_needs_nothing_from_elsewhere(qwen: Any) -> None:
    page = sample_page(make_sample(qwen, chat("a", "b")), qwen)
    assert page.startswith("<!doctype html>")
    assert "http:" not in page
    assert "https:" not in page
    assert "<script" not in page


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_every_text_is_drawn_whole(qwen: Any, text: str) -> None:
    sample = make_sample(qwen, [("user", 0, text), ("content", 1, text)] if text else [("user", 0, "x")])
    view = token_view(sample, qwen)
    boxes = drawn_boxes(view)
    assert b"".join(box.data for box in boxes) == qwen.decode_bytes(sample["input_ids"])
    assert len(read(view).boxes) == len(boxes)
    view.to_text().encode()

"""Objects draw themselves: text and HTML say the same, harmless, bounded, never computing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retok_dask.cluster.plan import DatasetPlan, Plan
from retok_dask.cluster.result import RunResult
from retok_dask.cluster.status import DatasetStatus, OutputStatus, Status
from retok_dask.demo import open_recipe
from retok_dask.kernel import UnitStats
from retok_dask.recipe import Recipe
from retok_dask.tokenizers.switches import ProbeWord, Switch
from retok_dask.types import Conversation
from retok_dask.views import (
    audit_summary,
    conversation_view,
    dataset_summary,
    explore,
    plan_summary,
    recipe_html,
    recipe_summary,
    run_summary,
    status_summary,
    validation_summary,
)
from retok_dask.views.summary import Summary, cell, duration, size, table
from retok_dask.views.text import harmless, one_line, pieces


class Text(HTMLParser):
    """The text of the drawing, without the plain fallback and the style."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.tags: set[str] = set()
        self._skip = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self._skip += tag == "style" or (tag == "pre" and ("class", "rt-fallback") in attrs)

    def handle_endtag(self, tag: str) -> None:
        self._skip -= self._skip > 0 and tag in {"style", "pre"}

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.parts.append(data)


def words_of_html(fragment: str) -> list[str]:
    reader = Text()
    reader.feed(fragment)
    return re.findall(r"\w+", " ".join(reader.parts))


def words_of_text(text: str) -> list[str]:
    return re.findall(r"\w+", text)


VALIDATION = {
    "url": "s3://bucket/out",
    "full": False,
    "passed": False,
    "checks": [
        {
            "name": "accounting",
            "severity": "error",
            "passed": True,
            "detail": "adds up",
            "numbers": {"records_in": 3012},
        },
        {"name": "reject_share", "severity": "error", "passed": False, "detail": "too many", "numbers": {"share": 0.4}},
        {"name": "drift", "severity": "warning", "passed": False, "detail": "one unit is far off", "numbers": {}},
        {"name": "encoder", "severity": "info", "passed": True, "detail": "not checked: gone", "numbers": {}},
    ],
}
DATASET = {
    "url": "out",
    "datasets": ["a", "b"],
    "units": 3,
    "rows": 10,
    "tokens": 1000,
    "loss_tokens": 250,
    "columns": ["x"],
}
AUDIT = {
    "records": 5,
    "rows": [{"fact": "stop", "value": "<|im_end|>", "count": 5, "share": 1.0}],
    "roles": {"user assistant": 5},
}


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (validation_summary, VALIDATION),
        (dataset_summary, DATASET),
        (audit_summary, AUDIT),
        (run_summary, {"output": "o", "seconds": 1.5, "stats": {"tokens": 5, "rejected": 1}, "failed": {}}),
        (plan_summary, {"datasets": [{"name": "a", "tokens": 5, "trained_share": 0.5}], "memory_bytes": 2**30}),
        (status_summary, {"outputs": {"a": {"state": "running", "tokens": 12}}, "finished": False}),
    ],
)
def test_text_and_html_say_the_same(make: Any, data: dict[str, Any]) -> None:
    summary = make(data)
    assert sorted(words_of_html(summary._repr_html_())) == sorted(words_of_text(summary.to_text(width=400)))
    assert repr(summary) == str(summary)


def test_a_validation_names_what_failed_first() -> None:
    summary = validation_summary(VALIDATION)
    assert summary.verdict == "FAILED"
    assert summary.lines == ["1 of 4 checks failed: reject_share", "look at: drift"]
    assert [row[:2] for row in summary.tables[0].rows] == [
        ("FAILED", "reject_share"),
        ("WARNING", "drift"),
        ("SKIPPED", "encoder"),
        ("PASSED", "accounting"),
    ]


def test_a_recipe_draws_itself(tmp_path: Any) -> None:
    recipe = open_recipe(folder=tmp_path / "demo", conversations=20)
    fragment = recipe._repr_html_()
    assert fragment == recipe_html(recipe)
    for part in ("qwen3_6.tiktoken", "chatml_thinking.jinja", "assistant", "reasoning", "max_reject_share"):
        assert part in fragment
        assert part in recipe_summary(recipe).to_text(width=300)


EVIL = "<script>alert(1)</script>\u202e\x1b[31m"


def running_views() -> list[Summary]:
    """What plan, status and run say of a data set with such a name."""
    data = DatasetPlan(EVIL, 1, 1, 9, 4, 4, 4, 40, 10, 1, 1, 90, 0.1, 9)
    counts = {"layouts": {EVIL: 4}, "reject_reasons": {EVIL: 1}, "filter_reasons": {EVIL: 1}, "noticed": {EVIL: 1}}
    history = {EVIL: {"samples": 1, "tokens": 4, "loss_tokens": 1}}
    table_row = {"token": EVIL, "becomes": EVIL, "rule": EVIL}
    data = replace(data, **counts, history=history, source_tokens=30, token_table=[table_row])
    switch = Switch(EVIL, EVIL, "on", [ProbeWord(EVIL, [EVIL], [EVIL, EVIL], differs=True)], [EVIL])
    planned = Plan([data], 2, 2**30, 2**29, 12.5, audit=None, notes=[EVIL], settings=[switch])
    stats = UnitStats(records_in=4, records_out=2, samples=2, tokens=40, loss_tokens=10)
    stats.rejected[EVIL], stats.filtered[EVIL], stats.counts[EVIL] = 1, 1, 7
    result = RunResult(EVIL, stats, 3, {EVIL: EVIL}, seconds=3.0, committed_now=2, worker_deaths=1, performance=EVIL)
    event = {"at": 0.0, "kind": "unit_failed", "unit": EVIL, "why": EVIL, "session": EVIL}
    standing = OutputStatus(EVIL, "running", EVIL, [DatasetStatus(EVIL, 4, 1, 8, 2, 5, 5, 50, 5, 1)], 9.5, 60.0)
    status = Status([replace(standing, timeline=[event]), OutputStatus(EVIL, "no run", EVIL)])
    pairs = [(plan_summary, planned), (run_summary, result), (status_summary, status)]
    for made, thing in pairs:
        assert made(thing.to_dict())._repr_html_() == thing._repr_html_()
        assert EVIL in thing.to_text() or "alert(1)" in thing.to_text()
    return [made(thing.to_dict()) for made, thing in pairs]


def test_plan_status_and_run_draw_numbers_to_the_right_and_shares_as_bars() -> None:
    planned, ran, standing = running_views()
    for view, shares in ((planned, ["25.0 %"]), (ran, ["100.0 %"]), (standing, ["25.0 %", "10.0 %"])):
        drawn = view._repr_html_()
        for share in shares:
            part = share.replace(".0 %", "%")
            assert f'<td class="rt-num rt-bar" style="--part:{part}">{share}</td>' in drawn
    assert planned.tables[0].numeric >= {1, 2, 3, 4, 5, 6, 7}
    assert standing.tables[0].numeric >= {5, 6, 7, 8, 9}
    assert ran.verdict == "FAILED"
    for view in (planned, ran, standing):
        assert set(words_of_text(view.to_text(width=500))) <= set(words_of_html(view._repr_html_()))


def test_hostile_names_are_only_text() -> None:
    recipe = Recipe.from_dict({"tokenizer": EVIL, "output": EVIL, "datasets": [{"input": EVIL}]})
    conversation = Conversation(
        [{"role": EVIL, "content": EVIL, "reasoning_content": EVIL, "tool_calls": [EVIL]}], [EVIL], EVIL
    )
    for view in (
        recipe_summary(recipe),
        validation_summary(
            {"passed": True, "checks": [{"name": EVIL, "passed": True, "detail": EVIL, "numbers": {EVIL: EVIL}}]}
        ),
        run_summary({EVIL: EVIL, "x": {EVIL: 1}, "y": [{EVIL: EVIL}]}),
        conversation_view(conversation),
        *running_views(),
    ):
        for drawn in (view._repr_html_(), view.to_page()):
            reader = Text()
            reader.feed(drawn)
            assert "script" not in reader.tags
            assert "\u202e" not in drawn
            assert "\x1b" not in drawn
        assert "\x1b" not in view.to_text()
        assert "⟨U+202E⟩" in view.to_text(width=400)


def test_everything_is_bounded() -> None:
    huge = "x" * 5_000_000
    summary = run_summary({"a": huge, "b": dict.fromkeys(map(str, range(10_000)), 1), "c": [{"k": huge}] * 10_000})
    assert len(summary._repr_html_()) < 200_000
    assert "more rows" in summary._repr_html_()
    assert "more rows" in summary.to_text()
    view = conversation_view({"messages": [{"role": "user", "content": huge}] * 1000})
    assert len(view._repr_html_()) < 2_000_000
    assert "940 more messages not drawn" in view.to_text()


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [None],
        ["text"],
        [{}],
        [{"role": 3, "content": 4}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, "b"]}],
        [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}, {}],
            }
        ],
        [{"role": "assistant", "content": "\ud83d lone"}],
    ],
)
def test_odd_conversations_are_drawn_too(messages: list[Any]) -> None:
    view = conversation_view({"messages": messages, "tools": [{"function": {"name": "f"}}, "no tool", None]})
    view._repr_html_().encode()
    view.to_text().encode()


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_harmless_text_has_no_hidden_characters(text: str) -> None:
    import unicodedata

    for shown in (harmless(text), one_line(text), "".join(piece.text for piece in pieces(text))):
        shown.encode()
        hidden = {c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}}
        assert hidden <= set("\n\t\u200c\u200d")
    assert not set("\n\t\r ") & set("".join(piece.text for piece in pieces(text)))


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_values_make_a_summary(value: Any) -> None:
    summary = run_summary({"value": value, "list": [{"k": value}]})
    summary._repr_html_().encode()
    summary.to_text().encode()


def test_numbers_for_people() -> None:
    assert cell(1234567) == "1,234,567"
    assert cell(0.123456) == "0.1235"
    assert cell(True) == "yes"
    assert cell(None) == "-"
    assert size(1536) == "1.5 KiB"
    assert duration(200) == "3 min 20 s"
    assert duration(7500) == "2 h 5 min"
    assert table("t", ["a", "b"], [(1, "x"), (2, "y")]).numeric == {0}
    assert Summary("t", "FAILED").tone == "failed"


def test_exploring_without_a_tokenizer_says_what_is_not_looked_for(tmp_path):
    """Reading needs none; what only rendering would reject is then unknown."""
    (tmp_path / "in.jsonl").write_text('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant"}]}\n{}\n')
    data = [{"name": "chat", "input": str(tmp_path / "in.jsonl")}]
    found = explore(Recipe.from_dict({"tokenizer": str(tmp_path / "none.json"), "output": "o", "datasets": data}))
    assert found.looks["chat"].conversations == 1
    shown = found.odd_records().to_text()
    assert "chat: what only rendering finds is not here: " in shown
    assert "none.json" in shown
    assert "unknown_layout" in shown

"""Layouts and filters of the user's own: what they give is looked at, and costs no more than their record."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest import mock

import numpy as np
import pytest
from reading import A, Q, item_of, recipe_for, refusal

from retok_dask.completions import layout_for, record_filter
from retok_dask.errors import RecipeError
from retok_dask.types import (
    Conversation,
    Document,
    FilterReason,
    Record,
    RecordFiltered,
    RecordRejected,
    RejectReason,
    TokenRow,
)


def double(record):
    if record.get("bad"):
        raise RecordRejected(RejectReason.bad_layout, "said so")
    return [Conversation([Q, {"role": "assistant", "content": record["x"]}])] * record.get("times", 1)


def wrong(record):
    return record


def test_a_layout_of_the_users_own():
    name = f"{__name__}:double"
    assert sys.modules[__name__]
    assert item_of({"x": "y", "id": 4}, layout=name).messages[1]["content"] == "y"
    assert refusal({"bad": True}, layout=name) == ("bad_layout", "said so")
    assert refusal({}, layout=name)[0] == "user_function_failed"
    assert refusal({}, layout=f"{__name__}:wrong")[0] == "user_function_failed"
    for odd in ("no_such_module:f", f"{__name__}:none", f"{__name__}:Q"):
        with pytest.raises(RecipeError, match="layout"):
            layout_for(recipe_for("x", layout=odd).datasets[0])


class Mine(Conversation):
    pass


ODD = {
    "none": lambda: None,
    "generator": lambda: (item for item in [Conversation([Q, A])]),
    "exit": lambda: sys.exit(3),
    "end of a generator": lambda: (_ for _ in ()).throw(GeneratorExit),
    "coroutine": lambda: later(),  # noqa: PLW0108  defined below
    "filter without a text": lambda: (_ for _ in ()).throw(RecordFiltered("mine", None)),
    "refusal without a text": lambda: (_ for _ in ()).throw(RecordRejected(RejectReason.bad_layout, None)),
    "no messages": lambda: Conversation(None),
    "messages of a generator": lambda: Conversation(message for message in [Q, A]),
    "message of text": lambda: Conversation([Q, "a"]),
    "no role": lambda: Conversation([Q, {"content": "a"}]),
    "few flags": lambda: Conversation([Q, A], flags=[True]),
    "text flags": lambda: Conversation([Q, A], flags=["no", "yes"]),
    "number flags": lambda: Conversation([Q, A], flags=[0, float("nan")]),
    "no kept": lambda: Conversation([Q, A], kept=None),
    "no arguments": lambda: Conversation([Q, A], template_args=None),
    "odd counts": lambda: [Conversation([Q, A]), Conversation([Q, A], counts={"mine": 1, 3: float("nan")})],
    "ids": lambda: TokenRow([1, 2]),
    "number text": lambda: Document(5),
}


def odd(record):
    return ODD[record["odd"]]()


@pytest.mark.parametrize("name", ODD)
def test_what_a_layout_of_the_users_own_gives_is_looked_at_before_it_costs_more_than_a_record(name):
    reason, detail = refusal({"odd": name}, layout=f"{__name__}:odd")
    assert reason == "user_function_failed"
    assert ":odd" in detail


@pytest.mark.parametrize("reason", [FilterReason.too_short, "mine"])
def test_functions_of_the_users_own_may_say_that_a_good_record_is_left_out(reason):
    """As filtered, with the reason that they give: no reject."""
    record = Record("f", 0, 0, None, {"odd": "filtered"})
    spec = recipe_for("x", layout=f"{__name__}:odd", filters={"function": f"{__name__}:odd"}).datasets[0]
    with mock.patch.dict(ODD, filtered=lambda: (_ for _ in ()).throw(RecordFiltered(reason, "told"))):
        for asked in (layout_for(spec), record_filter(spec)):
            with pytest.raises(RecordFiltered) as told:
                asked(record)
            assert (told.value.reason, told.value.detail) == (reason, "told")


def test_a_keyboard_interrupt_in_the_main_thread_is_the_users():
    with mock.patch.dict(ODD, stopped=lambda: (_ for _ in ()).throw(KeyboardInterrupt)):
        with pytest.raises(KeyboardInterrupt):
            refusal({"odd": "stopped"}, layout=f"{__name__}:odd")
        with ThreadPoolExecutor(1) as worker:
            asked = worker.submit(refusal, {"odd": "stopped"}, layout=f"{__name__}:odd")
            assert asked.result() == ("user_function_failed", f"{__name__}:odd: KeyboardInterrupt: ")


def rows_of_ids(record):
    return TokenRow(**record["row"]) if "row" in record else Document("text")


def test_ids_of_the_users_own_are_integers():
    for row in ({"input_ids": [1.5, 2]}, {"input_ids": ["1"]}, {"input_ids": [1, 2], "loss_mask": [0, float("nan")]}):
        told = refusal({"row": row}, mode="tokens", layout=f"{__name__}:rows_of_ids")[1]
        assert "not integers" in told or "other than 0 and 1" in told
    assert "mode tokens does not take" in refusal({}, mode="tokens", layout=f"{__name__}:rows_of_ids")[1]
    assert item_of({"row": {"input_ids": [1, 2]}}, mode="tokens", layout=f"{__name__}:rows_of_ids") == TokenRow([1, 2])


def destroyer(record):
    record["nested"]["list"].append("more")
    record.pop("id")
    return Mine(({"role": "user", "content": "q"}, A), flags=[np.bool_(False), 1])


def test_a_function_of_the_users_own_may_change_its_record():
    kept = {"list": [1]}
    record = Record("f", 0, 0, None, {"id": 4, "nested": kept})
    spec = recipe_for(
        "x", layout=f"{__name__}:destroyer", keep=["nested"], filters={"function": f"{__name__}:destroyer"}
    )
    record_filter(spec.datasets[0])(record)
    (item,) = layout_for(spec.datasets[0])(record)
    assert record.value == {"id": 4, "nested": {"list": [1]}}
    assert (item.id, item.kept, item.messages) == ("4", {"nested": {"list": [1]}}, [Q, A])
    assert [type(flag) for flag in item.flags] == [bool, bool]
    assert item.flags == [False, True]


ANSWERS = {
    "generator": lambda: (True for _ in "x"),
    "coroutine": lambda: later(),  # noqa: PLW0108  defined below
    "array": lambda: np.array([True, False]),
    "exit": sys.exit,
}


async def later():
    return True


def answer(record):
    return ANSWERS[record["answer"]]()


@pytest.mark.parametrize("name", ANSWERS)
def test_what_a_filter_of_the_users_own_answers_is_true_or_false(name):
    check = record_filter(recipe_for("x", filters={"function": f"{__name__}:answer"}).datasets[0])
    with pytest.raises(RecordRejected, match="user_function_failed"):
        check(Record("f", 0, 0, None, {"answer": name}))
    with pytest.raises(RecipeError, match="no function"):
        record_filter(recipe_for("x", filters={"function": f"{__name__}:ANSWERS"}).datasets[0])


def keep_even(record):
    return record["n"] % 2 == 0


def test_records_are_sampled_by_their_place_and_filtered_by_a_function():
    records = [Record("/x/a.jsonl", -1, 100 * n, None, {"n": n}) for n in range(2000)]

    def kept(**dataset):
        check = record_filter(recipe_for("x", **dataset).datasets[0])
        found = []
        for record in records:
            with suppress(RecordFiltered):
                check(record)
                found.append(record.offset)
        return found

    tenth = kept(sample=0.1)
    assert 120 < len(tenth) < 280
    assert kept(sample=0.1) == tenth
    assert set(tenth) < set(kept(sample=0.5))
    assert kept(sample=0.1, seed=1) != tenth
    assert kept(filters={"function": f"{__name__}:keep_even"}) == [100 * n for n in range(0, 2000, 2)]
    check = record_filter(recipe_for("x", filters={"function": f"{__name__}:keep_even"}).datasets[0])
    with pytest.raises(RecordRejected, match="user_function_failed"):
        check(Record("f", 0, 0, None, {}))
    with pytest.raises(RecipeError, match="cannot be imported"):
        record_filter(recipe_for("x", filters={"function": "nowhere:f"}).datasets[0])

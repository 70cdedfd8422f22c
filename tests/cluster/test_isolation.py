"""The search for bad records, and the explanation of deaths, by themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stubjob import make_units

from retok_dask.cluster.deaths import Hearsay
from retok_dask.cluster.isolation import MAX_BAD_RECORDS, STRIKES, Isolation
from retok_dask.types import RejectReason


def search(isolation: Isolation, records: int, fails) -> tuple[str, int]:
    """Play the driver's part; gives the last step and the trials that failed."""
    failures = 0
    for _ in range(100_000):
        step = isolation.next_step()
        assert step is not None
        task, part = step
        if task in {"encode", "failed"}:
            return task, failures
        if task == "count":
            isolation.counted(records)
        elif fails(part.first, part.last):
            failures += 1
            isolation.failed(part, RejectReason.killed_worker, "died")
        else:
            isolation.survived(part)
    pytest.fail("the search does not end")


@given(st.integers(1, 3000).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=6))))
def test_exactly_the_bad_records_are_found_at_a_bounded_price(case):
    records, bad = case
    isolation = Isolation(make_units(1, records)[0], "it died")
    step, failures = search(isolation, records, lambda first, last: any(first <= n < last for n in bad))
    assert step == "encode"
    assert set(isolation.found) == bad
    assert failures <= len(bad) * isolation.expected_deaths()


@given(st.integers(2, 200), st.integers(0, 10**6))
def test_a_single_death_by_chance_sets_nothing_aside(records, seed):
    import random

    rng = random.Random(seed)
    struck: set[tuple[int, int]] = set()

    def chance(first, last):
        if (first, last) in struck or rng.random() < 0.5:
            return False
        struck.add((first, last))
        return True

    isolation = Isolation(make_units(1, records)[0], "it died")
    assert search(isolation, records, chance)[0] == "encode"
    assert STRIKES > 1
    assert not isolation.found


def test_a_unit_that_cannot_be_saved_is_given_up():
    """Not for ever: https://github.com/marin-community/marin/issues/2212"""
    isolation = Isolation(make_units(1, 500)[0], "it died")
    assert search(isolation, 500, lambda first, last: True)[0] == "failed"
    assert f"more than {MAX_BAD_RECORDS}" in isolation.given_up
    whole = Isolation(make_units(1, 8)[0], "it died")
    for _ in range(3):
        assert search(whole, 8, lambda first, last: False)[0] == "encode"
        whole.encode_failed("it died again")
    assert search(whole, 8, lambda first, last: False)[0] == "failed"
    assert "its parts survive" in whole.given_up


@pytest.mark.parametrize(
    ("heard", "kind", "said"),
    [
        (lambda h: h.over_memory("w", 3 * 2**30), "memory", "3.00 GiB of 4.00 GiB"),
        (lambda h: h.no_heartbeat("w", 300), "heartbeat", "no heartbeat for 300 s"),
        (lambda h: None, "lost", "its process or its link went away"),
        (lambda h: (h.beat("w", 7, 95, 5), h.exits.update({7: "signal 11 (SIGSEGV)"})), "crash", "SIGSEGV"),
        (lambda h: (h.beat("w", 7, 95, 5), h.exits.update({7: "signal 9 (SIGKILL)"})), "lost", "SIGKILL"),
        # where a nanny here tells, nothing is guessed from the time
        (lambda h: (h.beat("w", 7, 99, 5), h.exits.update({7: "signal 14 (SIGALRM)"})), "time", "longer than 60 s"),
        (lambda h: (h.beat("w", 7, 39, 5), h.exits.update({7: "signal 11 (SIGSEGV)"})), "crash", "SIGSEGV"),
        (lambda h: (h.beat("w", 7, 39, 5), h.exits.update({7: "exit status 1"})), "crash", "exit status 1"),
        (lambda h: (h.beat("w", 7, 39, 5), h.exits.update({7: "signal 9 (SIGKILL)"})), "lost", "SIGKILL"),
        # where none does, the silence is what there is; a sign that comes late counts from when it was sent
        (lambda h: h.beat("w", 7, 39, 5), "time", "longer than 60 s"),
        (lambda h: h.beat("w", 7, 95, 5), "lost", "went away"),
        (lambda h: (h.beat("w", 7, 30, 2), h.beat("w", 7, 97, 5)), "time", "longer than 60 s"),
    ],
)
def test_a_death_is_explained_by_what_was_heard(heard, kind, said):
    hearsay = Hearsay(60.0, {})
    heard(hearsay)
    cause = hearsay.cause("w", 100.0, {"w": 4 * 2**30})
    assert cause.kind == kind
    assert said in cause.text
    assert cause.advice

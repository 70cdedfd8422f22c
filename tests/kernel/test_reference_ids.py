"""Ids equal `apply_chat_template(tokenize=True)` in one call: each family's real tokenizer and template, all shapes."""

from __future__ import annotations

import datetime as dt

import pytest
from pipelines import outcome
from reported import real, reference_ids

from retok_dask.recipe import NormalizeSpec
from retok_dask.templates import normalize_conversation
from retok_dask.templates.probes import TOOLS, Probe, probes
from retok_dask.templates.prove import shaped
from retok_dask.types import Conversation

FAMILIES = {
    "qwen3_6": "trl/qwen3_6",
    "llama3_1": "trl/llama3_1",
    "gemma3": "trl/gemma3",
    "gptoss": "trl/gptoss",
    "kimi": "llama-cpp-python/moonshotai-Kimi-K2",
    "glm": "llama-cpp-python/GLM-4.6",
    "deepseek_v3": "trl/deepseekv3",
    "mistral_nemo": "llama-cpp-python/mistralai-Mistral-Nemo-Instruct-2407",
}
HOSTILE = "e\u0301 👩‍👩‍👧 中文 \u2028 \x00 \r\n  <think> </s> <|im_end|> <end_of_turn> <|eot_id|>  "
PARTS = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]


def shapes() -> list[Probe]:
    """The probes, and what data sets hold beside them."""
    said = {"role": "assistant", "content": "Fine. 👍"}
    more = [
        Probe("hostile", [{"role": "user", "content": HOSTILE}, said, {"role": "user", "content": HOSTILE * 2}, said]),
        Probe("parts", [{"role": "user", "content": PARTS}, said]),
        Probe(
            "system_and_tools", [{"role": "system", "content": HOSTILE}, {"role": "user", "content": "u"}, said], TOOLS
        ),
    ]
    return [probe for probe in probes() if probe.name != "developer"] + more  # that role has a test of its own


@pytest.mark.parametrize("vocabulary", FAMILIES)
def test_ids_equal_the_reference(vocabulary):
    """Control-token text is passed through here, as the reference does by default."""
    today = _today()
    try:
        check_ids(vocabulary, today)
    except AssertionError:
        if _today() == today:
            raise
        check_ids(vocabulary, _today())  # midnight passed, and the reference prints the day


def _today() -> dt.date:
    return dt.datetime.now().astimezone().date()


def check_ids(vocabulary: str, today: dt.date) -> None:
    name = FAMILIES[vocabulary]
    made = real(name, vocabulary, control_tokens="allow", date=today.isoformat())
    found = shapes()
    records = [{"messages": probe.messages, "tools": probe.tools} for probe in found]
    rows, left_out, _ = outcome(made, records)
    assert {item["reason"] for item in left_out} <= {"template_error", "system_not_supported", "no_trained_tokens"}
    assert len(rows) >= 17
    assert all(found[item["source_row"]].name not in ("plain", "turns", "hostile", "parts") for item in left_out)
    for row in rows:
        probe = found[row["source_row"]]
        ready = normalize_conversation(Conversation(probe.messages, probe.tools), NormalizeSpec())
        want = reference_ids(name, vocabulary, shaped(ready.messages, made.template.facts.form), tools=ready.tools)
        assert row["input_ids"] == want, probe.name

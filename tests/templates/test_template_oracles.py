"""Our masks beside those of people who tagged templates by hand: each difference has its reason."""

from __future__ import annotations

import pytest
from templates_common import public, public_texts

from retok_dask.templates.probes import probes
from retok_dask.types import Conversation

NEWLINE = "they train the white space after the stop token"
HEADER = "their tags begin before the role header, or before its last newline where a call follows it"
EMPTY = "they train the frame around a part that is not there, such as an empty think block"
PREFILL = "they train what the generation prompt has already written"
HAND_OVER = "they do not train the token that hands a finished call over to the tool"
LAST_EOS = "they train the end-of-text token after the whole conversation, which belongs to no message"

DIFFERENCES: dict[str, dict[tuple[str, bool], str]] = {
    "cohere2": {("scaffold", True): EMPTY},
    "deepseek_r1_distill": {("header", True): HEADER},
    "deepseekv3": {("header", True): HEADER},
    "diffusion_gemma": {("trailer", True): NEWLINE, ("stop", False): HAND_OVER},
    "glm4moe": {("scaffold", True): EMPTY},
    "gptoss": {("header", True): HEADER, ("scaffold", True): EMPTY},
    "idefics3": {("trailer", True): NEWLINE, ("scaffold", True): EMPTY},
    "llava_next": {("header", True): HEADER},
    "muse_glimmer": {("header", True): HEADER, ("scaffold", True): EMPTY},
    "phi3": {("trailer", True): NEWLINE, ("other", True): LAST_EOS},
    "phi3_5": {("trailer", True): NEWLINE, ("other", True): LAST_EOS},
    "qwen2_5": {("header", True): HEADER, ("trailer", True): NEWLINE},
    "qwen3": {("scaffold", True): EMPTY, ("trailer", True): NEWLINE},
    "smolvlm": {("trailer", True): NEWLINE, ("scaffold", True): EMPTY},
    "cohere": {},
    "llama3": {},
}
DIFFERENCES |= {
    name: {("trailer", True): NEWLINE}
    for name in ("gemma", "gemma3", "lfm2", "lfm2_v2", "qwen2_5_vl", "qwen3_instruct_2507", "qwen3_vl")
}
DIFFERENCES |= {
    name: {("prefill", True): PREFILL, ("scaffold", True): EMPTY, ("trailer", True): NEWLINE}
    for name in ("nemotron_3_5_lightning", "nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra")
}
DIFFERENCES |= {
    name: {("prefill", True): PREFILL, ("scaffold", True): EMPTY, ("trailer", True): NEWLINE}
    for name in ("qwen3_5_think", "qwen3_6", "qwen3_8")
}
DIFFERENCES["qwen3_5_nothink"] = {("prefill", True): PREFILL, ("trailer", True): NEWLINE}

RESULTS_END = "<｜tool▁outputs▁end｜>"
"""The prompt of an answer to results ends with it; those twins train it, as they train their header."""

TWINS = sorted(name.split("/")[1].removesuffix("_training") for name in public_texts() if name.endswith("_training"))


@pytest.mark.parametrize("family", TWINS)
def test_trl_training_twins(family):
    """On the twin's own rendering, its tags and our segments disagree in the listed ways, and in no other."""
    template = public(f"trl/{family}_training")
    assert template.facts.generation_tags
    seen: dict[tuple[str, bool], list[str]] = {}
    for probe in probes():
        if probe.name not in template.facts.refused:
            for difference in template.compare_tags(Conversation(probe.messages, probe.tools)):
                seen.setdefault((difference.kind, difference.tagged), []).append(difference.text)
    assert set(seen) == set(DIFFERENCES[family])
    for (kind, _), texts in seen.items():
        if kind in ("trailer", "header") and family not in ("gptoss", "muse_glimmer"):
            assert all(not text.strip() or text in (template.facts.header, RESULTS_END) for text in texts)
        assert not any("says something" in text or "ponders" in text or "Arg" in text for text in texts)


def test_every_twin_is_in_the_table():
    assert set(TWINS) == set(DIFFERENCES)
    assert len(TWINS) >= 30

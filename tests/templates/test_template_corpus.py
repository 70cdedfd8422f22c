"""Every public template: the reference's text, each message in its own span, each part of its own kind."""

from __future__ import annotations

import pytest
from templates_common import KWARGS, check_cover, public, public_texts, spans
from transformers.utils.chat_template_utils import render_jinja_template

from retok_dask.errors import TemplateError
from retok_dask.recipe import NormalizeSpec
from retok_dask.templates import normalize_conversation
from retok_dask.templates.probes import probes
from retok_dask.templates.prove import shaped
from retok_dask.types import Conversation

# Templates whose spans cannot be proved, with the reason; they must be refused at run time with it.
REFUSED: dict[str, str] = {}

# Templates that minijinja may not render, or renders otherwise, with what is said of it.
NOT_FAST = {
    "axolotl/jamba": "giants",
    "llama-cpp-python/CohereForAI-c4ai-command-r-plus-tool_use": "giants",
    "llama-cpp-python/NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "giants",
    "llama-cpp-python/NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "giants",
    "llama-cpp-python/llama-cpp-deepseek-r1": "the reference refuses it",
    "llama-cpp-python/meetkai-functionary-medium-v3.1": "another text than the reference",
    "llama-cpp-python/GigaChat3-10B-A1.8B": "giants",
    "llama-cpp-python/GigaChat3.1-10B-A1.8B": "giants",
    "llama-cpp-python/Reka-Edge": "giants",
    "llama-cpp-python/meetkai-functionary-medium-v3.2": "giants",
    "llama-cpp-python/openbmb-MiniCPM5-1B": "giants",
}

NAMES = sorted(public_texts())


def reference(name: str, template, messages, tools) -> str:
    """What transformers renders, with nothing of ours but the form that the template wants."""
    rendered, _ = render_jinja_template(
        conversations=[shaped(messages, template.facts.form)],
        tools=tools,
        chat_template=public_texts()[name],
        bos_token="<BOS>",
        eos_token="<EOS>",
        **KWARGS.get(name, {}),
    )
    return rendered[0]


def parts(message) -> list[tuple[str, str]]:
    found = [("content", message["content"].strip()), ("reasoning", message.get("reasoning_content", "").strip())]
    calls = message.get("tool_calls") or []
    found += [("tool_call", next(iter(call["function"]["arguments"].values()))) for call in calls]
    return [(kind, text) for kind, text in found if text]


def check_parts(conversation: Conversation, row) -> None:
    """Each text that comes out lies in spans of its own message (and kind, for assistants), and in no other's."""
    for number, message in enumerate(conversation.messages):
        for kind, text in parts(message):
            for span_kind, owner, span in spans(row):
                if text not in span:
                    continue
                if message["role"] == "assistant":
                    assert (span_kind, owner) == (kind, number)
                elif message["role"] in ("user", "tool"):
                    assert owner == number
                else:
                    assert owner < 0 or conversation.messages[owner]["role"] != "assistant"


@pytest.mark.parametrize("name", NAMES)
def test_public_template(name):
    if name in REFUSED:
        with pytest.raises(TemplateError, match=REFUSED[name]):
            public(name)
        return
    template = public(name)
    dated = template.facts.prints_date
    rendered = 0
    for probe in probes():
        if probe.name in template.facts.refused:
            continue
        conversation = Conversation(probe.messages, probe.tools)
        row = template.render(conversation)[0]
        check_cover(row)
        if not dated and probe.name != "developer":
            ready = normalize_conversation(conversation, NormalizeSpec())
            assert row.text == reference(name, template, ready.messages, ready.tools)
        assert row.text == template.reference_text(conversation)
        if probe.unique:
            check_parts(conversation, row)
        rendered += 1
    assert rendered


def test_every_public_template_is_proved():
    """The figure: all but those in the table."""
    proved = [name for name in NAMES if name not in REFUSED]
    fast = sum(public(name).engine == "minijinja" for name in proved)
    print(f"\n{len(proved)} of {len(NAMES)} public templates proved, {fast} of them in minijinja")
    assert len(NAMES) >= 170
    assert fast >= len(proved) * 0.9


def test_all_public_templates_but_a_few_run_in_the_fast_engine():
    slow = {}
    for name in NAMES:
        learned = public(name)._main.learned
        if learned.engine == "jinja":
            slow[name] = learned.tried
    assert set(slow) == set(NOT_FAST)
    for name, why in NOT_FAST.items():
        assert any(why in text for text in slow[name]), (name, slow[name])

"""Loss masks that went wrong in public, as whole cases: a record in, ids and mask out, on real templates."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import yaml
from pipelines import kind_text, outcome, qwen, trained_text
from reported import TOOLS, TWO_THINKING, calling, chat, real, reference_ids, template_text, tokenizer

from retok_dask.datasets.exits.base import shifted_targets
from retok_dask.demo import qwen_tokenizer_spec
from retok_dask.errors import UnprovenTemplate
from retok_dask.schema import sample_schema
from retok_dask.single import encode_stream

QWEN3, QWEN25 = "trl/qwen3", "trl/qwen2_5"


def of_kind(row, vocabulary, kind):
    return [text for name, _, text in kind_text(row, tokenizer(vocabulary)) if name == kind]


def test_a01_the_command_trains_answers_of_a_template_without_tags(tmp_path):
    """marin issue 7237: masks of templates without generation tags were all zero, and the run went on."""
    recipe = {"tokenizer": qwen_tokenizer_spec(), "template": {"text": template_text(QWEN25)}, "engine": "reference"}
    recipe |= {"output": "-", "datasets": [{"input": "-"}]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    source = io.BufferedReader(io.BytesIO(json.dumps(chat("ping", "pong")).encode() + b"\n"))
    sink = io.BytesIO()
    assert encode_stream(source, sink, tokenizer=str(tmp_path / "recipe.yaml")) == 0
    row = json.loads(sink.getvalue())
    assert row["input_ids"] == reference_ids(QWEN25, "qwen3_6", chat("ping", "pong")["messages"])
    assert trained_text(row, qwen()) == ["pong<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "vocabulary", "trained"),
    [
        ("trl/llama3_1", "llama3_1", "pong<|eot_id|>"),
        ("trl/gemma3", "gemma3", "pong<end_of_turn>"),
        ("trl/gptoss", "gptoss", "<|channel|>final<|message|>pong<|return|>"),
    ],
)
def test_a01_other_families_too(template, vocabulary, trained):
    """marin issue 7237."""
    (row,), _, _ = outcome(real(template, vocabulary), [chat("ping", "pong")])
    assert trained_text(row, tokenizer(vocabulary)) == [trained]


def test_a01_no_mask_no_run():
    """marin issue 7237: where no method gives a mask, nothing is encoded at all."""
    made = real(QWEN25)
    text = "{{ messages | map(attribute='content') | join('<|im_end|>') }}<|im_end|>"
    hopeless = made.recipe.with_changes(template={"text": text})
    other = type(made)(hopeless)
    other.__dict__["tokenizer"] = made.tokenizer
    with pytest.raises(UnprovenTemplate):
        list(other.process([]))


@pytest.mark.parametrize("truncation", ["right", "left"])
@pytest.mark.parametrize(("template", "vocabulary"), [(QWEN25, "qwen3_6"), ("trl/gemma3", "gemma3")])
def test_a03_a_cut_answer_keeps_the_mask_of_what_survives(template, vocabulary, truncation):
    """transformers issue 34494: an answer whose end was cut off lost its whole mask."""
    record = chat("Tell me a lot.", "fine " * 50)
    (whole,), _, _ = outcome(real(template, vocabulary), [record])
    start = whole["loss_mask"].index(True)
    limit = start + 12 if truncation == "right" else 12
    (row,), _, stats = outcome(real(template, vocabulary, max_length=limit, truncation=truncation), [record])
    kept = slice(0, limit) if truncation == "right" else slice(-limit, None)
    assert row["input_ids"] == whole["input_ids"][kept]
    assert row["loss_mask"] == whole["loss_mask"][kept]
    assert row["num_loss_tokens"] >= 10
    assert row["truncated"]
    assert stats.stop_rows == (truncation == "left")  # a stop token that was cut off is missing, never made up
    assert bool(of_kind(row, vocabulary, "stop")) == (truncation == "left")


AWKWARD = [" the", "\n\nthe", "😀ok", "the  ", "e\u0301", "👩‍👩‍👧", "\r\nx\r\n", "中文 \u2028 y"]


@pytest.mark.parametrize(
    ("template", "vocabulary", "stop"),
    [
        ("trl/gemma3", "gemma3", "<end_of_turn>"),  # SentencePiece with byte fallback
        ("trl/llama3_1", "llama3_1", "<|eot_id|>"),  # byte-level BPE
        ("llama-cpp-python/moonshotai-Kimi-K2", "kimi", "<|im_end|>"),  # tiktoken
    ],
)
def test_a04_masks_do_not_depend_on_the_kind_of_tokenizer(template, vocabulary, stop):
    """transformers issue 33091: the same conversation had a right, an empty or a shifted mask, by tokenizer."""
    rows, left_out, stats = outcome(real(template, vocabulary), [chat("q", text) for text in AWKWARD])
    assert not left_out
    trims = template.startswith("trl/")  # these two strip an answer
    for row, text in zip(rows, AWKWARD, strict=True):
        assert row["input_ids"] == reference_ids(template, vocabulary, chat("q", text)["messages"])
        (found,) = trained_text(row, tokenizer(vocabulary))
        said = text.strip() if trims else text
        assert found.encode() == (said + stop).encode()
    assert stats.shared_tokens == 0


def test_a06_nothing_is_added_after_the_stop_token():
    """trl issue 3318: a second stop token was appended after the newline that ends a turn."""
    (row,), _, _ = outcome(real(QWEN25), [chat("Say hi", "Hi.")])
    end, newline = qwen().token_id("<|im_end|>"), 198
    assert qwen().decode([newline]) == "\n"
    assert row["input_ids"][-2:] == [end, newline]
    assert row["loss_mask"][-2:] == [True, False]
    answer = row["input_ids"][row["loss_mask"].index(True) :]
    assert answer.count(end) == 1
    assert row["input_ids"] == reference_ids(QWEN25, "qwen3_6", chat("Say hi", "Hi.")["messages"])


def test_a07_a_template_that_rewrites_history():
    """Automodel pull 3024: spans by the length of prefixes ran on into the user's next turn."""
    (row,), _, stats = outcome(real(QWEN3), [{"messages": TWO_THINKING}])
    assert trained_text(row, qwen()) == ["a1<|im_end|>", "<think>\nr2\n</think>\n\na2<|im_end|>"]
    assert row["input_ids"] == reference_ids(QWEN3, "qwen3_6", TWO_THINKING)
    assert stats.counts["reasoning_dropped"] == 1


def test_a08_parallel_calls_and_results_as_the_whole_conversation_renders():
    """slime issue 2263: messages rendered one by one gave two tool blocks where the template writes one."""
    messages = [
        {"role": "user", "content": "Rome?"},
        calling("weather", "time"),
        {"role": "tool", "content": "sunny", "tool_call_id": "call00000"},
        {"role": "tool", "content": "noon", "tool_call_id": "call00001"},
        {"role": "assistant", "content": "done"},
    ]
    (row,), _, _ = outcome(real(QWEN3), [{"messages": messages, "tools": TOOLS}])
    assert row["input_ids"] == reference_ids(QWEN3, "qwen3_6", messages, tools=TOOLS)
    calls, last = trained_text(row, qwen())
    assert [calls.count(text) for text in ("<tool_call>", '"weather"', '"time"', "<|im_end|>")] == [2, 1, 1, 1]
    assert last == "done<|im_end|>"
    text = qwen().decode(row["input_ids"])
    assert text.count("<|im_start|>user") == 2  # the question, and one block for both results
    assert [owner for kind, owner, _ in kind_text(row, qwen()) if kind == "tool"] == [2, 3]


def test_a10_a_mask_is_unshifted_and_says_so():
    """torchtitan pull 2755: the first answer token was lost, or the header's last one trained."""
    made = real(QWEN25)
    (row,), _, _ = outcome(made, [chat("x", "Sure thing")])
    ids, mask = np.array(row["input_ids"]), np.array(row["loss_mask"])
    first = int(mask.argmax())
    assert qwen().decode(ids[first : first + 1]) == "Sure"
    assert qwen().decode(ids[first - 3 : first]) == "<|im_start|>assistant\n"
    assert not mask[:first].any()
    targets = shifted_targets(ids, mask)
    assert targets[first - 1] == ids[first]  # the header's last token predicts the answer's first
    assert (targets != -100).sum() == mask.sum()
    assert b"unshifted" in sample_schema([]).metadata[b"retok.loss_mask"]


def test_a12_a_row_whose_answer_is_cut_off_is_not_written():
    """trl issue 6668: rows without one trained token gave a loss of 0.0 or NaN."""
    long, short = chat("word " * 200, "ok"), chat("q", "ok")
    rows, left_out, stats = outcome(real(QWEN25, max_length=64, truncation="right"), [short, long])
    assert [row["source_row"] for row in rows] == [0]
    assert stats.filtered == {"no_trained_tokens_after_truncation": 1}
    assert (left_out[0]["source_file"], left_out[0]["source_row"]) == ("a.jsonl", 1)
    (whole,), _, _ = outcome(real(QWEN25), [long])
    (exact,), _, stats = outcome(real(QWEN25, max_length=whole["num_tokens"], truncation="right"), [long])
    assert not exact["truncated"]
    assert stats.truncated == 0


@pytest.mark.parametrize(
    ("template", "kind"), [(QWEN3, "scaffold"), ("trl/qwen3_6", "prefill"), ("trl/nemotron_3_nano", "scaffold")]
)
def test_a14_an_empty_think_block_is_not_trained(template, kind):
    """Automodel issue 3738: answers without reasoning taught the model not to think."""
    (row,), _, stats = outcome(real(template), [chat("Solve", "import sys")])
    assert trained_text(row, qwen()) == ["import sys<|im_end|>"]
    assert "<think>" in "".join(of_kind(row, "qwen3_6", kind))
    assert stats.kind_tokens["scaffold"] + stats.kind_tokens["prefill"] >= 2  # counted, apart from content
    thought = {"messages": [chat("Solve")["messages"][0], {**TWO_THINKING[1], "content": "import sys"}]}
    (row,), _, _ = outcome(real(template), [thought])
    (text,) = trained_text(row, qwen())
    assert "r1" in text
    assert "</think>" in text


def test_a16_every_answer_is_trained_where_role_markers_end_turns():
    """Megatron-Bridge pull 5633: earlier answers left the mask when the template dropped their reasoning."""
    template = "llama-cpp-python/GLM-4.6"
    (row,), _, _ = outcome(real(template, "glm"), [{"messages": TWO_THINKING}])
    assert row["input_ids"] == reference_ids(template, "glm", TWO_THINKING)
    trained = trained_text(row, tokenizer("glm"))
    assert trained == ["a1<|user|>", "\n<think>r2</think>\na2"]
    chosen = {one["message"] for one in row["segments"] if any(row["loss_mask"][one["start"] : one["end"]])}
    assert chosen == {1, 3}  # as many trained spans as answers


@pytest.mark.parametrize(
    ("off", "on"),
    [
        ({"train": 0}, {"train": 1}),
        ({"train": "0"}, {"train": "1"}),
        ({"train": False}, {"train": True}),
        ({"weight": 0}, {"weight": 1}),
        ({"loss_weight": 0.0}, {}),
    ],
)
def test_a17_flags_stay_with_their_messages(off, on):
    """LlamaFactory pull 9630: a list of flags beside the messages fell out of step with merged tool results."""
    messages = [
        {"role": "user", "content": "u"},
        calling("weather", **off),
        {"role": "tool", "content": "t1"},
        {"role": "tool", "content": "t2"},
        {"role": "assistant", "content": "second", **on},
        {"role": "tool", "content": "t3"},
    ]
    made = real(QWEN3)
    (row,), _, _ = outcome(made, [{"messages": messages}])
    assert trained_text(row, qwen()) == ["second<|im_end|>"]
    bare = [{k: v for k, v in message.items() if k not in off | on} for message in messages]
    (plain,), _, _ = outcome(made, [{"messages": bare}])
    assert row["input_ids"] == plain["input_ids"]
    assert len(trained_text(plain, qwen())) == 2


def test_a17_flags_against_a_policy_of_the_last_turn_are_refused():
    """LlamaFactory pull 9630."""
    messages = [*chat("u", "first", "v", "second")["messages"]]
    messages[1] = {**messages[1], "train": 1}
    rows, left_out, _ = outcome(real(QWEN3, mask="last_assistant"), [{"messages": messages}])
    assert not rows
    assert left_out[0]["reason"] == "flag_conflict"
    assert "last_assistant" in left_out[0]["detail"]


def test_a19_tags_written_into_a_template_by_hand():
    """transformers pull 30650: a line break after a tag is swallowed, so the marked copy renders other text.

    No copy is needed here; one that is used keeps the ids that it renders, and
    can't pass for the original: its digest, and with it the run's, is another.
    """
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    said = "{{ m.content }}<|im_end|>"
    tagged = plain.replace(
        f"{said}\n",
        "{% if m.role == 'assistant' %}{% generation %}"
        + said
        + "{% endgeneration %}\n{% else %}"
        + said
        + "\n{% endif %}",
    )
    made = [real(QWEN25, template_spec={"text": text}) for text in (plain, tagged)]
    (first,), (second,) = (outcome(one, [chat("u", "a", "v", "b")])[0] for one in made)
    for row in (first, second):
        assert trained_text(row, qwen()) == ["a<|im_end|>", "b<|im_end|>"]
    texts = [qwen().decode(row["input_ids"]) for row in (first, second)]
    assert texts[1] == texts[0].replace("a<|im_end|>\n", "a<|im_end|>").replace("b<|im_end|>\n", "b<|im_end|>")
    assert made[0].template.digest != made[1].template.digest


CUT_TALK = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "q1"},
    {"role": "assistant", "reasoning_content": "r1", "content": "a1 is this"},
    {"role": "user", "content": "q2 and more"},
    {"role": "assistant", "reasoning_content": "r2", "content": "a2 is that"},
]


@pytest.mark.parametrize("truncation", ["right", "left", "message"])
@pytest.mark.parametrize(
    "policy", ["assistant", "last_assistant", "final_answer", "completion", "all_but_system", "all"]
)
def test_a03_a_cut_row_trains_what_the_whole_row_would(policy, truncation):
    """An answer that is not the last one is no last answer because the last one was cut off."""
    record = {"messages": CUT_TALK}
    uncut = real(QWEN3, mask=policy)
    (whole,), _, _ = outcome(uncut, [record])
    length = whole["num_tokens"]
    written = 0
    for limit in range(1, length, 3):
        cutting = real(QWEN3, mask=policy, max_length=limit, truncation=truncation)
        cutting.__dict__["template"] = uncut.template
        rows, left_out, _ = outcome(cutting, [record])
        for row in rows:
            start = length - row["num_tokens"] if truncation == "left" else 0
            part = slice(start, start + row["num_tokens"])
            assert row["input_ids"] == whole["input_ids"][part]
            assert row["loss_mask"] == whole["loss_mask"][part], (limit, trained_text(row, qwen()))
        if not rows:
            assert left_out[0]["reason"] in ("no_trained_tokens_after_truncation", "too_long")
        written += len(rows)
    # cut after a message, the row has lost the one that these policies train
    assert bool(written) == (truncation != "message" or policy not in ("last_assistant", "completion"))


def test_a12_a_turn_that_is_left_out_of_a_record_is_counted():
    """Its other turns are written, so that the record itself is not among those that were left out."""
    record = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}] * 3}
    rows, left_out, stats = outcome(real(QWEN25, history="per_turn", max_length=50), [record])
    assert len(rows) == 2
    assert not left_out
    assert stats.counts["row_left_out_too_long"] == 1


def test_a17_the_last_answer_may_be_flagged_wherever_the_conversation_ends():
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train": True}]
    talk = [*messages, {"role": "user", "content": "bye"}]
    (row,), _, _ = outcome(real(QWEN25, mask="last_assistant"), [{"messages": talk}])
    assert trained_text(row, qwen()) == ["a<|im_end|>"]
    turns, _, stats = outcome(real(QWEN25, mask="last_assistant", history="per_turn"), [{"messages": messages * 2}])
    assert [trained_text(turn, qwen()) for turn in turns] == [["a<|im_end|>"]] * 2
    assert not any(name.startswith("row_left_out") for name in stats.counts)

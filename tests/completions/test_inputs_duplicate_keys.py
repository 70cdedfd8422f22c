"""Keys that a record has twice: no reader may choose one of them in silence."""

from __future__ import annotations

import orjson
import pytest
from reading import A, Q, items_of, recipe_for

from retok_dask.types import Document


@pytest.mark.parametrize(
    "text",
    [
        '{"messages":[],"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}',
        '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"b","content":"a"}]}',
        '{"messages":[{"role":"system","role":"user","content":"q"},{"role":"assistant","content":"a"}]}',
    ],
)
@pytest.mark.parametrize("colon", [":", ": "])
def test_a_key_written_twice_is_rejected_or_counted(tmp_path, text, colon):
    (tmp_path / "a.jsonl").write_text(text.replace(":", colon))
    assert [reason for reason, _ in items_of(recipe_for(tmp_path / "a.jsonl"))[1]] == ["duplicate_key"]
    ((item,), refused) = items_of(recipe_for(tmp_path / "a.jsonl", mend=["duplicate_keys"]))
    assert (item.messages, refused) == ([Q, A], [])
    assert item.counts == {"duplicate_keys_mended": 1}


@pytest.mark.parametrize("lost", ['"a"', "1", "null", '["text"]'])
@pytest.mark.parametrize("colon", [":", ": "])
def test_a_document_with_its_text_twice_is_rejected_or_counted(tmp_path, lost, colon):
    (tmp_path / "a.jsonl").write_text('{"id":"x","text":LOST,"text":"b"}'.replace("LOST", lost).replace(":", colon))
    assert [reason for reason, _ in items_of(recipe_for(tmp_path / "a.jsonl", mode="text"))[1]] == ["duplicate_key"]
    mended = recipe_for(tmp_path / "a.jsonl", mode="text", mend=["duplicate_keys"])
    assert items_of(mended) == ([Document("b", "x", counts={"duplicate_keys_mended": 1})], [])


def test_documents_that_are_named_like_their_keys_are_no_fault(tmp_path):
    texts = ["text", 'say "text" and {"text":"text"}', '"text"']
    rows = [{"id": "text", "source": "text", "text": text} for text in texts]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    assert items_of(recipe_for(tmp_path / "a.jsonl", mode="text")) == ([Document(text, "text") for text in texts], [])


def test_text_that_looks_like_keys_is_text(tmp_path):
    text = '{"text": "a", "text": "b"} and what "text" is\n'
    (tmp_path / "a.txt").write_text(text)
    assert items_of(recipe_for(tmp_path / "a.txt", mode="text")) == ([Document(text)], [])


def test_keys_that_only_look_doubled_are_no_fault(tmp_path):
    schema = {"type": "object", "properties": {"content": {"type": "string"}, "role": {}, "messages": {}}}
    value = {
        "messages": [
            {"role": "user", "content": 'say "role" and {"content": 1}'},
            {"role": "assistant", "content": "role"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }
    (tmp_path / "a.jsonl").write_bytes(orjson.dumps(value))
    assert items_of(recipe_for(tmp_path / "a.jsonl"))[1] == []

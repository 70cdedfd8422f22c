"""Samples for the tests of views, by the real encoder and aligner."""

from __future__ import annotations

from typing import Any

from retok_dask.types import Kind, Rendered

TRAINED = {"reasoning", "content", "tool_call", "stop"}


def make_sample(tokenizer: Any, parts: list[tuple[str, int, str]], **more: Any) -> dict[str, Any]:
    """A sample from (kind, message, text), by the real encoder and aligner."""
    text, starts = "", []
    for _, _, piece in parts:
        starts.append(len(text))
        text += piece
    kinds = [Kind[kind] for kind, _, _ in parts]
    encoded = tokenizer.encode([Rendered(text, starts, kinds, [message for _, message, _ in parts])])
    segments = [
        {"start": int(start), "end": int(end), "kind": Kind(int(kind)).name, "message": int(message)}
        for start, end, kind, message in zip(
            encoded.seg_start, encoded.seg_end, encoded.seg_kind, encoded.seg_message, strict=True
        )
    ]
    mask = [False] * len(encoded.ids)
    for segment in segments:
        if segment["kind"] in TRAINED:
            mask[segment["start"] : segment["end"]] = [True] * (segment["end"] - segment["start"])
    return {"sample_id": "s-1", "input_ids": encoded.ids, "loss_mask": mask, "segments": segments, **more}


def chat(user: str, answer: str, reasoning: str = "") -> list[tuple[str, int, str]]:
    return [
        ("user", 0, f"<|im_start|>user\n{user}<|im_end|>\n"),
        ("header", 1, "<|im_start|>assistant\n"),
        ("prefill", 1, "<think>\n"),
        ("reasoning", 1, f"{reasoning}\n</think>\n\n"),
        ("content", 1, answer),
        ("stop", 1, "<|im_end|>"),
        ("trailer", 1, "\n"),
    ]

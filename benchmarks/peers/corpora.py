"""Plain text to token files by public tools; run by the peers' own Python."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.child import measured


def datatrove_tokens(tokenizer: str, source: str) -> dict[str, Any]:
    """datatrove's `DocumentTokenizer` step behind its own JSONL reader, as its examples do it."""
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    answer: dict[str, Any] = {}
    path = Path(source)
    with tempfile.TemporaryDirectory() as scratch:
        reader = JsonlReader(str(path.parent), glob_pattern=path.name)
        writer = DocumentTokenizer(scratch, tokenizer, eos_token="<|im_end|>", shuffle_documents=False)
        _ = writer.tokenizer  # loaded before the clock starts, as on our side
        with measured(answer):
            writer.run(reader.run(), 0, 1)
        size = writer.token_size
        answer["tokens"] = sum(file.stat().st_size for file in Path(scratch).glob("**/*.ds")) // size
    return answer


def tokenizers_encode(tokenizer: str, source: str) -> dict[str, Any]:
    """The `tokenizers` library alone: `encode_batch_fast` on documents in memory, ids counted and dropped."""
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(tokenizer)
    texts = [json.loads(line)["text"] for line in Path(source).read_bytes().splitlines()]
    answer: dict[str, Any] = {"tokens": len(texts)}  # the separators
    with measured(answer):
        for start in range(0, len(texts), 1000):
            batch = loaded.encode_batch_fast(texts[start : start + 1000], add_special_tokens=False)
            answer["tokens"] += sum(len(encoding.ids) for encoding in batch)
    return answer

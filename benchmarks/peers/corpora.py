"""Plain text to token files by public tools; run by the peers' own Python."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.child import measured


def datatrove_tokens(tokenizer: str, sources: dict[str, str]) -> dict[str, Any]:
    """datatrove's `DocumentTokenizer` step behind its own JSONL reader, as its examples do it."""
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    answer: dict[str, Any] = {}
    for language, source in sources.items():
        path, found = Path(source), {}
        with tempfile.TemporaryDirectory() as scratch:
            reader = JsonlReader(str(path.parent), glob_pattern=path.name)
            writer = DocumentTokenizer(scratch, tokenizer, eos_token="<|im_end|>", shuffle_documents=False)
            _ = writer.tokenizer  # loaded before the clock starts, as on our side
            with measured(found):
                writer.run(reader.run(), 0, 1)
            found["tokens"] = sum(file.stat().st_size for file in Path(scratch).glob("**/*.ds")) // writer.token_size
        answer[language] = found
    return answer


def tokenizers_encode(tokenizer: str, sources: dict[str, str]) -> dict[str, Any]:
    """The `tokenizers` library alone: `encode_batch_fast` on documents in memory, ids counted and dropped."""
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(tokenizer)
    answer: dict[str, Any] = {}
    for language, source in sources.items():
        texts = [json.loads(line)["text"] for line in Path(source).read_bytes().splitlines()]
        found: dict[str, Any] = {"tokens": len(texts)}  # the separators
        with measured(found):
            for start in range(0, len(texts), 1000):
                batch = loaded.encode_batch_fast(texts[start : start + 1000], add_special_tokens=False)
                found["tokens"] += sum(len(encoding.ids) for encoding in batch)
        answer[language] = found
    return answer

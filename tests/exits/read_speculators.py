"""Rows of a speculators export in the working folder, as its trainer collates them.

Hidden states are the one thing that a server of the target model would add:
zeros stand for them here, in the files where speculators keeps them.
"""

import json
from pathlib import Path

import numpy as np
import torch
from datasets import load_from_disk
from reading import run_page
from safetensors.torch import save_file
from speculators.train.data import CollateFn
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution, save_token_frequency_distribution

export = Path("tokens-speculators")
(export / "hidden_states").mkdir()
written = load_from_disk(export)
for number, row in enumerate(written):
    states = {"hidden_states": torch.zeros(len(row["input_ids"]), 4, 8), "token_ids": row["input_ids"]}
    save_file(states, export / "hidden_states" / f"hs_{number}.safetensors")
data = run_page("speculators")["data"]
collate = CollateFn(max_len=256, hidden_size=8, dtype=torch.float32)
found = []
for number in range(0, len(data), 2):
    batch = collate([data[index] for index in range(number, min(number + 2, len(data)))])
    documents = batch["document_ids"][0]
    for document in range(int(documents.max()) + 1):
        parts = (batch["input_ids"], batch["loss_mask"], batch["position_ids"])
        found.append([part[0][documents == document].tolist() for part in parts])

save_token_frequency_distribution(written, "token_freq.pt")
theirs = build_vocab_mappings_from_distribution(torch.load("token_freq.pt"), 100, 1000)
# as its command reads --d2t-path and --t2d-path
ours = [torch.from_numpy(np.load(f"draft/{name}.npy")) for name in ("d2t", "t2d")]
print(
    json.dumps(
        {
            "rows": found,
            "lengths": np.array(data.approx_lengths).tolist(),
            "same_maps": [torch.equal(a, b) for a, b in zip(theirs, ours, strict=True)],
        }
    )
)

"""Rows of both SpecForge exports in the working folder, by its collator and its reader of prompts."""

import json

import numpy as np
import torch
import yaml
from reading import lines_of, run_page
from specforge.config.schema import DataConfig
from specforge.data.preprocessing import generate_vocab_mapping_file
from specforge.data.prompt_builder import prepare_prompt_tasks

names = run_page("specforge")
rows, collate = names["rows"], names["DataCollatorWithPadding"]()
assert names["batch"]["input_ids"].shape == names["batch"]["loss_mask"].shape
found = []
for number in range(0, len(rows), 4):
    batch = collate([rows[index] for index in range(number, min(number + 4, len(rows)))])
    real = batch["attention_mask"].bool()
    parts = [batch[name] for name in ("input_ids", "loss_mask")]
    found += [[part[row][real[row]].tolist() for part in parts] for row in range(len(real))]

config = DataConfig(**yaml.safe_load(lines_of("specforge-prompts"))["data"])
tasks = prepare_prompt_tasks(
    config.prompts_path,
    None,
    chat_template=config.chat_template,
    max_length=config.max_length,
    is_preformatted=config.is_preformatted,
    train_only_last_turn=config.train_only_last_turn,
    cache_dir=config.cache_dir,
    cache_key="prompts",
    num_proc=1,
)
online = [[task["payload"][name] for name in ("input_ids", "loss_mask")] for task in tasks]

theirs = torch.load(generate_vocab_mapping_file(rows, 1000, 100, "maps"))
ours = {name: torch.from_numpy(np.load(f"draft/{name}.npy")) for name in ("d2t", "t2d")}
same = [torch.equal(theirs[name], ours[name]) for name in ("d2t", "t2d")]
covered = [
    sum(mask[i] for ids, mask in found for i in range(len(ids)) if m[ids[i]]) for m in (theirs["t2d"], ours["t2d"])
]
print(json.dumps({"rows": found, "online": online, "same_maps": same, "covered": covered}))

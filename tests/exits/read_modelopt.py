"""Rows of a Model-Optimizer export in the working folder, through its streaming data set.

The server of the target model is left out: what it would answer is the row's
own ids and hidden states of zeros.
"""

import json

import torch
from modelopt.torch.speculative.plugins.hf_streaming_dataset import EagleVllmStreamingConfig
from reading import run_page

config = EagleVllmStreamingConfig(server_urls="http://localhost", model="none", max_seq_len=4096)
data = run_page("modelopt", config=config)["data"]


def answer(sample):
    ids = torch.tensor(sample["token_ids"])
    # vLLM may give one position more than it was asked for; the mask is aligned to that
    ids = torch.cat([ids, ids[-1:]])
    mask = data._align_loss_mask(sample["loss_mask"], len(ids))
    return {"token_ids": ids, "hidden_states": torch.zeros(len(ids), 4, 8), "loss_mask": mask}


data._fetch = answer
found = []
for number in range(len(data)):
    row = data[number]
    assert row["loss_mask"][-1] == 0
    found.append([row[name][:-1].tolist() for name in ("input_ids", "loss_mask")])
print(json.dumps({"rows": found}))

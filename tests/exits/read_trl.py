"""Batches of a TRL export in the working folder: `python read_trl.py EXIT [packed]`."""

import json
import sys

import torch
from reading import run_page
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig

name, packed = sys.argv[1], sys.argv[2:] == ["packed"]
vocabulary = {str(number): number for number in range(1000)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="0")), eos_token="0", pad_token="0"
)
shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, **shape))
args = SFTConfig(
    output_dir="trainer",
    per_device_train_batch_size=1 if packed else 4,
    max_steps=1,
    report_to="none",
    use_cpu=True,
    bf16=False,
    max_length=None,
    padding_free=packed,
    completion_only_loss=True if name == "trl-completion" else None,
)
trainer = run_page(name, model=model, tokenizer=tokenizer, args=args)["trainer"]
found = []
for batch in trainer.get_train_dataloader():
    # a packed batch has no attention mask: its document boundaries are positions 0
    real = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
    positions = batch.get("position_ids", torch.zeros_like(batch["input_ids"]))
    for row in range(len(real)):
        parts = (batch["input_ids"], batch["labels"], positions)
        found.append([part[row][real[row]].tolist() for part in parts])
# and one step of training on them
print(json.dumps({"rows": found, "loss": trainer.train().training_loss}))

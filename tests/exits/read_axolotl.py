"""Rows of an Axolotl export in the working folder, as `axolotl preprocess` prepares them."""

import json
import os

import torch
import yaml
from axolotl.utils.collators import DataCollatorForSeq2Seq
from axolotl.utils.data import prepare_datasets
from axolotl.utils.dict import DictDefault
from reading import lines_of
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

# what `axolotl preprocess` sets: the data are prepared, and no trainer is asked how many steps they make
os.environ["AXOLOTL_IS_PREPROCESS"] = "1"
SETTINGS = {"sequence_len": 4096, "dataset_num_proc": 1, "is_preprocess": True, "val_set_size": 0}


def main() -> None:
    config = yaml.safe_load(lines_of("axolotl"))
    vocabulary = {str(number): number for number in range(1000)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="0")), eos_token="0", pad_token="0"
    )
    settings = DictDefault(config | SETTINGS | {"dataset_prepared_path": "prepared"})
    data, _, _, _ = prepare_datasets(settings, tokenizer)
    collate = DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=-100)
    # what a model takes: the trainer removes other columns
    names = [name for name in ("input_ids", "labels", "position_ids") if name in data.column_names]
    found = []
    for number in range(0, len(data), 4):
        rows = [data[index] for index in range(number, min(number + 4, len(data)))]
        batch = collate([{name: row[name] for name in (*names, "attention_mask")} for row in rows])
        real = batch["attention_mask"].bool()
        parts = [torch.as_tensor(batch[name]) for name in names]
        found += [[part[row][real[row]].tolist() for part in parts] for row in range(len(real))]
    print(json.dumps({"rows": found}))


# axolotl starts processes that import this file
if __name__ == "__main__":
    main()

"""Rows of the exports to Megatron, nanotron and MosaicML in the working folder, by the lines of their pages."""

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

from reading import run_page

# streaming imports torchvision for its data sets of pictures, which are not used here; PyPI has no build of it
# that loads without a GPU's libraries
for module in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[module] = ModuleType(module)
    sys.modules[module].__spec__ = ModuleSpec(module, None)
sys.modules["torchvision.datasets"].VisionDataset = object
sys.modules["torchvision.transforms.functional"].to_tensor = MagicMock()

names = run_page("megatron")
tokens, masks = names["tokens"], names["masks"]
megatron = [[tokens[row].tolist(), masks[row].tolist()] for row in range(len(tokens))]
windows = run_page("nanotron")["rows"]
nanotron = [windows[row]["input_ids"].tolist() for row in range(len(windows))]
streamed = run_page("mds")["rows"]
mds = [[streamed[row][name].tolist() for name in ("input_ids", "loss_mask")] for row in range(len(streamed))]
print(json.dumps({"megatron": megatron, "nanotron": nanotron, "mds": mds}))

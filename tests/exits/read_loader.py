"""Rows of a run through PyTorch's DataLoader, in our own environment with torch beside it: `read_loader.py RUN TORCH`."""

import json
import sys
from pathlib import Path

from retok_dask import open_dataset

assert "torch" not in sys.modules
sys.path += map(str, Path(sys.argv[2]).glob("lib/python*/site-packages"))

import torch  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

data = open_dataset(sys.argv[1]).select(["input_ids", "loss_mask"])


class Ranks(IterableDataset):
    """Each worker of the loader reads its own part."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        return iter(data.iterate(rank=worker.id, world_size=worker.num_workers))


def main() -> None:
    loaders = {
        "map": DataLoader(data, batch_size=8, num_workers=2, collate_fn=list),
        "plain": DataLoader(data, batch_size=None),
        "ranks": DataLoader(Ranks(), batch_size=None, num_workers=2),
    }
    found = {}
    for name, loader in loaders.items():
        rows = [row for part in loader for row in (part if isinstance(part, list) else [part])]
        found[name] = [[row["input_ids"].tolist(), [int(hit) for hit in row["loss_mask"]]] for row in rows]
    # a model of one table learns the trained tokens alone, through the same view
    table = torch.zeros(1000, 1000, requires_grad=True)
    steps = torch.optim.SGD([table], lr=20.0)
    losses = []
    for _ in range(40):
        total, count = 0.0, 0
        for row in loaders["plain"]:
            ids, mask = row["input_ids"].long(), row["loss_mask"]
            labels = torch.where(mask, ids, -100)[1:]
            wanted = int((labels != -100).sum())
            if wanted:
                loss = torch.nn.functional.cross_entropy(table[ids[:-1]], labels, reduction="sum")
                steps.zero_grad()
                (loss / wanted).backward()
                steps.step()
                total, count = total + float(loss.detach()), count + wanted
        losses.append(total / count)
    learned = torch.nonzero((table > 0).any(dim=0)).flatten().tolist()
    print(json.dumps(found | {"losses": losses, "learned": learned, "targets": count}))


if __name__ == "__main__":
    main()

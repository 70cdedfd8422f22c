"""The folder of the synthetic runs is on the import path of these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))

"""What the pipeline costs, measured side by side with public tools: ``python -m benchmarks``."""

import retok_dask  # noqa: F401  before Arrow, whose allocator it sets up, as in a worker

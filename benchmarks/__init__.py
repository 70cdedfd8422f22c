"""What the pipeline costs, measured side by side with public tools: ``python -m benchmarks``."""

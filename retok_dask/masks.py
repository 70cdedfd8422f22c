"""Segments to loss mask: the one place where a policy decides what is trained."""

"""Experiments: what to run, running it, and what it leaves behind."""

"""The student: any causal language model of Hugging Face Transformers, or a tiny one made here. See
load, tiny, forward, export."""

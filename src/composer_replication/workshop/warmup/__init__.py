"""The tiny student of the workshop, made from random weights: its tokenizer and its warm-up."""

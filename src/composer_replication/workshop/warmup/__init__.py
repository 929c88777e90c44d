"""How the tiny student of the workshop is made from nothing: its tokenizer, its lessons, its
warm-up."""

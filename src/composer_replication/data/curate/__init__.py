"""Decide which pairs are fit to train on, and why the others are not. Import from its modules.

pair.py (a pair as it is judged) · recipe.py, yaml_subset.py (recipes with data-juicer's operator
names) · curator.py (judges pairs, and answers during replay) · statistics.py, structure.py,
language.py, similarity.py, meaning.py, duplicates.py (the operators) · pair_export.py (flat and
chat shapes) · data_juicer.py (the same recipe on real data-juicer) · foreign.py (operators that
only the real one has)
"""

"""The student: any causal language model of Hugging Face Transformers, or a tiny one made here.

load_student.py, tiny.py (loading), forward.py, tree_forward.py (forward passes), merge.py,
pretrained_folder.py (saving).
"""

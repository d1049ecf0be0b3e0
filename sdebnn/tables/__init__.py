"""Tables with named columns, of numbers and of words: read from a file, learned from, and predicted.

``kind`` says whether a folder holds a run of a table; ``runs``, which does the rest, needs scikit-learn.
"""

"""What a sparse model keeps, where its attention goes, and what closing other gates would cost, as numbers for JSON.

subject.py        folders in, models and annotated text out
material.py       the text to measure on, in batches; forced cross-entropy
annotate.py       groups of words and pieces of words, per source token
attention.py      attention mass, entropy, maps of single sentences
dropped.py        sparsity by group, word, frequency, length, position and layer
interventions.py  gates closed by hand
source_use.py     scores with another sentence's source, and with none
timing.py         the decoder's time in cross-attention
parts.py          which of them a run gets, in one pass over the text; runs and sweeps
tables.py         the numbers as tables, for reports and documents
"""
